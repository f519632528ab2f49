// SPDX-License-Identifier: Apache-2.0
// Waiting on a 32-bit word, between threads or between processes that share the page it lies in.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace gpumux::os {

enum class FutexScope { kProcess, kShared };

// Sleeps while *word == expected, at most `timeout` (negative: for ever). Returns false when the time ran out.
// A true return promises nothing (wake-ups may be spurious): the caller looks at the word again. Keeps errno.
inline bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, base::Duration timeout,
                       FutexScope scope) {
  const int saved_errno = errno;
  timespec relative{};
  relative.tv_sec = timeout.count() / 1'000'000'000;
  relative.tv_nsec = timeout.count() % 1'000'000'000;
  const int operation = scope == FutexScope::kShared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE;
  const long result =
      ::syscall(SYS_futex, &word, operation, expected, timeout.count() < 0 ? nullptr : &relative, nullptr, 0);
  const bool timed_out = result != 0 && errno == ETIMEDOUT;
  errno = saved_errno;
  return !timed_out;
}

// Wakes at most `count` sleepers (default: all). Keeps errno.
inline void futex_wake(const std::atomic<std::uint32_t>& word, FutexScope scope, int count = INT_MAX) {
  const int saved_errno = errno;
  ::syscall(SYS_futex, &word, scope == FutexScope::kShared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, nullptr, nullptr,
            0);
  errno = saved_errno;
}

}  // namespace gpumux::os
