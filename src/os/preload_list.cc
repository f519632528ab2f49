// SPDX-License-Identifier: Apache-2.0
#include "os/preload_list.h"

#include <fcntl.h>
#include <limits.h>

#include <algorithm>
#include <cstdlib>

#include "os/durable_file.h"
#include "os/installation.h"

namespace gpumux::os {
namespace {

constexpr std::size_t kLongestList = 1 << 20;

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

std::vector<std::string> preload_entries(std::string_view list) {
  std::vector<std::string> entries;
  std::size_t at = 0;
  while (at < list.size()) {
    if (list[at] == '#') {
      at = list.find('\n', at);
      if (at == std::string_view::npos) break;
      continue;
    }
    const std::size_t end = std::min(list.find_first_of(" :\t\n", at), list.size());
    if (end > at) entries.emplace_back(list.substr(at, end - at));
    at = end + (end < list.size() ? 1 : 0);
  }
  return entries;
}

bool names_library(std::string_view list) {
  const auto entries = preload_entries(list);
  return std::any_of(entries.begin(), entries.end(),
                     [](const std::string& entry) { return base_name(entry) == kLibraryName; });
}

bool is_preloaded_everywhere() {
  char path[PATH_MAX];  // the loader follows links
  if (::realpath("/etc/ld.so.preload", path) == nullptr) return false;
  const auto list = read_file_at(AT_FDCWD, path, kLongestList);
  return list && names_library(*list);
}

std::string compose_preload(std::string_view existing, std::string_view library) {
  std::string value(library);
  for (const std::string& entry : preload_entries(existing)) {
    if (base_name(entry) != base_name(library)) value += ":" + entry;
  }
  return value;
}

}  // namespace gpumux::os
