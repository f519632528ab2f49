// SPDX-License-Identifier: Apache-2.0
// Goal: a tenant finds its daemon, loses it, finds it again and says what it still has; without one it runs ungated, in
// time. Method: a daemon that the test plays itself, message by message, on a real socket in a temporary directory.
#include "client/agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "client/lease_page_memory.h"
#include "os/unix_socket.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::client {
namespace {

using namespace std::chrono_literals;

constexpr int kPatienceMs = 20'000;  // far more than any step needs; a test that waits this long has failed

class RecordingPort final : public SeatPort {
 public:
  void on_connected(const wire::Welcome&, bool again) override { add(again ? "connected again" : "connected"); }
  void announce_seats() override { add("announce"); }
  void on_message(const wire::DaemonMessage& message, os::FileDescriptor) override {
    add(std::holds_alternative<wire::Revoke>(message) ? "revoke" : "message");
  }
  void on_second() override {}
  void on_closed_by_program(const std::string& what) override { add("closed: " + what); }
  void on_lost() override { add("lost"); }
  void on_ungated(const std::string& why) override { add("ungated: " + why); }

  // Waits until something said begins with `text`, from the first thing not yet waited for.
  bool wait_for(const std::string& text) {
    std::unique_lock lock(mutex_);
    const auto said = [&] {
      while (next_ < said_.size()) {
        if (said_[next_++].starts_with(text)) return true;
      }
      return false;
    };
    return changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), said);
  }

 private:
  void add(std::string text) {
    const std::lock_guard lock(mutex_);
    said_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> said_;
  std::size_t next_ = 0;
};

// The other end: what a daemon does, step by step.
class ScriptedDaemon {
 public:
  explicit ScriptedDaemon(const std::string& path) : listener_(os::listen_seqpacket(path, 0600, 8).value()) {}

  bool accept() {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kPatienceMs) != 1) return false;
    socket_ = os::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return static_cast<bool>(socket_);
  }
  std::optional<wire::TenantMessage> receive() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kPatienceMs) != 1) return std::nullopt;
    std::array<std::byte, base::kMaxMessageBytes> buffer;
    auto received = os::receive_message(socket_.get(), buffer);
    if (!received || received->bytes == 0) return std::nullopt;
    if (received->fd) page_ = std::move(received->fd);
    auto message = wire::decode_from_tenant(std::span(buffer).first(received->bytes));
    return message ? std::optional(*message) : std::nullopt;
  }
  template <class Message>
  void send(const Message& message) {
    ASSERT_TRUE(os::send_message(socket_.get(), wire::encode(message).bytes()));
  }
  void send_raw(std::span<const std::byte> bytes) { ASSERT_TRUE(os::send_message(socket_.get(), bytes)); }
  void welcome() {
    ASSERT_TRUE(accept());
    const auto hello = receive();
    ASSERT_TRUE(hello && std::holds_alternative<wire::Hello>(*hello));
    send(wire::Welcome{.protocol = 1, .tenant = 1});
  }
  void hang_up() { socket_.reset(); }
  int page() const { return page_.get(); }

 private:
  os::FileDescriptor listener_;
  os::FileDescriptor socket_;
  os::FileDescriptor page_;
};

