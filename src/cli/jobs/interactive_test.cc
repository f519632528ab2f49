// SPDX-License-Identifier: Apache-2.0
// Goal: interactive jobs as a user at a terminal meets them: the terminal's text, the effect of keys and signals, the
// exit status. Method: the real executable on a pty of its own; a scripted daemon behind it, and a scripted runner.
#include <poll.h>
#include <pty.h>
#include <signal.h>

#include <array>
#include <filesystem>
#include <span>
#include <string_view>

#include "cli/jobs/commands_test_support.h"
#include "os/file_descriptor.h"
#include "os/unix_socket.h"
#include "wire/attach_messages.h"
#include "wire/runner_messages.h"

namespace gpumux::cli {
namespace {

constexpr int kShownWithinMs = 30'000;

// A command on a terminal of its own, and the runner of its job.
class InteractiveTest : public JobCommandTest {
 protected:
  void SetUp() override {
    JobCommandTest::SetUp();
    listener_ = os::listen_seqpacket(dir_ + "/attach.sock", 0600, 4).value();
  }

  void start(const std::vector<std::string>& arguments) {
    int terminal = -1;
    const winsize size{30, 90, 0, 0};
    child_ = ::forkpty(&terminal, nullptr, nullptr, &size);
    if (child_ == 0) become(GPUMUX, arguments);
    terminal_ = os::FileDescriptor(terminal);
  }
  // Reads what the terminal shows until it has shown `text`.
  // False: it cannot come any more, or `instead` has come.
  bool see(const std::string& text, const std::string& instead = "") {
    while (shown_.find(text) == std::string::npos) {
      if (!instead.empty() && shown_.find(instead) != std::string::npos) return false;
      pollfd item{terminal_.get(), POLLIN, 0};
      char buffer[1024];
      if (::poll(&item, 1, kShownWithinMs) <= 0) return false;
      const ssize_t got = ::read(terminal_.get(), buffer, sizeof buffer);
      if (got <= 0) return false;
      shown_.append(buffer, static_cast<std::size_t>(got));
    }
    return true;
  }
  void type(std::string_view keys) {
    ASSERT_EQ(::write(terminal_.get(), keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void accept() {
    pollfd item{listener_.get(), POLLIN, 0};
    ASSERT_GT(::poll(&item, 1, kShownWithinMs), 0) << shown_;
    socket_ = os::FileDescriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ASSERT_TRUE(std::holds_alternative<wire::AttachHello>(hear()));
    send(wire::AttachWelcome{});
  }
  wire::FromAttached hear() {
    pollfd item{socket_.get(), POLLIN, 0};
    std::array<std::byte, wire::kMaxAttachInputBytes + 64> buffer;
    if (::poll(&item, 1, kShownWithinMs) <= 0) return {};
    const auto received = os::receive_message(socket_.get(), buffer);
    if (!received || received->bytes == 0) return {};
    auto message = wire::decode_from_attached(std::span(buffer.data(), received->bytes)).value();
    if (const auto* input = std::get_if<wire::AttachInput>(&message)) typed_ += input->bytes;
    return message;
  }
  template <class Message>
  void send(const Message& message) {
    ASSERT_TRUE(os::send_message(socket_.get(), wire::encode(message).bytes()));
  }
  void print(std::string_view bytes) {
    const wire::Header header = wire::attach_header(wire::AttachType::kOutput, bytes.size());
    std::string message(reinterpret_cast<const char*>(&header), sizeof header);
    message += bytes;
    ASSERT_TRUE(os::send_message(socket_.get(), std::as_bytes(std::span(message))));
  }
  void end(std::uint32_t code) { send(wire::AttachEnded{static_cast<std::uint32_t>(wire::EndHow::kExited), code}); }
  json running() {
    json result = job("running");
    result["attach"] = dir_ + "/attach.sock";
    return result;
  }

  os::FileDescriptor listener_;
  os::FileDescriptor socket_;
  os::FileDescriptor terminal_;
  pid_t child_ = -1;
  std::string shown_;
  std::string typed_;
};

TEST_F(InteractiveTest, FromTheQueueToTheExitStatus) {
  json queued = job("queued");
  queued["place"] = 3;
  queued["why"] = "other jobs go first";
  queued["gpus"] = json::array();
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  answer("GET /v1/jobs/17/wait", queued);
  serve();
  start({"submit", "--interactive", "--", "sh"});
  ASSERT_TRUE(see("job 17 waits: place 3; other jobs go first")) << shown_;
  answer("GET /v1/jobs/17/wait", running());
  accept();
  print("hello");
  ASSERT_TRUE(see("hello")) << shown_;
  type("exit 3\r");
  hear();
  EXPECT_EQ(typed_, "exit 3\r");
  answer("GET /v1/jobs/17/wait", done("failed", 3));
  end(3);
  EXPECT_EQ(finish(child_).exit_status, 3) << shown_;
  const json body = json::parse(asked("POST", "/v1/jobs").at(0).body);
  EXPECT_EQ(body["interactive"], true);
  EXPECT_EQ(body["window"], (json{{"rows", 30}, {"columns", 90}}));
}

TEST_F(InteractiveTest, SubmitNamesTheLogOfAnArraysElement) {
  json first = job("running");
  first["array"] = 17;
  first["array_index"] = 5;
  first["log"] = "/logs/5.log";
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 2})");
  answer("GET /v1/jobs/17", first);
  serve();
  start({"submit", "--array", "5-6", "--", "sh"});
  EXPECT_TRUE(see("Output of 17_5: /logs/5.log  (gpumux logs -f 17_5)")) << shown_;
  EXPECT_EQ(finish(child_).exit_status, 0);
}

TEST_F(InteractiveTest, EverybodysJobsAreChangedAfterAYes) {
  answer("PATCH /v1/jobs/all", json{{"jobs", json::array()}});
  serve();
  start({"cancel", "--everybody"});
  ASSERT_TRUE(see("[y/N]")) << shown_;
  type("n\r");
  EXPECT_EQ(finish(child_).exit_status, 1);
  EXPECT_TRUE(asked("PATCH", "").empty());
  shown_.clear();
  start({"cancel", "--everybody"});
  ASSERT_TRUE(see("[y/N]")) << shown_;
  type("y\r");
  EXPECT_EQ(finish(child_).exit_status, 0);
  EXPECT_EQ(asked("PATCH", "/v1/jobs/all").size(), 1u);
}

TEST_F(InteractiveTest, WhoWaitsIsToldWhy) {
  json queued = job("queued");
  queued["place"] = 3;
  queued["why"] = "other jobs go first";
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  answer("GET /v1/jobs/17", queued);
  serve();
  for (const std::vector<std::string>& words : {std::vector<std::string>{"wait", "17"}, {"submit", "--wait", "sh"}}) {
    shown_.clear();
    answer("GET /v1/jobs/17/wait", queued);
    start(words);
    ASSERT_TRUE(see("job 17 waits: place 3; other jobs go first")) << shown_;
    answer("GET /v1/jobs/17/wait", job("running"));
    ASSERT_TRUE(see("job 17 is running")) << shown_;
    answer("GET /v1/jobs/17/wait", done("failed", 3));
    EXPECT_EQ(finish(child_).exit_status, 3);
  }
  EXPECT_EQ(run({"wait", "17"}).err, "") << "no terminal, nobody who looks on";
}

TEST_F(InteractiveTest, WhoAsksForQuietIsToldNothingUntilTheEnd) {
  json queued = job("queued");
  queued["place"] = 3;
  answer("POST /v1/jobs", 201, R"({"id": 17, "count": 1})");
  answer("GET /v1/jobs/17", queued);
  serve();
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"wait", "--quiet", "17"}, {"submit", "--wait", "--quiet", "sh"}}) {
    shown_.clear();
    answer("GET /v1/jobs/17/wait", queued);
    const std::size_t before = asked("GET", "/v1/jobs/17/wait").size();
    start(words);
    while (asked("GET", "/v1/jobs/17/wait").size() < before + 2) std::this_thread::yield();
    answer("GET /v1/jobs/17/wait", done("ok", 0));
    see("a text that does not come");  // reads to the end
    EXPECT_EQ(finish(child_).exit_status, 0);
    EXPECT_EQ(shown_.find("job 17"), std::string::npos) << shown_;
  }
}

