// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_names.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/result.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

constexpr std::size_t kMostText = 255;

void log_failure(const std::string& name, int system_errno) {
  server::log_error(
      "evicted data cannot be kept for the next daemon",
      {{"name", name}, {"why", base::Error{.system_errno = system_errno, .what = "cannot name it"}.message()}});
}

}  // namespace

void HostNames::give(const std::string& name, int file) {
  if (!folder_) return;
  remove(name);
  const std::string unnamed = "/proc/self/fd/" + std::to_string(file);
  if (::linkat(AT_FDCWD, unnamed.c_str(), folder_.get(), name.c_str(), AT_SYMLINK_FOLLOW) != 0)
    log_failure(name, errno);
}

void HostNames::write(const std::string& name, const std::string& text) {
  if (!folder_) return;
  remove(name);
  if (::symlinkat(text.c_str(), folder_.get(), name.c_str()) != 0) log_failure(name, errno);
}

void HostNames::remove(const std::string& name) {
  if (folder_ && ::unlinkat(folder_.get(), name.c_str(), 0) != 0 && errno != ENOENT) log_failure(name, errno);
}

void HostNames::remove_all() {
  for (const std::string& name : all()) remove(name);
}

std::vector<std::string> HostNames::all() const {
  std::vector<std::string> names;
  if (!folder_) return names;
  os::FileDescriptor own(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(own ? ::fdopendir(own.get()) : nullptr, ::closedir);
  if (!folder) return names;
  own.release();  // the DIR's from now on
  while (const dirent* const entry = ::readdir(folder.get())) {
    if (entry->d_type != DT_DIR) names.emplace_back(entry->d_name);
  }
  return names;
}

os::FileDescriptor HostNames::open(const std::string& name) const {
  if (!folder_) return {};
  return os::FileDescriptor(::openat(folder_.get(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
}

std::string HostNames::read(const std::string& name) const {
  std::array<char, kMostText> text{};
  const ssize_t bytes = folder_ ? ::readlinkat(folder_.get(), name.c_str(), text.data(), text.size()) : -1;
  return bytes < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(bytes));
}

}  // namespace gpumux::daemon
