// SPDX-License-Identifier: Apache-2.0
#include "cli/preload.h"

#include <gnu/libc-version.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cli/elf_file.h"

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;
using base::Status;

std::string absolute(const std::string& path) {
  char buffer[PATH_MAX];
  const char* resolved = ::realpath(path.c_str(), buffer);
  return resolved == nullptr ? path : std::string(resolved);
}

bool is_regular_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

std::vector<std::string_view> split_list(std::string_view list) {
  std::vector<std::string_view> entries;
  std::size_t at = 0;
  while (at < list.size()) {
    if (list[at] == '#') {
      at = list.find('\n', at);
      if (at == std::string_view::npos) break;
      continue;
    }
    const std::size_t end = std::min(list.find_first_of(" :\t\n", at), list.size());
    if (end > at) entries.push_back(list.substr(at, end - at));
    at = end + (end < list.size() ? 1 : 0);
  }
  return entries;
}

}  // namespace

Result<std::string> executable_dir() {
  char buffer[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (length <= 0) return base::fail_errno(errno, "cannot read /proc/self/exe (is /proc mounted?)");
  const std::string path(buffer, static_cast<std::size_t>(length));
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? std::string("/") : path.substr(0, slash);
}

std::vector<std::string> library_places(const std::string& dir) {
  const std::string name = kLibraryName;
  return {dir + "/" + name,
          dir + "/../lib/" + name,
          dir + "/../lib/gpumux/" + name,
          dir + "/../lib64/gpumux/" + name,
          "/usr/local/lib/gpumux/" + name,
          "/usr/lib/gpumux/" + name};
}

Result<std::string> find_library(const std::string& dir) {
  const char* named = std::getenv("GPUMUX_LIBRARY");
  if (named != nullptr && named[0] != '\0') {
    if (is_regular_file(named)) return absolute(named);
    return base::fail(Code::kNotFound,
                      "GPUMUX_LIBRARY names " + std::string(named) +
                          ", and there is no such file: correct it, or unset it to use the installed library");
  }
  std::string looked;
  for (const std::string& place : library_places(dir)) {
    if (is_regular_file(place)) return absolute(place);
    looked += (looked.empty() ? "" : ", ") + place;
  }
  return base::fail(Code::kNotFound, std::string(kLibraryName) + " was not found (looked at " + looked +
                                         "): install gpumux again, or name the library in GPUMUX_LIBRARY");
}

Status check_preloadable(const std::string& library) {
  if (library.find_first_of(" :\t\n") != std::string::npos) {
    return base::fail(
        Code::kInvalid,
        "the library's path '" + library +
            "' has a space or a colon in it, which LD_PRELOAD cannot express: install gpumux elsewhere, or "
            "name another copy in GPUMUX_LIBRARY");
  }
  auto file = read_elf(library);
  if (!file) return tl::unexpected(std::move(file).error());
  const auto self = read_elf("/proc/self/exe");
  if (!file->is_shared_object) return base::fail(Code::kInvalid, library + " is not a shared library");
  if (self && (file->machine != self->machine || file->is_64_bit != self->is_64_bit)) {
    return base::fail(Code::kInvalid, library + " is for " + machine_name(file->machine) +
                                          ", this machine's programs are for " + machine_name(self->machine) +
                                          ": install the package for this machine");
  }
  const std::string here = ::gnu_get_libc_version();
  if (!file->glibc.empty() && is_older_version(here, file->glibc)) {
    return base::fail(Code::kUnsupported,
                      library + " needs glibc " + file->glibc + ", here is " + here +
                          ": the loader would refuse it; install the package built for this system");
  }
  if (::access(library.c_str(), R_OK) != 0) return base::fail_errno(errno, "cannot read " + library);
  return {};
}

std::string compose_preload(std::string_view existing, const std::string& library) {
  std::string value = library;
  for (const std::string_view entry : split_list(existing)) {
    if (base_name(entry) == kLibraryName || entry == library) continue;
    value += ":" + std::string(entry);
  }
  return value;
}

std::vector<std::string> preload_entries(std::string_view list) {
  const auto entries = split_list(list);
  return {entries.begin(), entries.end()};
}

bool names_library(std::string_view list) {
  for (const std::string_view entry : split_list(list)) {
    if (base_name(entry) == kLibraryName) return true;
  }
  return false;
}

}  // namespace gpumux::cli
