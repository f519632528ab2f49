// SPDX-License-Identifier: Apache-2.0
// Goal: frames are given, taken and freed once each. A daemon hears of its own only, and no thread waits for a daemon
// that is gone. Method: a port that writes down what the daemon would be told, descriptors of files.
#include "shim/memory/seat_frames.h"
#include "tests/unit/new_descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

namespace gpumux::shim {
namespace {

constexpr std::uint64_t kBytes = base::kMostFrameBytes;

os::FileDescriptor any_file() { return os::FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

class Daemon final : public SeatFrames::Port {
 public:
  bool give_frame(const wire::FrameGiven& frame, int fd) override {
    EXPECT_EQ(frame.slot, 3u);
    EXPECT_EQ(frame.number == 0, fd >= 0);
    if (is_there) given.push_back(frame);
    return is_there;
  }
  bool freed_frame(const wire::FrameFreed& frame) override {
    if (!is_there || reads == 0) return false;
    --reads;
    freed.push_back(frame.number);
    return true;
  }
  bool ask_for_frame(const wire::FrameWanted& frame) override {
    if (is_there) on_asked(frame.number);
    return is_there;
  }
  void wake_mover() override { ++wakes; }

  bool is_there = true;
  int reads = 1'000'000;  // this many messages
  std::vector<wire::FrameGiven> given;
  std::vector<std::uint64_t> freed;
  std::function<void(std::uint64_t)> on_asked = [](std::uint64_t) {};
  std::atomic<int> wakes{0};
};

class SeatFramesTest : public ::testing::Test {
 protected:
  void lend(std::uint64_t number, std::uint64_t bytes = kBytes) {
    frames_.on_lent({.slot = 3, .number = number, .bytes = bytes}, any_file());
  }
  void want(base::FrameSizes sizes) { frames_.on_room({.slot = 3, .room = ++room_, .frames = sizes}); }
  std::uint64_t take(std::uint64_t bytes = kBytes) {
    const auto lent = frames_.take(bytes);
    if (!lent) return 0;
    EXPECT_TRUE(is_open(lent->fd));
    ::close(lent->fd);
    return lent->number;
  }
  std::vector<std::uint64_t> told() {
    frames_.tell_freed();
    return std::exchange(daemon_.freed, {});
  }

  Daemon daemon_;
  SeatFrames frames_{daemon_, 3};
  std::uint64_t room_ = 0;
};

TEST_F(SeatFramesTest, OnlyWhatIsWaitedForIsGiven) {
  EXPECT_FALSE(frames_.wants(0, kBytes));
  want(base::frame_size(kBytes));
  EXPECT_TRUE(frames_.wants(0, kBytes));
  EXPECT_FALSE(frames_.wants(0, kBytes / 2));
  EXPECT_FALSE(frames_.wants(0, base::kLeastFrameBytes - base::kFrameStep)) << "too small for a descriptor";
  os::FileDescriptor file = any_file();
  const int fd = file.release();
  frames_.give(0, kBytes, fd);
  ASSERT_EQ(daemon_.given.size(), 1u);
  EXPECT_EQ(daemon_.given[0].bytes, kBytes);
  EXPECT_FALSE(is_open(fd)) << "the daemon has its own";
}

TEST_F(SeatFramesTest, WhatIsLentIsTakenOnceAndGivenByItsNumber) {
  EXPECT_EQ(frames_.at_hand(), 0u);
  lend(7);
  lend(8, kBytes / 2);
  EXPECT_EQ(frames_.at_hand(), base::frame_size(kBytes) | base::frame_size(kBytes / 2));
  const std::uint64_t number = take();
  EXPECT_NE(number, 0u);
  EXPECT_EQ(take(), 0u);
  want(base::frame_size(kBytes));
  EXPECT_TRUE(frames_.wants(number, kBytes));
  frames_.give(number, kBytes, -1);
  ASSERT_EQ(daemon_.given.size(), 1u);
  EXPECT_EQ(daemon_.given[0].number, 7u);
  frames_.freed(take(kBytes / 2));
  EXPECT_EQ(daemon_.wakes, 1);
  EXPECT_TRUE(daemon_.freed.empty()) << "not by whoever frees: that thread may hold any lock";
  EXPECT_EQ(told(), std::vector<std::uint64_t>{8});
  EXPECT_TRUE(told().empty());
}

TEST_F(SeatFramesTest, WhatIsOfNoUseGoesBack) {
  lend(7);
  lend(8);
  frames_.drop();
  EXPECT_EQ(frames_.at_hand(), 0u);
  EXPECT_EQ(told(), (std::vector<std::uint64_t>{7, 8}));
}

TEST_F(SeatFramesTest, AFrameThatTheProgramHasReplacedGoesBack) {
  const std::vector<int> lent = new_descriptors([this] { lend(7); });
  ASSERT_EQ(lent.size(), 1u);
  const os::FileDescriptor programs(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::dup2(programs.get(), lent[0]), lent[0]);
  lend(8);
  EXPECT_EQ(take() % wire::kFrameNumbers, 8u);
  EXPECT_EQ(told(), std::vector<std::uint64_t>{7});
  EXPECT_EQ(frames_.at_hand(), 0u);
  EXPECT_TRUE(is_open(lent[0])) << "it is the program's";
  ::close(lent[0]);
}

TEST_F(SeatFramesTest, ALowerBoundTakesBackWhatWasLentAheadOfIt) {
  want(0);
  lend(7);
  want(0);
  EXPECT_NE(frames_.at_hand(), 0u);
  frames_.on_room({.slot = 3, .room = room_ - 1});
  EXPECT_EQ(frames_.at_hand(), 0u);
  EXPECT_EQ(told(), std::vector<std::uint64_t>{7});
}

TEST_F(SeatFramesTest, ADaemonThatReadsSlowlyIsToldLater) {
  for (std::uint64_t number = 1; number <= 60; ++number) lend(number);
  frames_.drop();
  for (std::uint64_t number = 61; number <= 100; ++number) lend(number);
  frames_.drop();
  daemon_.reads = 10;
  EXPECT_FALSE(frames_.tell_freed());
  EXPECT_EQ(daemon_.freed.size(), 10u);
  daemon_.reads = 1000;
  EXPECT_FALSE(frames_.tell_freed()) << "so many at once";
  EXPECT_EQ(daemon_.freed.size(), 10u + 64);
  EXPECT_TRUE(frames_.tell_freed());
  std::sort(daemon_.freed.begin(), daemon_.freed.end());
  ASSERT_EQ(daemon_.freed.size(), 100u);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(daemon_.freed[i], i + 1);
}

TEST_F(SeatFramesTest, TooManyGoBack) {
  for (std::uint64_t number = 1; number <= 66; ++number) lend(number);
  EXPECT_EQ(told(), (std::vector<std::uint64_t>{65, 66}));
  frames_.on_lent({.slot = 3, .number = 67, .bytes = kBytes}, {});
  EXPECT_EQ(told(), std::vector<std::uint64_t>{67}) << "its descriptor was lost on the way";
  frames_.close_all();
  EXPECT_EQ(frames_.at_hand(), 0u);
  EXPECT_TRUE(told().empty()) << "a child says nothing";
}

TEST_F(SeatFramesTest, AnotherDaemonKnowsNothingOfThem) {
  lend(7);
  lend(8);
  const std::uint64_t number = take();
  want(base::frame_size(kBytes));
  frames_.on_lost();
  EXPECT_EQ(frames_.at_hand(), 0u);
  EXPECT_FALSE(frames_.wants(0, kBytes)) << "nobody has said so";
  want(base::frame_size(kBytes));
  EXPECT_FALSE(frames_.wants(number, kBytes)) << "it cannot be exported";
  EXPECT_TRUE(frames_.wants(0, kBytes));
  frames_.give(number, kBytes, -1);
  frames_.freed(number);
  EXPECT_TRUE(daemon_.given.empty());
  EXPECT_TRUE(told().empty());
  EXPECT_EQ(frames_.descriptor(number), -1);
  lend(7);  // the same number, and another frame
  EXPECT_NE(take(), number);
}

TEST_F(SeatFramesTest, ADescriptorIsAskedForAndAwaited) {
  lend(7);
  const std::uint64_t number = take();
  std::thread agent;
  daemon_.on_asked = [&](std::uint64_t asked) {
    EXPECT_EQ(asked, 7u);
    agent = std::thread([&] {
      frames_.on_lent({.slot = 3, .number = 9}, any_file());  // an answer to nothing
      frames_.on_lent({.slot = 3, .number = 7}, any_file());
    });
  };
  const int fd = frames_.descriptor(number);
  agent.join();
  EXPECT_TRUE(is_open(fd));
  ::close(fd);
  // The daemon no longer has it; there is no daemon; it ends during the wait.
  daemon_.on_asked = [&](std::uint64_t) { frames_.on_lent({.slot = 3, .number = 7}, {}); };
  EXPECT_EQ(frames_.descriptor(number), -1);
  daemon_.is_there = false;
  EXPECT_EQ(frames_.descriptor(number), -1);
  daemon_.is_there = true;
  daemon_.on_asked = [&](std::uint64_t) { agent = std::thread([&] { frames_.on_lost(); }); };
  EXPECT_EQ(frames_.descriptor(number), -1);
  agent.join();
}

TEST_F(SeatFramesTest, SeveralAskAtOnce) {
  for (std::uint64_t number = 1; number <= 4; ++number) lend(number);
  daemon_.on_asked = [&](std::uint64_t asked) {
    std::thread([this, asked] { frames_.on_lent({.slot = 3, .number = asked}, any_file()); }).detach();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, number = take()] {
      const int fd = frames_.descriptor(number);
      EXPECT_TRUE(is_open(fd));
      ::close(fd);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gpumux::shim