TEST_F(InteractiveTest, CtrlCLeavesAndSaysHowToComeBack) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  accept();
  type("\x03");
  ASSERT_TRUE(see(std::string("`") + GPUMUX + " attach 17`")) << "it is not in PATH: " << shown_;
  EXPECT_EQ(finish(child_).exit_status, 130);
  EXPECT_TRUE(asked("PATCH", "").empty());
  shown_.clear();
  environment_.push_back("PATH=" + std::filesystem::path(GPUMUX).parent_path().string());
  std::erase(environment_, "PATH=/usr/bin:/bin");
  start({"attach", "17"});
  accept();
  type("\x03");
  ASSERT_TRUE(see("`gpumux attach 17`")) << shown_;
  EXPECT_EQ(finish(child_).exit_status, 130);
}

TEST_F(InteractiveTest, OtherKeysLeaveAndCtrlCGoesToTheJob) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "--detach-keys", "ctrl-p,ctrl-q", "17"});
  accept();
  type("\x03\x03");
  while (typed_ != "\x03\x03") ASSERT_NE(hear().index(), 0u) << "the job reads both";
  type("\x10\x11");
  ASSERT_TRUE(see(" attach 17`")) << shown_;
  EXPECT_EQ(finish(child_).exit_status, 130);
  EXPECT_EQ(typed_, "\x03\x03") << "the job reads none of the keys that leave";
  EXPECT_TRUE(asked("PATCH", "").empty());
}

