// SPDX-License-Identifier: Apache-2.0
// Goal: the keys reach the job and nothing else does, and the job's output is seen once and whole. Ctrl+C does what it
// says, and the terminal is always restored. Method: the terminal by itself in a thread, on a real pty; at the other
// end of its socket a scripted runner.
#include "cli/jobs/attached_terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

#include "os/unix_socket.h"
#include "tests/unit/temporary_directory.h"
#include "wire/runner_messages.h"

namespace gpumux::cli {
namespace {

using namespace std::chrono_literals;
using base::TimePoint;

constexpr int kPatienceMs = 30'000;

bool readable(int fd, int timeout_ms = kPatienceMs) {
  pollfd item{fd, POLLIN, 0};
  int result;
  do {
    result = ::poll(&item, 1, timeout_ms);
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

TEST(InterruptRuleTest, OnceLeavesTwiceCancels) {
  InterruptRule rule;
  const TimePoint start{};
  EXPECT_EQ(rule.press(start), InterruptRule::Meaning::kLeaveSoon);
  EXPECT_FALSE(rule.leaves(start + 999ms));
  EXPECT_TRUE(rule.leaves(start + 1s));
  InterruptRule twice;
  twice.press(start);
  EXPECT_EQ(twice.press(start + 900ms), InterruptRule::Meaning::kCancel);
  EXPECT_FALSE(twice.leaves(start + 10s)) << "the end is waited for";
  EXPECT_EQ(twice.press(start + 20s), InterruptRule::Meaning::kLeaveNow);
}

TEST(EndStatusTest, AsAShellGivesIt) {
  using wire::AttachEnded;
  using wire::EndHow;
  const auto status = [](EndHow how, std::uint32_t code) {
    return exit_status_of_end(AttachEnded{static_cast<std::uint32_t>(how), code});
  };
  EXPECT_EQ(status(EndHow::kExited, 3), 3);
  EXPECT_EQ(status(EndHow::kSignaled, 9), 137);
  EXPECT_EQ(status(EndHow::kNotStarted, 127), 127);
  EXPECT_EQ(status(EndHow::kSetupFailed, 2), 2);
  EXPECT_EQ(status(EndHow::kSetupFailed, 0), 1) << "never taken for a good end";
  EXPECT_FALSE(exit_status_of_end({0, 0})) << "nobody knows";
}

// The other side, message by message.
class Runner {
 public:
  explicit Runner(const std::string& path) : listener_(os::listen_seqpacket(path, 0600, 8).value()) {}

  // The next connection, and what it said first.
  wire::AttachHello accept() {
    EXPECT_TRUE(readable(listener_.get()));
    socket_ = os::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const auto message = next();
    EXPECT_TRUE(message && std::holds_alternative<wire::AttachHello>(*message));
    return message ? std::get<wire::AttachHello>(*message) : wire::AttachHello{};
  }

  template <class Message>
  void send(const Message& message) {
    ASSERT_TRUE(os::send_message(socket_.get(), wire::encode(message).bytes()));
  }
  void send_bytes(std::span<const std::byte> bytes) { ASSERT_TRUE(os::send_message(socket_.get(), bytes)); }
  void print(std::string_view bytes) {
    const wire::Header header = wire::attach_header(wire::AttachType::kOutput, bytes.size());
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message += bytes;
    for (;;) {
      if (os::send_message(socket_.get(), std::as_bytes(std::span(message)))) return;
      pollfd item{socket_.get(), POLLOUT, 0};
      ASSERT_GT(::poll(&item, 1, kPatienceMs), 0);
    }
  }

  // Nothing: the client is gone.
  std::optional<wire::FromAttached> next() {
    if (!readable(socket_.get())) return std::nullopt;
    const auto received = os::receive_message(socket_.get(), buffer_);
    if (!received || received->bytes == 0) return std::nullopt;
    auto message = wire::decode_from_attached(std::span(buffer_.data(), received->bytes));
    EXPECT_TRUE(message);
    return message ? std::optional(*message) : std::nullopt;
  }
  // The bytes that have been typed, at least `length` of them.
  std::string typed(std::size_t length) {
    std::string text;
    while (text.size() < length) {
      const auto message = next();
      if (!message) break;
      if (const auto* input = std::get_if<wire::AttachInput>(&*message)) text += input->bytes;
    }
    return text;
  }
  void hang_up() { socket_.reset(); }
  bool is_gone() {
    while (const auto message = next()) {
    }
    return true;
  }

 private:
  os::FileDescriptor listener_;
  os::FileDescriptor socket_;
  std::array<std::byte, wire::kMaxAttachInputBytes + 64> buffer_;
};

class AttachedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    runner_.emplace(path());
    int user = -1;
    int ours = -1;
    const winsize size{40, 120, 0, 0};
    ASSERT_EQ(::openpty(&user, &ours, nullptr, nullptr, &size), 0);
    user_ = os::FileDescriptor(user);
    tty_ = os::FileDescriptor(ours);
    ASSERT_EQ(::tcgetattr(tty_.get(), &before_), 0);
    options_.label = "17";
    options_.input = options_.output = tty_.get();
    options_.cancel = [this]() -> base::Status {
      ++cancels_;
      return cancel_result_;
    };
    options_.say = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      said_ += line + "\n";
    };
  }
  void TearDown() override {
    if (thread_.joinable()) thread_.join();
    termios after{};
    if (::tcgetattr(tty_.get(), &after) == 0) {
      EXPECT_EQ(after.c_lflag, before_.c_lflag);
      EXPECT_EQ(after.c_iflag, before_.c_iflag);
      EXPECT_EQ(after.c_oflag, before_.c_oflag);
    }
  }

