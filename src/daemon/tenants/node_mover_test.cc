// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/node_mover.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "os/unix_socket.h"
#include "server/peers/process_info.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

// The test is the earlier daemon's mover. The mover that is started is a script: it serves at once, and does nothing.
class NodeMoverTest : public ::testing::Test {
 protected:
  NodeMoverTest() {
    host_.set_demand(0);
    mover_.on_may_connect([this] { ++may_connect_; });
  }
  ~NodeMoverTest() override { pool_.join(); }

  // To be started: what it does when it is.
  void write_program(const std::string& does) {
    std::ofstream(program_) << "#!/bin/sh\n" << does << '\n';
    ::chmod(program_.c_str(), 0755);
  }
  // MoverReady. Then it reads what the daemon says, until the test has ended.
  static constexpr const char* kServes =
      R"(printf '\102\000\000\000\020\000\000\000\000\000\000\000\000\000\000\000' >&0
        while kill -0 $PPID; do cat >/dev/null; sleep 0.02; done 2>/dev/null)";

  // The same, from a mover that says that it answers.
  static constexpr const char* kServesAndIsSilent =
      R"(printf '\102\000\000\000\020\000\000\000\001\000\000\000\000\000\000\000' >&0
        while kill -0 $PPID; do cat >/dev/null; sleep 0.02; done 2>/dev/null)";

  // Until it holds; false: it does not within `most`.
  bool eventually(const std::function<bool()>& holds, base::Duration most = 10s) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      io_.run_for(1ms);
      io_.restart();
    }
    return true;
  }
  // Whether the mover is asked for a connection.
  bool connect(std::uint32_t slot = 0) {
    mover_.connect(seat(slot), kAsker, {}, 0, {});
    return mover_.has_connection(seat(slot));
  }
  static constexpr base::TenantId kAsker{1};
  static NodeMover::Seat seat(std::uint32_t slot) { return {::getpid(), 1, slot}; }

  TemporaryDirectory directory_;
  const std::string program_ = directory_.path() + "/mover";
  const std::string door_ = directory_.path() + "/mover.sock";
  boost::asio::io_context io_;
  boost::asio::thread_pool pool_{1};
  HostMemory host_{io_, pool_, std::uint64_t{64} << 20};
  NodeMover mover_{io_, host_, program_, door_};
  int may_connect_ = 0;
};

TEST_F(NodeMoverTest, AStoppedMoverIsWaitedForForAWhile) {
  write_program(kServes);
  const auto door = os::listen_seqpacket(door_, 0600, 1).value();
  mover_.take_over();
  EXPECT_FALSE(connect());
  EXPECT_TRUE(mover_.knows(seat(0)));
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }, NodeMover::kTakeOverPatience + 5s));
  // The next one is started for the seat that has waited.
  EXPECT_TRUE(connect());
  EXPECT_TRUE(eventually([&] { return may_connect_ == 2; }));
  // Its own daemon is gone for the stopped one, and the door's name is the next one's.
  os::FileDescriptor accepted = os::accept_connection(door.get());
  ASSERT_TRUE(accepted);
  std::byte byte;
  EXPECT_EQ(::recv(accepted.get(), &byte, 1, MSG_DONTWAIT), 0);
  static_cast<void>(os::connect_seqpacket(door_));
  EXPECT_FALSE(os::accept_connection(door.get()));
}

TEST_F(NodeMoverTest, AfterATakeOverThatFailsTheSeatsThatWaitedAreConnected) {
  write_program(kServes);
  {
    const auto door = os::listen_seqpacket(door_, 0600, 1).value();
    mover_.take_over();
    EXPECT_FALSE(connect());
  }
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }));
  EXPECT_TRUE(mover_.knows(seat(0)));
  EXPECT_TRUE(connect());
  EXPECT_TRUE(mover_.has_connection(seat(0)));
  EXPECT_TRUE(eventually([&] { return may_connect_ == 2; }));
}

TEST_F(NodeMoverTest, ASeatThatCannotBeConnectedAtOnceIsConnectedLater) {
  EXPECT_FALSE(connect());  // there is no such program
  EXPECT_TRUE(mover_.knows(seat(0)));
  EXPECT_FALSE(mover_.why_not().empty());
  write_program(kServes);
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }));
  EXPECT_TRUE(connect());
  EXPECT_TRUE(mover_.why_not().empty());
}

// Its account's doorkeeper does not end, say.
TEST_F(NodeMoverTest, ASeatThatTheMoverDoesNotConnectAsksAgain) {
  // MoverConnected of seat 1 without a connection, when the test says so.
  const std::string go = directory_.path() + "/go";
  write_program(R"(printf '\102\000\000\000\020\000\000\000\000\000\000\000\000\000\000\000' >&0
    while kill -0 $PPID && [ ! -e )" +
                go + R"( ]; do sleep 0.01; done
    printf '\104\000\000\000\020\000\000\000\001\000\000\000\000\000\000\000' >&0
    while kill -0 $PPID; do cat >/dev/null; sleep 0.02; done 2>/dev/null)");
  ASSERT_TRUE(connect());
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }));
  mover_.look();
  EXPECT_EQ(may_connect_, 1);  // the mover has not answered yet
  std::ofstream(go) << '\n';
  ASSERT_TRUE(eventually([&] { return !mover_.has_connection(seat(0)); }));
  EXPECT_TRUE(mover_.knows(seat(0)));
  mover_.look();
  EXPECT_EQ(may_connect_, 2);
  EXPECT_TRUE(connect());
}

