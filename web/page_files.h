// SPDX-License-Identifier: Apache-2.0
// The built page (built/*.gen.*), which is a part of the program.
#pragma once

#include <string_view>

namespace gpumux::web {

struct PageFile {
  std::string_view path;
  std::string_view content_type;
  std::string_view content;
};

// Null: the page has no such file.
const PageFile* find_page_file(std::string_view path);

}  // namespace gpumux::web
