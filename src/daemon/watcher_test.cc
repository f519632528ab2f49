// SPDX-License-Identifier: Apache-2.0
// Goal: a daemon that is killed starts again, one that ends by itself does not, and one that dies each time is given
// up.
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

TEST(RestartPause, GrowsWithEachDeathSoonAfterAStart) {
  RestartPause pauses;
  EXPECT_EQ(pauses.after(1ms), 100ms);
  EXPECT_EQ(pauses.after(1ms), 200ms);
  EXPECT_EQ(pauses.after(9s), 400ms);
  EXPECT_EQ(pauses.after(11s), 100ms) << "it had done its work";
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(pauses.after(1s));
  EXPECT_FALSE(pauses.after(1s));
}

// Runs watch() in a process of its own, whose children write a letter each.
class WatcherTest : public ::testing::Test {
 protected:
  void start(int (*run)(int number, int notify_fd)) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    said_ = os::FileDescriptor(ends[0]);
    watcher_ = ::fork();
    if (watcher_ == 0) {
      int starts[2];
      if (::pipe(starts) != 0) ::_exit(99);
      for (char i = 0; i < 9; ++i) {
        if (::write(starts[1], &i, 1) != 1) ::_exit(99);
      }
      ::_exit(watch(ends[1], [&](int notify_fd) -> int {
        char number = 0;
        if (::read(starts[0], &number, 1) != 1) ::_exit(98);
        ::_exit(run(number, notify_fd));
      }));
    }
    ::close(ends[1]);
  }
  // All that the children have written, when the last one has ended or closed it.
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

  os::FileDescriptor said_;
  pid_t watcher_ = -1;
};

TEST_F(WatcherTest, StartsAgainWhatIsKilledUntilItEndsByItself) {
  start([](int number, int notify_fd) {
    if (number == 0 && ::write(notify_fd, "r", 1) != 1) return 97;
    if (number > 0 && notify_fd != -1) return 96;
    if (number < 2) ::raise(number == 0 ? SIGKILL : SIGABRT);
    return 40 + number;
  });
  EXPECT_EQ(said(), "r");
  EXPECT_EQ(end(), 42);
}

TEST_F(WatcherTest, PassesTheOrderToStopOn) {
  start([](int, int notify_fd) {
    ::signal(SIGTERM, [](int) { ::_exit(7); });
    if (::write(notify_fd, "r", 1) != 1) return 97;
    for (;;) ::pause();
  });
  char letter = 0;
  ASSERT_EQ(::read(said_.get(), &letter, 1), 1);
  ::kill(watcher_, SIGTERM);
  EXPECT_EQ(end(), 7);
}

}  // namespace
}  // namespace gpumux::daemon
