// SPDX-License-Identifier: Apache-2.0
// The end of a job's log, read with the rights of this process's user. May wait for a slow file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace gpumux::web {

// A page shows this much of it.
inline constexpr std::size_t kLogTailBytes = 64 << 10;

struct LogTail {
  std::string text;         // whole lines, unless one is longer than all
  std::uint64_t bytes = 0;  // that the log has in all
};

// kNotFound: there is no log. kUnsupported: it is no regular file. Opens no device and waits for no FIFO.
base::Result<LogTail> read_log_tail(const std::string& path);

}  // namespace gpumux::web
