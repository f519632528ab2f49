// SPDX-License-Identifier: Apache-2.0
#include "server/loop/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "os/durable_file.h"
#include "os/file_descriptor.h"

namespace gpumux::server {

base::Result<std::string> read_file(const std::string& path, std::size_t maximum) {
  const os::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return base::fail_errno(errno, "cannot read " + path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return base::fail_errno(errno, "cannot read " + path);
  if (S_ISFIFO(status.st_mode))
    return base::fail(base::Code::kInvalid, "cannot read " + path + ": it is a pipe; name a file");
  std::string text;
  char buffer[8192];
  for (;;) {
    const ssize_t got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, "cannot read " + path);
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > maximum) {
      return base::fail(base::Code::kExhausted, path + " is longer than " + std::to_string(maximum) + " bytes");
    }
  }
}

base::Status replace_file(const std::string& path, std::string_view text, mode_t mode, Outlives outlives) {
  const std::string temporary = path + ".new";
  os::FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!file) return base::fail_errno(errno, "cannot write " + temporary);
  GPUMUX_TRY(os::write_all(file.get(), text, temporary));
  // The name must not reach the disk before the bytes do.
  if (outlives == Outlives::kMachine && ::fsync(file.get()) != 0)
    return base::fail_errno(errno, "cannot write " + temporary);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return base::fail_errno(errno, "cannot replace " + path);
  return {};
}

}  // namespace gpumux::server
