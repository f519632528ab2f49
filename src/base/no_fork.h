// SPDX-License-Identifier: Apache-2.0
// Moments in which the program does not fork. Then a thread of ours has a descriptor that a child must not keep. The
// memory of a GPU behind it would live as long as that child.
//
// Close-on-exec helps where the child executes something; many only go on as copies. A table of such descriptors, for
// the child to close, would not help. Linux copies the descriptors first and the memory afterwards, and other threads
// go on between. So a fork waits until nothing is in hand, and nothing is taken while one is under way.
//
// Neither waits for longer than kPatience. A fork may come from a signal's handler, in the very thread that has such a
// descriptor. The program's own handlers of a fork may wait for threads that are about to take one. After kPatience a
// child may keep a descriptor that it should not have. (posix_spawn runs no handlers of fork, but its child executes
// something.)
#pragma once

#include <time.h>

#include <atomic>

#include "base/clock.h"
#include "base/no_cancellation.h"

namespace gpumux::base {

// While one exists no fork begins. Not within another one of the same thread, and not for longer than a call of the
// driver takes. Any thread; waits while a fork is under way.
class NoFork {
 public:
  static constexpr Duration kPatience = std::chrono::milliseconds(100);

  NoFork() {
    Duration waited{};
    for (;;) {
      inside_.fetch_add(1);
      if (forks_.load() == 0 || waited >= kPatience) return;
      inside_.fetch_sub(1);
      for (; forks_.load() != 0 && waited < kPatience; waited += kPause) pause();
    }
  }
  ~NoFork() { inside_.fetch_sub(1); }
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;

  // For pthread_atfork.
  static void prepare() {
    const NoCancellation while_it_waits;
    forks_.fetch_add(1);
    for (Duration waited{}; is_anybody_inside() && waited < kPatience; waited += kPause) pause();
  }
  static void in_parent() { forks_.fetch_sub(1); }
  static void in_child() {
    forks_.store(0);
    inside_.store(0);
  }

  static bool is_anybody_inside() { return inside_.load() > 0; }

 private:
  static constexpr Duration kPause = std::chrono::microseconds(50);
  static void pause() {
    const timespec time{0, kPause.count()};
    ::nanosleep(&time, nullptr);
  }

  // Each side says what it does before it looks at the other. (Below zero in the child of a thread that was inside.)
  static inline std::atomic<int> inside_{0};
  static inline std::atomic<int> forks_{0};
};

}  // namespace gpumux::base
