// SPDX-License-Identifier: Apache-2.0
// Goal: a process holds as long as it lives, not a moment longer, and does so once. Method: children that wait on a
// pipe.
#include "daemon/gpus/holds.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gpumux::daemon {
namespace {

// A process that lives until it is told to end.
class Child {
 public:
  Child() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[1]);
      char byte;
      while (::read(ends[0], &byte, 1) > 0) {
      }
      ::_exit(0);
    }
    ::close(ends[0]);
    pipe_ = os::FileDescriptor(ends[1]);
  }
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  // Returns when it is a zombie; it is not reaped before the object goes.
  void end() {
    if (!pipe_) return;
    pipe_.reset();
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }

 private:
  pid_t pid_ = -1;
  os::FileDescriptor pipe_;
};

TEST(HoldsTest, AProcessHoldsUntilItEnds) {
  Holds holds;
  EXPECT_FALSE(holds.any());
  Child first;
  ASSERT_TRUE(holds.add(first.pid()));
  ASSERT_TRUE(holds.add(first.pid()));
  EXPECT_TRUE(holds.any());
  first.end();
  EXPECT_FALSE(holds.any()) << "a zombie holds nothing";
  ::waitpid(first.pid(), nullptr, 0);
}

TEST(HoldsTest, WhatCannotBeWatchedIsSaid) {
  Holds holds;
  const auto none = holds.add(0);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, base::Code::kUnsupported);
  EXPECT_FALSE(holds.any());
}

}  // namespace
}  // namespace gpumux::daemon
