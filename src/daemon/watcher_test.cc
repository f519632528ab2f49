// SPDX-License-Identifier: Apache-2.0
// Goal: a daemon that fails after it has served starts again, one that ends by itself does not, and one that never
// serves is given up.
#include "daemon/watcher.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "os/file_descriptor.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

TEST(RestartPause, GrowsWithEachFailureBeforeItServes) {
  RestartPause pauses;
  for (int i = 0; i < 500; ++i) EXPECT_EQ(pauses.after(true), 100ms);
  EXPECT_EQ(pauses.after(false), 100ms);
  EXPECT_EQ(pauses.after(false), 200ms);
  EXPECT_EQ(pauses.after(false), 400ms);
  EXPECT_EQ(pauses.after(true), 100ms);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(pauses.after(false));
  EXPECT_FALSE(pauses.after(false));
}

// Runs watch() in a process of its own. Each child gets its number.
class WatcherTest : public ::testing::Test {
 protected:
  void start(int (*run)(int number, int fd)) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    said_ = os::FileDescriptor(ends[0]);
    watcher_ = ::fork();
    if (watcher_ == 0) {
      int numbers[2];
      if (::pipe(numbers) != 0) ::_exit(99);
      for (char i = 0; i < 9; ++i) {
        if (::write(numbers[1], &i, 1) != 1) ::_exit(99);
      }
      ::_exit(watch(ends[1], [&](int fd) -> int {
        char number = 0;
        if (::read(numbers[0], &number, 1) != 1) ::_exit(98);
        ::_exit(run(number, fd));
      }));
    }
    ::close(ends[1]);
  }
  // All that the watcher has passed on, when it has closed that.
  std::string said() {
    std::string all;
    char letter = 0;
    while (::read(said_.get(), &letter, 1) == 1) all += letter;
    return all;
  }
  int end() {
    int status = 0;
    EXPECT_EQ(::waitpid(watcher_, &status, 0), watcher_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static void serve(int fd) {
    if (::write(fd, "READY=1\n", 8) != 8) ::_exit(97);
    ::close(fd);
  }

  os::FileDescriptor said_;
  pid_t watcher_ = -1;
};

TEST_F(WatcherTest, StartsAgainWhatFailsUntilItEndsByItself) {
  start([](int number, int fd) {
    serve(fd);
    if (number == 0) ::raise(SIGKILL);
    if (number == 1) ::raise(SIGABRT);
    return number == 2 ? 1 : 40 + number;
  });
  EXPECT_EQ(said(), "READY=1\n");
  EXPECT_EQ(end(), 43);
}

TEST_F(WatcherTest, TellsOfADaemonThatNeverServes) {
  start([](int number, int) { return number == 0 ? 1 : 42; });
  EXPECT_EQ(said(), "");
  EXPECT_EQ(end(), 1);
}

TEST_F(WatcherTest, PassesTheOrderToStopOn) {
  start([](int, int fd) -> int {
    ::signal(SIGTERM, [](int) { ::_exit(7); });
    serve(fd);
    for (;;) ::pause();
  });
  char letter = 0;
  ASSERT_EQ(::read(said_.get(), &letter, 1), 1);
  ::kill(watcher_, SIGTERM);
  EXPECT_EQ(end(), 7);
}

}  // namespace
}  // namespace gpumux::daemon