class AgentTest : public ::testing::Test {
 protected:
  AgentOptions options(base::Duration timeout = 30s) {
    AgentOptions made{.socket_path = path_, .connect_timeout = timeout, .hello = {}, .page = &page_};
    wire::set_text(made.hello.program, "agent_test");
    return made;
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.file("tenants.sock");
  LeasePageMemory page_ = LeasePageMemory::make().value();
  RecordingPort port_;
};

TEST_F(AgentTest, HandsOverASealedPageAndAnnouncesItsSeats) {
  ScriptedDaemon daemon(path_);
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  daemon.welcome();
  ASSERT_TRUE(port_.wait_for("connected"));
  ASSERT_TRUE(port_.wait_for("announce"));

  struct stat status {};
  ASSERT_EQ(::fstat(daemon.page(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(wire::kLeasePageBytes));
  EXPECT_EQ(::fcntl(daemon.page(), F_GET_SEALS) & (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
            F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  // The same memory on both sides.
  void* theirs = ::mmap(nullptr, wire::kLeasePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, daemon.page(), 0);
  ASSERT_NE(theirs, MAP_FAILED);
  static_cast<wire::LeasePage*>(theirs)->slots[5].word.store(wire::kGranted);
  EXPECT_EQ(page_.page().slots[5].word.load(), wire::kGranted);
  ::munmap(theirs, wire::kLeasePageBytes);

  EXPECT_TRUE(agent.send(wire::Request{.slot = 5}));
  const auto request = daemon.receive();
  ASSERT_TRUE(request && std::holds_alternative<wire::Request>(*request));
  EXPECT_EQ(std::get<wire::Request>(*request).slot, 5u);
}

TEST_F(AgentTest, FindsADaemonThatComesLater) {
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  EXPECT_FALSE(agent.send(wire::Request{.slot = 0}));
  ScriptedDaemon daemon(path_);
  daemon.welcome();
  EXPECT_TRUE(port_.wait_for("connected"));
}

TEST_F(AgentTest, RunsUngatedWhenNoDaemonCame) {
  Agent agent(options(10ms), port_);
  ASSERT_TRUE(agent.start());
  EXPECT_TRUE(port_.wait_for("ungated: no daemon answers"));
}

// Its process was frozen in its first try, until long after the time for that was over: it tries once more.
TEST_F(AgentTest, TriesAgainWhenItsFirstTryTookTooLong) {
  constexpr base::Duration kTimeout = 300ms;
  ScriptedDaemon daemon(path_);
  const auto start = std::chrono::steady_clock::now();
  Agent agent(options(kTimeout), port_);
  ASSERT_TRUE(agent.start());
  ASSERT_TRUE(daemon.accept());
  std::this_thread::sleep_until(start + 2 * kTimeout);  // what is tested is that this time passes
  daemon.hang_up();
  daemon.welcome();
  EXPECT_TRUE(port_.wait_for("connected"));
}

TEST_F(AgentTest, RunsUngatedWhenItIsRefused) {
  ScriptedDaemon daemon(path_);
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  ASSERT_TRUE(daemon.accept());
  ASSERT_TRUE(daemon.receive());
  wire::Refused refused{.reason = wire::Reason::kDenied};
  wire::set_text(refused.text, "user 7 may not connect");
  daemon.send(refused);
  EXPECT_TRUE(port_.wait_for("ungated: the daemon refuses this process: user 7 may not connect"));
}

TEST_F(AgentTest, ComesBackAfterALossHoweverLongItTakes) {
  Agent agent(options(1ns), port_);  // the timeout is for the first connection only
  {
    ScriptedDaemon daemon(path_);
    ASSERT_TRUE(agent.start());
    daemon.welcome();
    ASSERT_TRUE(port_.wait_for("announce"));
  }
  ASSERT_TRUE(port_.wait_for("lost"));
  EXPECT_FALSE(agent.send(wire::GateClosed{.slot = 0}));
  ScriptedDaemon next(path_);
  next.welcome();
  EXPECT_TRUE(port_.wait_for("connected again"));
  EXPECT_TRUE(port_.wait_for("announce"));
}

TEST_F(AgentTest, GarbageFromTheDaemonIsLeftAlone) {
  ScriptedDaemon daemon(path_);
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  daemon.welcome();
  const std::array<std::byte, 100> garbage{std::byte{0x5a}};
  daemon.send_raw(garbage);
  daemon.send(wire::Revoke{.slot = 1, .epoch = 2});
  EXPECT_TRUE(port_.wait_for("revoke"));
}

TEST_F(AgentTest, ADaemonThatDoesNotReadIsLeftAndFoundAgain) {
  ScriptedDaemon daemon(path_);
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  daemon.welcome();
  ASSERT_TRUE(port_.wait_for("announce"));
  // Requests may be lost without harm; a Drained may not, so the first that does not fit ends the connection.
  while (agent.send(wire::Request{.slot = 0})) {
  }
  ASSERT_TRUE(daemon.receive()) << "room for one more";
  EXPECT_TRUE(agent.send(wire::Request{.slot = 0})) << "on the same connection";
  EXPECT_FALSE(agent.send(wire::Drained{.slot = 0, .epoch = 1}));
  ASSERT_TRUE(port_.wait_for("lost"));
  daemon.welcome();
  EXPECT_TRUE(port_.wait_for("connected again"));
}

// tests/e2e/lifecycle_test.py has the other descriptors that a program may close.
TEST_F(AgentTest, WithoutItsPageItGoesToNoFurtherDaemon) {
  ScriptedDaemon daemon(path_);
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  daemon.welcome();
  ASSERT_TRUE(port_.wait_for("connected"));
  const int number = page_.fd();
  ASSERT_EQ(::dup2(daemon.page(), number), number) << "the same file is no other file";
  EXPECT_EQ(page_.fd(), number);
  ASSERT_EQ(::dup2(STDERR_FILENO, number), number);
  daemon.hang_up();
  EXPECT_TRUE(port_.wait_for("lost"));
  EXPECT_TRUE(port_.wait_for("ungated: the program has closed its lease page"));
  ::close(number);
}

TEST_F(AgentTest, WakeAnnouncesAgain) {
  ScriptedDaemon daemon(path_);
  Agent agent(options(), port_);
  ASSERT_TRUE(agent.start());
  daemon.welcome();
  ASSERT_TRUE(port_.wait_for("announce"));
  agent.wake();
  EXPECT_TRUE(port_.wait_for("announce"));
}

}  // namespace
}  // namespace gpumux::client
