// SPDX-License-Identifier: Apache-2.0
#include "web/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/file_descriptor.h"

namespace gpumux::web {

base::Result<LogTail> read_log_tail(const std::string& path) {
  const os::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file && errno == ENOENT) return base::fail(base::Code::kNotFound, "there is no log yet");
  if (!file) return base::fail_errno(errno, "cannot read the log " + path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return base::fail_errno(errno, "cannot look at the log " + path);
  if (!S_ISREG(status.st_mode))
    return base::fail(base::Code::kUnsupported, path + " is not a regular file: its end cannot be shown");
  LogTail tail;
  tail.bytes = static_cast<std::uint64_t>(status.st_size);
  const std::uint64_t begin = tail.bytes - std::min<std::uint64_t>(tail.bytes, kLogTailBytes);
  tail.text.resize(kLogTailBytes);
  std::size_t have = 0;
  while (have < tail.text.size()) {
    const ssize_t got =
        ::pread(file.get(), tail.text.data() + have, tail.text.size() - have, static_cast<off_t>(begin + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, "cannot read the log " + path);
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  tail.text.resize(have);
  // The first line has lost its beginning.
  const std::size_t line = begin > 0 ? tail.text.find('\n') : std::string::npos;
  if (line != std::string::npos) tail.text.erase(0, line + 1);
  return tail;
}

}  // namespace gpumux::web
