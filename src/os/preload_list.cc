// SPDX-License-Identifier: Apache-2.0
#include "os/preload_list.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

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

std::vector<std::string> split(std::string_view list, const char* separators) {
  std::vector<std::string> entries;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of(separators), list.size());
    if (end > 0) entries.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return entries;
}

// Whether the loader finds the file. Names without a folder, and names with $LIB and its like, count as found. The
// loader may find them, and two copies of the library in one process would wait for each other.
bool is_found(const std::string& entry) {
  return entry.front() != '/' || entry.find('$') != std::string::npos || ::access(entry.c_str(), F_OK) == 0;
}

}  // namespace

std::vector<std::string> variable_entries(std::string_view value) { return split(value, " :"); }

std::vector<std::string> file_entries(std::string_view text) {
  // The loader (glibc, elf/rtld.c, dl_main) blanks a comment wherever its # stands, up to the line's end. It looks for
  // the next # from the start of the file again, in as many bytes as are left behind the comment. So later comments of
  // a file may stay, and their words are entries.
  std::string file(text);
  std::size_t left = file.size();
  for (std::size_t at = file.find('#'); at < left; at = file.find('#')) {
    left -= at;
    do {
      file[at] = ' ';
    } while (--left > 0 && file[++at] != '\n');
  }
  return split(file, ": \t\n");
}

bool is_library(std::string_view entry) { return base_name(entry) == kLibraryName; }

bool has_library(const std::vector<std::string>& entries) {
  return std::any_of(entries.begin(), entries.end(), is_library);
}

bool is_preloaded_everywhere(const char* list_path) {
  char path[PATH_MAX];  // the loader follows links
  if (::realpath(list_path, path) == nullptr) return false;
  const auto list = read_file_at(AT_FDCWD, path, kLongestList);
  if (!list) return false;
  const auto entries = file_entries(*list);
  return std::any_of(entries.begin(), entries.end(),
                     [](const std::string& entry) { return is_library(entry) && is_found(entry); });
}

std::string compose_preload(std::string_view existing, std::string_view library) {
  std::string value;
  for (const std::string& entry : variable_entries(existing)) {
    if (base_name(entry) != base_name(library)) value.append(entry).append(":");
  }
  return value.append(library);
}

}  // namespace gpumux::os
