// SPDX-License-Identifier: Apache-2.0
// Goal: a watched screen can be left, scrolled, and seen to hide lines; the terminal is restored afterwards. Method:
// screens made by hand, and a child that watches at a terminal of its own. The interval is an hour, so that keys cause
// everything that happens.
#include "cli/frame/watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

TEST(Screen, WhatFitsIsShownWhole) {
  std::size_t top = 7;
  EXPECT_EQ(screen_of("head", {"a", "b"}, 4, true, top), (Lines{"head", "a", "b"}));
  EXPECT_EQ(top, 0u);
  EXPECT_EQ(screen_of("head", {}, 4, true, top), Lines{"head"});
}

TEST(Screen, WhatIsHiddenIsSaid) {
  const Lines lines{"a", "b", "c", "d", "e"};
  std::size_t top = 0;
  EXPECT_EQ(screen_of("head", lines, 5, true, top),
            (Lines{"head", "a", "b", "... lines 1 to 2 of 5: arrow keys scroll"}));
  top = 2;
  EXPECT_EQ(screen_of("head", lines, 5, true, top),
            (Lines{"head", "c", "d", "... lines 3 to 4 of 5: arrow keys scroll"}));
  top = 1000;
  EXPECT_EQ(screen_of("head", lines, 5, false, top),
            (Lines{"head", "d", "e", "... lines 4 to 5 of 5: enlarge the terminal"}));
  EXPECT_EQ(top, 3u) << "the next key up shows something else";
  EXPECT_EQ(screen_of("head", lines, 1, true, top).size(), 3u) << "a terminal without rows";
}

TEST(Watch, WithoutANumberItLooksEachSecond) {
  CLI::App app;
  const Watch watch(app);
  app.parse("--watch");
  EXPECT_TRUE(watch.is_wanted());
  EXPECT_EQ(watch.interval(), 1s);
  CLI::App other;
  const Watch slow(other);
  other.parse("--watch 2.5");
  EXPECT_EQ(slow.interval(), 2500ms);
}

class Watching : public ::testing::Test {
 protected:
  void SetUp() override {
    winsize size{.ws_row = 12, .ws_col = 100, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      ::setenv("TERM", "xterm", 1);
      CLI::App app;
      Watch watch(app);
      watch.set_runtime_dir("/somewhere");
      app.parse("--watch 3600");
      ::_exit(watch.screens("status", [](const Output&) {
        Lines lines;
        for (int i = 1; i <= 30; ++i) lines.push_back("line-" + std::to_string(i) + ".");
        return base::Result<Lines>(lines);
      }));
    }
  }
  void TearDown() override {
    if (child_ > 0 && !is_over_) ::kill(child_, SIGKILL), ::waitpid(child_, nullptr, 0);
    ::close(terminal_);
  }

  // Whether the text comes; it is searched for from what was found last.
  bool sees(std::string_view text) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    for (;;) {
      if (const std::size_t at = seen_.find(text); at != std::string::npos) {
        seen_.erase(0, at + text.size());
        return true;
      }
      pollfd output{.fd = terminal_, .events = POLLIN, .revents = 0};
      char bytes[4096];
      if (std::chrono::steady_clock::now() > deadline || ::poll(&output, 1, 1000) < 0) return false;
      if (output.revents == 0) continue;
      const ssize_t size = ::read(terminal_, bytes, sizeof bytes);
      if (size <= 0) return false;
      seen_.append(bytes, static_cast<std::size_t>(size));
    }
  }
  void press(std::string_view keys) {
    ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  bool echoes() const {
    termios now{};
    EXPECT_EQ(::tcgetattr(terminal_, &now), 0);
    return (now.c_lflag & ECHO) != 0 && (now.c_lflag & ICANON) != 0;
  }
  int end() {
    int status = -1;
    // The rest of its output must not keep it from ending.
    sees("never written");
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    is_over_ = true;
    return status;
  }

 private:
  pid_t child_ = -1;
  int terminal_ = -1;
  bool is_over_ = false;
  std::string seen_;
};

TEST_F(Watching, QuitsAtOnceAndGivesTheTerminalBack) {
  ASSERT_TRUE(sees("every 3600 s  q quits  daemon in /somewhere"));
  ASSERT_TRUE(sees("lines 1 to 9 of 30"));
  EXPECT_FALSE(echoes());
  press("q");
  const int status = end();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(echoes());
}

TEST_F(Watching, Scrolls) {
  ASSERT_TRUE(sees("lines 1 to 9 of 30"));
  press("\x1b[B");
  ASSERT_TRUE(sees("line-2.") && sees("lines 2 to 10 of 30"));
  press("\x1b[6~");
  ASSERT_TRUE(sees("lines 11 to 19 of 30"));
  press("G");
  ASSERT_TRUE(sees("lines 22 to 30 of 30"));
  press("k");
  ASSERT_TRUE(sees("lines 21 to 29 of 30"));
  press("g");
  ASSERT_TRUE(sees("lines 1 to 9 of 30"));
}

TEST_F(Watching, ASignalEndsItAndGivesTheTerminalBack) {
  ASSERT_TRUE(sees("lines 1 to 9 of 30"));
  press("\x03");
  const int status = end();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_TRUE(echoes());
}

}  // namespace
}  // namespace gpumux::cli