  std::string path() const { return dir_ + "/attach.sock"; }
  std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

  void make_terminal() { terminal_.emplace(options_, signals_); }
  void start() {
    if (!terminal_) make_terminal();
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([this] { outcome_ = terminal_->run(path()); });
  }
  AttachedOutcome finish() {
    thread_.join();
    EXPECT_TRUE(outcome_) << outcome_.error().message();
    return outcome_.value_or(AttachedOutcome{});
  }
  void welcome(std::uint64_t from = 0, std::uint64_t until = 0) {
    runner_->send(wire::AttachWelcome{.from = from, .until = until});
  }
  void type(std::string_view keys) {
    ASSERT_EQ(::write(user_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  std::string seen(std::size_t length) {
    std::string text;
    char buffer[4096];
    while (text.size() < length && readable(user_.get())) {
      const ssize_t got = ::read(user_.get(), buffer, sizeof buffer);
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }
  void end(std::uint32_t code) {
    runner_->send(wire::AttachEnded{static_cast<std::uint32_t>(wire::EndHow::kExited), code});
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
  SignalPipe signals_;
  std::optional<Runner> runner_;
  os::FileDescriptor user_;  // where a person would sit
  os::FileDescriptor tty_;
  termios before_{};
  AttachedOptions options_;
  std::optional<AttachedTerminal> terminal_;
  base::Result<AttachedOutcome> outcome_;
  std::thread thread_;
  std::mutex mutex_;
  std::string said_;
  std::atomic<int> cancels_ = 0;
  base::Status cancel_result_;
};

TEST_F(AttachedTest, KeysGoThereOutputComesBackAndTheEndIsTold) {
  start();
  const auto hello = runner_->accept();
  EXPECT_EQ(hello.from, 0u);
  EXPECT_EQ(hello.window.rows, 40);
  EXPECT_EQ(hello.window.columns, 120);
  welcome();
  runner_->print("missed\r\n");
  runner_->print("\x1b[31mred\xff");
  EXPECT_EQ(seen(13), "missed\r\n\x1b[31mred\xff") << "byte for byte";
  type("ls\r\x1a\x1c\x04");
  EXPECT_EQ(runner_->typed(6), "ls\r\x1a\x1c\x04") << "Ctrl+Z, Ctrl+\\ and Ctrl+D are the job's";
  end(3);
  const auto outcome = finish();
  EXPECT_EQ(outcome.how, AttachedHow::kEnded);
  EXPECT_EQ(exit_status_of_end(outcome.ended), 3);
}

TEST_F(AttachedTest, CtrlCLeavesAfterASecondAndTheJobHearsNothingOfIt) {
  start();
  runner_->accept();
  welcome();
  const auto begin = std::chrono::steady_clock::now();
  type(
      "a\x03"
      "b");
  EXPECT_EQ(runner_->typed(2), "ab");
  runner_->print("still shown");
  EXPECT_EQ(seen(11), "still shown");
  const auto outcome = finish();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 900ms);
  EXPECT_EQ(outcome.how, AttachedHow::kLeft);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(cancels_, 0);
  EXPECT_NE(said().find("which goes on; once more within a second cancels it"), std::string::npos) << said();
}

TEST_F(AttachedTest, CtrlCTwiceCancelsAndWaitsForTheEnd) {
  start();
  runner_->accept();
  welcome();
  type("\x03\x03");
  runner_->print("Terminated");
  EXPECT_EQ(seen(10), "Terminated");
  end(143);
  const auto outcome = finish();
  EXPECT_EQ(outcome.how, AttachedHow::kEnded);
  EXPECT_EQ(cancels_, 1);
  EXPECT_NE(said().find("is being cancelled"), std::string::npos);
}

TEST_F(AttachedTest, AThirdPressDoesNotWaitForTheEnd) {
  start();
  runner_->accept();
  welcome();
  type("\x03\x03\x03");
  EXPECT_EQ(finish().how, AttachedHow::kLeft);
  EXPECT_EQ(cancels_, 1);
}

TEST_F(AttachedTest, ACancelThatFailsIsSaidAndLeaves) {
  cancel_result_ = base::fail(base::Code::kUnavailable, "no daemon is running");
  start();
  runner_->accept();
  welcome();
  type("\x03\x03");
  EXPECT_EQ(finish().how, AttachedHow::kLeft);
  EXPECT_NE(said().find("could not be cancelled: no daemon is running"), std::string::npos);
}

TEST_F(AttachedTest, ANewSizeOfTheWindowIsPassedOn) {
  start();
  runner_->accept();
  welcome();
  const winsize size{50, 132, 0, 0};
  ASSERT_EQ(::ioctl(tty_.get(), TIOCSWINSZ, &size), 0);
  // No controlling terminal here, so the kernel sends no signal.
  ::raise(SIGWINCH);
  const auto message = runner_->next();
  ASSERT_TRUE(message && std::holds_alternative<wire::AttachResize>(*message));
  EXPECT_EQ(std::get<wire::AttachResize>(*message).window.columns, 132);
  end(0);
  finish();
}

TEST_F(AttachedTest, WhoLagsComesBackWhereHeWas) {
  start();
  runner_->accept();
  welcome();
  runner_->print("12345");
  runner_->send(wire::AttachLagging{.next = 5});
  EXPECT_EQ(finish().how, AttachedHow::kDisconnected);
  start();
  EXPECT_EQ(runner_->accept().from, 5u);
  welcome(9, 20);
  runner_->print("x");
  EXPECT_EQ(seen(6), "12345x");
  end(0);
  EXPECT_EQ(finish().how, AttachedHow::kEnded);
  EXPECT_NE(said().find("4 bytes of output are not shown"), std::string::npos) << said();
}

TEST_F(AttachedTest, ARunnerThatDiesDisconnectsAndIsReconnectedTo) {
  start();
  runner_->accept();
  welcome();
  runner_->print("abc");
  runner_->hang_up();
  EXPECT_EQ(finish().how, AttachedHow::kDisconnected);
  start();
  EXPECT_EQ(runner_->accept().from, 3u) << "nothing is shown twice";
  runner_->hang_up();
  EXPECT_EQ(finish().how, AttachedHow::kDisconnected);
  runner_.reset();
  ::unlink(path().c_str());
  start();
  thread_.join();
  ASSERT_FALSE(outcome_);
  EXPECT_EQ(outcome_.error().code, base::Code::kNotFound);
}

TEST_F(AttachedTest, NonsenseIsAnErrorNotACrash) {
  start();
  runner_->accept();
  const wire::Header wrong{4711, 8};
  runner_->send_bytes(std::as_bytes(std::span(&wrong, 1)));
  thread_.join();
  ASSERT_FALSE(outcome_);
  EXPECT_EQ(outcome_.error().code, base::Code::kProtocol);
}

TEST_F(AttachedTest, SignalsThatEndLeaveTheTerminalAsItWas) {
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) {
    start();
    runner_->accept();
    welcome();
    runner_->print("x");
    EXPECT_EQ(seen(1), "x");
    ::raise(signal);
    const auto outcome = finish();
    EXPECT_EQ(outcome.how, AttachedHow::kLeft);
    EXPECT_EQ(outcome.signal, signal);
    termios after{};
    ASSERT_EQ(::tcgetattr(tty_.get(), &after), 0);
    EXPECT_EQ(after.c_lflag, before_.c_lflag);
    runner_->hang_up();
  }
}

TEST_F(AttachedTest, ATerminalThatGoesAwayIsLikeAHangup) {
  start();
  runner_->accept();
  welcome();
  user_.reset();
  const auto outcome = finish();
  EXPECT_EQ(outcome.how, AttachedHow::kLeft);
  EXPECT_EQ(outcome.signal, SIGHUP);
}

TEST_F(AttachedTest, APipesEndEndsNothingAndItsBytesAreNotKeys) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const os::FileDescriptor read_end(ends[0]);
  os::FileDescriptor write_end(ends[1]);
  options_.input = read_end.get();
  start();
  runner_->accept();
  welcome();
  ASSERT_EQ(::write(write_end.get(), "a\x03z", 3), 3);
  EXPECT_EQ(runner_->typed(3), "a\x03z");
  write_end.reset();
  runner_->print("more");
  EXPECT_EQ(seen(4), "more") << "after the end of the input";
  end(0);
  EXPECT_EQ(finish().how, AttachedHow::kEnded);
}

TEST_F(AttachedTest, WithoutATerminalSigintIsTheKey) {
  const os::FileDescriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  options_.input = null.get();
  start();
  runner_->accept();
  welcome();
  ::raise(SIGINT);
  ::raise(SIGINT);
  // Else the job may end before the keys are read.
  while (cancels_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  end(0);
  EXPECT_EQ(finish().how, AttachedHow::kEnded);
  EXPECT_EQ(cancels_, 1);
}

TEST_F(AttachedTest, AJobThatReadsNothingBlocksNobody) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const os::FileDescriptor read_end(ends[0]);
  os::FileDescriptor write_end(ends[1]);
  options_.input = read_end.get();
  start();
  runner_->accept();
  welcome();
  // More than every buffer on the way holds, while the runner reads nothing and prints.
  const std::string text(4 << 20, 'i');
  std::string_view left = text;
  std::thread writer([&] {
    while (!left.empty()) {
      const ssize_t wrote = ::write(write_end.get(), left.data(), left.size());
      if (wrote > 0) left.remove_prefix(static_cast<std::size_t>(wrote));
      pollfd item{write_end.get(), POLLOUT, 0};
      if (wrote < 0 && ::poll(&item, 1, kPatienceMs) <= 0) return;
    }
  });
  for (int i = 0; i < 50; ++i) runner_->print("still alive ");
  EXPECT_EQ(seen(600).size(), 600u);
  EXPECT_EQ(runner_->typed(text.size()), text) << "and then all of it arrives";
  writer.join();
  end(0);
  finish();
}

TEST_F(AttachedTest, AFloodOfOutputArrivesWhole) {
  start();
  runner_->accept();
  welcome();
  std::string all;
  std::string got;
  std::thread reader([&] { got = seen(std::size_t{200} * 16000); });
  for (int i = 0; i < 200; ++i) {
    const std::string block(16000, static_cast<char>('a' + i % 26));
    all += block;
    runner_->print(block);
  }
  reader.join();
  EXPECT_TRUE(got == all);
  end(0);
  finish();
}

TEST(DetachKeysTest, AreReadAsDockerHasThem) {
  for (const char* good : {"ctrl-p,ctrl-q", "ctrl-]", "q", "ctrl-A,B", "ctrl-@,ctrl-_"})
    EXPECT_TRUE(DetachKeys::parse(good)) << good;
  for (const char* wrong : {"", "ctrl-", "ctrl-pq", "ctrl-1", "1", "ctrl-p,", ",q", "alt-p", "pq"})
    EXPECT_FALSE(DetachKeys::parse(wrong)) << wrong;
}

TEST(DetachKeysTest, AreFoundHoweverTheyAreTyped) {
  auto keys = DetachKeys::parse("ctrl-p,ctrl-q").value();
  std::string others;
  EXPECT_FALSE(keys.typed("a\x10", others));
  EXPECT_EQ(others, "a") << "what may be the beginning is kept back";
  EXPECT_FALSE(keys.typed("\x10z\x03", others));
  EXPECT_EQ(others, "a\x10\x10z\x03") << "Ctrl+C is a key like any other";
  EXPECT_FALSE(keys.typed("\x10", others));
  EXPECT_TRUE(keys.typed("\x11more", others));
  EXPECT_EQ(others, "a\x10\x10z\x03");
}

}  // namespace
}  // namespace gpumux::cli