TEST_F(InteractiveTest, CtrlCTwiceCancels) {
  answer("GET /v1/jobs/17/wait", running());
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": true}]})");
  serve();
  start({"attach", "17"});
  accept();
  type("\x03\x03");
  ASSERT_TRUE(see("is being cancelled")) << shown_;
  EXPECT_EQ(asked("PATCH", "/v1/jobs/17").at(0).body, R"({"cancel":true})");
  answer("GET /v1/jobs/17/wait", done("cancelled", 143));
  end(143);
  EXPECT_EQ(finish(child_).exit_status, 143);
}

TEST_F(InteractiveTest, CtrlCTwiceCancelsWhatStillWaits) {
  answer("GET /v1/jobs/17/wait", job("queued"));
  answer("PATCH /v1/jobs/17", 200, R"({"jobs": [{"id": 17, "changed": true}]})");
  serve();
  // A press is a signal, and two that come at once are one: so the second waits for the first's answer. On a machine
  // that is so busy that this takes a second, the command has left instead, and is asked again.
  bool cancelled = false;
  for (int attempt = 0; attempt < 5 && !cancelled; ++attempt) {
    shown_.clear();
    start({"attach", "17"});
    ASSERT_TRUE(see("job 17 waits")) << shown_;
    type("\x03");
    ASSERT_TRUE(see("once more within a second")) << shown_;
    type("\x03");
    cancelled = see("is being cancelled", "[left job 17");
    if (!cancelled) finish(child_);
  }
  ASSERT_TRUE(cancelled) << shown_;
  json ended = job("done");
  ended["outcome"] = "cancelled";
  answer("GET /v1/jobs/17/wait", ended);
  EXPECT_EQ(finish(child_).exit_status, 1) << "it never had one of its own";
}

TEST_F(InteractiveTest, TheDaemonMayGoMeanwhile) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  accept();
  print("before");
  ASSERT_TRUE(see("before"));
  server_.reset();
  print("after");
  ASSERT_TRUE(see("after")) << "the runner does not need it";
  end(6);
  EXPECT_EQ(finish(child_).exit_status, 6) << shown_;
}

TEST_F(InteractiveTest, ARunnerThatDoesNotKnowTheEndLeavesItToTheDaemon) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  accept();
  json lost = job("done");
  lost["outcome"] = "lost";
  answer("GET /v1/jobs/17/wait", lost);
  send(wire::AttachEnded{0, 0});
  EXPECT_EQ(finish(child_).exit_status, 1);
}

TEST_F(InteractiveTest, ASignalEndsItWithTheTerminalAsItWas) {
  answer("GET /v1/jobs/17/wait", running());
  serve();
  start({"attach", "17"});
  termios before{};
  ASSERT_EQ(::tcgetattr(terminal_.get(), &before), 0);
  accept();
  print("x");
  ASSERT_TRUE(see("x"));
  ::kill(child_, SIGTERM);
  EXPECT_TRUE(see("left job 17"));
  EXPECT_EQ(finish(child_).signal, SIGTERM);
  termios after{};
  ASSERT_EQ(::tcgetattr(terminal_.get(), &after), 0);
  EXPECT_EQ(after.c_lflag & (ICANON | ECHO | ISIG), tcflag_t{ICANON | ECHO | ISIG});
}

TEST_F(InteractiveTest, WhatHasNoTerminalOrIsAnothersSaysSo) {
  json plain = running();
  plain["interactive"] = false;
  answer("GET /v1/jobs/17/wait", plain);
  answer("GET /v1/jobs/18/wait", json{{"id", 18}, {"user", "bob"}, {"state", "running"}});
  serve();
  const auto without = run({"attach", "17"});
  EXPECT_EQ(without.exit_status, 1);
  EXPECT_NE(without.err.find("gpumux logs -f 17"), std::string::npos);
  EXPECT_EQ(run({"attach", "18"}).exit_status, 4);
  EXPECT_EQ(run({"attach", "19"}).exit_status, 1);
}

}  // namespace
}  // namespace gpumux::cli