TEST_F(NodeMoverTest, ASeatThatWaitsAndIsClosedIsForgotten) {
  EXPECT_FALSE(connect());
  mover_.closed(seat(0));
  EXPECT_FALSE(mover_.knows(seat(0)));
}

TEST_F(NodeMoverTest, AMoverThatStandsStillIsReplaced) {
  const std::string starts = directory_.path() + "/starts";
  write_program("echo >>" + starts + "; " + kServesAndIsSilent);
  const auto count = [&] {
    std::ifstream file(starts);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  ASSERT_TRUE(connect());
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }));
  for (std::size_t look = 0; look < NodeMover::kSilentLooks; ++look) mover_.look();
  EXPECT_TRUE(mover_.has_connection(seat(0)));
  mover_.look();
  EXPECT_FALSE(mover_.has_connection(seat(0)));
  ASSERT_TRUE(eventually([&] { return may_connect_ == 2; }));
  EXPECT_EQ(count(), 2);
  EXPECT_TRUE(connect());
}

// It answers, and stands still on a GPU: the other GPUs' seats need it.
TEST_F(NodeMoverTest, AMoverThatAnswersStays) {
  // A MoverAnswered with one GPU for each message that it reads.
  write_program(R"(printf '\102\000\000\000\020\000\000\000\001\000\000\000\000\000\000\000' >&0
    while kill -0 $PPID; do
      printf '\103\000\000\000\020\000\000\000\001\000\000\000\000\000\000\000' >&0; sleep 0.01
    done 2>/dev/null)");
  ASSERT_TRUE(connect());
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }));
  for (std::size_t look = 0; look < 3 * NodeMover::kSilentLooks; ++look) {
    mover_.look();
    io_.run_for(20ms);
    io_.restart();
  }
  EXPECT_TRUE(mover_.has_connection(seat(0)));
}

TEST_F(NodeMoverTest, AMoverThatDoesNotBeginToServeIsSaid) {
  write_program("while kill -0 $PPID; do cat >/dev/null; sleep 0.02; done 2>/dev/null");
  ASSERT_TRUE(connect());
  for (std::size_t look = 1; look < NodeMover::kSilentLooks; ++look) mover_.look();
  EXPECT_EQ(mover_.why_not(), "");
  mover_.look();
  EXPECT_NE(mover_.why_not(), "");
}

// An older one.
TEST_F(NodeMoverTest, AMoverThatCannotAnswerIsNotAsked) {
  write_program(kServes);
  ASSERT_TRUE(connect());
  ASSERT_TRUE(eventually([&] { return may_connect_ == 1; }));
  for (std::size_t look = 0; look < 2 * NodeMover::kSilentLooks; ++look) mover_.look();
  EXPECT_TRUE(mover_.has_connection(seat(0)));
}

// The daemon has no descriptor left at the moment at which it would look for the process, say.
TEST_F(NodeMoverTest, ContentStaysWhileTheProcessThatHasLeftMayRun) {
  write_program(kServes);
  int until[2];
  ASSERT_EQ(::pipe2(until, O_CLOEXEC), 0);
  os::FileDescriptor end(until[1]);
  const os::FileDescriptor wait(until[0]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(until[1]);
    char byte;
    static_cast<void>(::read(until[0], &byte, 1));
    ::_exit(0);
  }
  const NodeMover::Seat its{child, server::process_info(child)->start_time, 0};
  mover_.connect(its, kAsker, {}, 0, {});
  ASSERT_TRUE(mover_.has_connection(its));
  mover_.left(its, kAsker);
  mover_.look();
  EXPECT_TRUE(mover_.knows(its));
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  mover_.look();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_TRUE(mover_.knows(its));
  // It comes back, and leaves again.
  EXPECT_TRUE(mover_.is_back(its, kAsker));
  mover_.left(its, kAsker);
  // Another process that has its number.
  const NodeMover::Seat other{child, its.process_start + 1, 0};
  mover_.connect(other, kAsker, {}, 0, {});
  ASSERT_TRUE(mover_.has_connection(other));
  mover_.left(other, kAsker);
  mover_.look();
  EXPECT_FALSE(mover_.knows(other));
  EXPECT_TRUE(mover_.knows(its));
  // It has ended, although its parent has not collected it.
  end.reset();
  ASSERT_TRUE(eventually([&] {
    mover_.look();
    return !mover_.knows(its);
  }));
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace gpumux::daemon
