// SPDX-License-Identifier: Apache-2.0
#include "web/page_files.h"

#include <array>

// page_bytes.S
extern "C" {
extern const char gpumux_web_index[];
extern const char gpumux_web_index_end[];
extern const char gpumux_web_script[];
extern const char gpumux_web_script_end[];
extern const char gpumux_web_style[];
extern const char gpumux_web_style_end[];
extern const char gpumux_web_icon[];
extern const char gpumux_web_icon_end[];
}

namespace gpumux::web {
namespace {

std::string_view between(const char* begin, const char* end) { return {begin, static_cast<std::size_t>(end - begin)}; }

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  static const std::array kFiles{
      PageFile{"/", "text/html; charset=utf-8", between(gpumux_web_index, gpumux_web_index_end)},
      PageFile{"/app.gen.js", "text/javascript; charset=utf-8", between(gpumux_web_script, gpumux_web_script_end)},
      PageFile{"/app.gen.css", "text/css; charset=utf-8", between(gpumux_web_style, gpumux_web_style_end)},
      PageFile{"/app.gen.svg", "image/svg+xml", between(gpumux_web_icon, gpumux_web_icon_end)}};
  for (const PageFile& file : kFiles) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace gpumux::web
