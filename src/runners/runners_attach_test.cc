// SPDX-License-Identifier: Apache-2.0
// Goal: an interactive job has a terminal of its own. All of its output is in the log and with the attached clients:
// early, late, again, several at once. The job never waits for any of them. No other user gets in. Method: real runners
// with a job that answers lines, and clients that speak the attach protocol, well and badly.
#include <grp.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "os/unix_socket.h"
#include "runners/runners_test_support.h"
#include "wire/attach_messages.h"

namespace gpumux::runners {
namespace {

using wire::EndHow;

class Attach : public RunnerTest {
 protected:
  wire::RunnerSpec make_interactive(std::vector<std::string> arguments) {
    auto spec = make_spec(std::move(arguments));
    spec.interactive = true;
    spec.window = {24, 80};
    spec.attach_path = folder_ + "/attach." + std::to_string(spec.job);
    return spec;
  }

  // A client; `heard` is all the output that it has got.
  struct Client {
    os::FileDescriptor socket;
    wire::AttachWelcome welcome;
    std::string heard;
    std::optional<wire::AttachEnded> ended;
    std::optional<wire::AttachLagging> lagging;
    bool closed = false;
  };

  static Client attach(const wire::RunnerSpec& spec, std::uint64_t from = 0, wire::WindowSize window = {}) {
    Client client;
    EXPECT_TRUE(eventually([&] {
      auto socket = os::connect_seqpacket(spec.attach_path);
      if (socket) client.socket = std::move(*socket);
      return client.socket.get() >= 0;
    }));
    EXPECT_TRUE(
        os::send_message(client.socket.get(), wire::encode(wire::AttachHello{.window = window, .from = from}).bytes()));
    return client;
  }

  // One message into the client; false: none came before the deadline, or it was closed.
  static bool listen(Client& client) {
    pollfd polled{client.socket.get(), POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(kDeadline).count())) != 1) return false;
    std::vector<std::byte> buffer(wire::kMaxAttachMessageBytes);
    const auto received = os::receive_message(client.socket.get(), buffer);
    if (!received || received->bytes == 0) {
      client.closed = true;
      return false;
    }
    const auto message = wire::decode_to_attached(std::span(buffer.data(), received->bytes));
    EXPECT_TRUE(message);
    if (!message) return false;
    if (const auto* welcome = std::get_if<wire::AttachWelcome>(&*message)) client.welcome = *welcome;
    if (const auto* output = std::get_if<wire::AttachOutput>(&*message)) client.heard += output->bytes;
    if (const auto* ended = std::get_if<wire::AttachEnded>(&*message)) client.ended = *ended;
    if (const auto* lagging = std::get_if<wire::AttachLagging>(&*message)) client.lagging = *lagging;
    return true;
  }
  static bool hear(Client& client, const std::string& text) {
    while (client.heard.find(text) == std::string::npos) {
      if (!listen(client)) return false;
    }
    return true;
  }
  static void listen_to_the_end(Client& client) {
    while (listen(client)) {
    }
  }
  static void type(Client& client, const std::string& text) {
    const wire::Header header = wire::attach_header(wire::AttachType::kInput, text.size());
    const std::string message = std::string(reinterpret_cast<const char*>(&header), sizeof header) + text;
    EXPECT_TRUE(os::send_message(client.socket.get(), std::as_bytes(std::span(message))));
  }
};

TEST_F(Attach, IsATerminalWithTheJobAtTheOtherSide) {
  const auto spec = make_interactive({"describe"});
  const auto connection = start(spec);
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 0u) << wire::text_of(end->text);
  const std::string log = read_text(spec.log_path);
  EXPECT_NE(log.find("tty 3\r\n"), std::string::npos) << log;
  EXPECT_NE(log.find("leads_session 1\r\n"), std::string::npos) << log;
  EXPECT_NE(log.find("open 0 1 2\r\n"), std::string::npos) << log;
  EXPECT_NE(log.find("stdin /dev/pts/"), std::string::npos) << log;
  EXPECT_NE(log.find("ids " + std::to_string(user()) + " "), std::string::npos) << log;
  EXPECT_FALSE(std::filesystem::exists(spec.attach_path));
}

TEST_F(Attach, AnswersResizesAndTellsTheEnd) {
  const auto spec = make_interactive({"echo"});
  const auto connection = start(spec);
  Client first = attach(spec);
  ASSERT_TRUE(hear(first, "size 24 80\r\n")) << first.heard;
  type(first, "hello\n");
  ASSERT_TRUE(hear(first, "heard hello\r\n")) << first.heard;
  // A second one sees what it has missed, changes the size, and both see what comes.
  Client second = attach(spec, 0, {50, 132});
  ASSERT_TRUE(hear(second, "heard hello\r\n")) << second.heard;
  ASSERT_TRUE(hear(first, "size 50 132\r\n")) << first.heard;
  EXPECT_TRUE(os::send_message(second.socket.get(), wire::encode(wire::AttachResize{.window = {10, 20}}).bytes()));
  ASSERT_TRUE(hear(first, "size 10 20\r\n")) << first.heard;
  ASSERT_TRUE(hear(second, "size 10 20\r\n")) << second.heard;
  // The first detaches and comes back for what it has not seen.
  const std::uint64_t seen = first.heard.size();
  first.socket.reset();
  type(second, "meanwhile\n");
  ASSERT_TRUE(hear(second, "heard meanwhile\r\n"));
  Client again = attach(spec, seen);
  ASSERT_TRUE(hear(again, "heard meanwhile\r\n"));
  EXPECT_EQ(again.welcome.from, seen);
  EXPECT_EQ(again.heard.find("heard hello"), std::string::npos);
  type(again, "quit\n");
  listen_to_the_end(again);
  listen_to_the_end(second);
  for (const Client* client : {&again, &second}) {
    ASSERT_TRUE(client->ended);
    EXPECT_EQ(client->ended->how, static_cast<std::uint32_t>(EndHow::kExited));
    EXPECT_EQ(client->ended->code, 4u);
  }
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 4u);
  EXPECT_EQ(read_text(spec.log_path), second.heard) << "the log is what was seen";
}

TEST_F(Attach, DropsASlowClientAndLosesNothing) {
  constexpr std::size_t kFlood = 8u << 20;
  const auto spec = make_interactive({"echo"});
  const auto connection = start(spec);
  Client slow = attach(spec);
  ASSERT_TRUE(hear(slow, "size"));
  Client fast = attach(spec);
  type(fast, "flood " + std::to_string(kFlood) + "\n");
  // No client reads: the job must come to its end all the same.
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code, 6u) << "6: it could write everything";
  listen_to_the_end(slow);
  EXPECT_TRUE(slow.lagging);
  EXPECT_FALSE(slow.ended);
  EXPECT_TRUE(slow.closed);
  if (slow.lagging) {
    EXPECT_EQ(slow.lagging->next, slow.heard.size()) << "it is told exactly where it was cut off";
  }
  // The log has all of it: bytes, less the newlines that there are none of.
  const std::string log = read_text(spec.log_path);
  EXPECT_EQ(static_cast<std::size_t>(std::count(log.begin(), log.end(), 'y')), kFlood);
}

TEST_F(Attach, KeepsTheLastOutputForWhoComesLate) {
  const auto spec = make_interactive({"echo"});
  const auto connection = start(spec);
  {
    Client client = attach(spec);
    ASSERT_TRUE(hear(client, "size"));
    std::string line(1000, 'z');
    for (int i = 0; i < 700; ++i) {  // twice each: the terminal's echo, and the answer
      type(client, line + "\n");
      ASSERT_TRUE(hear(client, "heard " + line)) << i;
      client.heard.clear();
    }
    type(client, "last\n");
    ASSERT_TRUE(hear(client, "heard last\r\n"));
  }
  Client late = attach(spec);
  ASSERT_TRUE(hear(late, "heard last\r\n"));
  EXPECT_EQ(late.welcome.until - late.welcome.from, wire::kAttachBacklogBytes);
  EXPECT_EQ(late.heard.size(), wire::kAttachBacklogBytes);
  const std::string log = read_text(spec.log_path);
  EXPECT_EQ(late.heard, log.substr(late.welcome.from)) << "positions are positions in the log";
  type(late, "quit\n");
  EXPECT_TRUE(wait_for_end(connection.get()));
}

TEST_F(Attach, IsForItsUserAndRootOnly) {
  if (!is_root()) GTEST_SKIP() << "needs root to be several users";
  const auto spec = make_interactive({"echo"});
  const auto connection = start(spec);
  Client root = attach(spec);
  ASSERT_TRUE(hear(root, "size"));
  struct stat status {};
  ASSERT_EQ(::stat(spec.attach_path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kAlice);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  const auto can_hear = [&](std::uint32_t uid, bool open_up) {
    // Also when the socket's own mode would let every user in.
    ::chmod(spec.attach_path.c_str(), open_up ? 0666 : 0600);
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (::setgroups(0, nullptr) != 0 || ::setresgid(uid, uid, uid) != 0 || ::setresuid(uid, uid, uid) != 0)
        ::_exit(9);
      auto socket = os::connect_seqpacket(spec.attach_path);
      if (!socket) ::_exit(1);
      static_cast<void>(os::send_message(socket->get(), wire::encode(wire::AttachHello{}).bytes()));
      Client client;
      client.socket = std::move(*socket);
      ::_exit(hear(client, "size") ? 0 : 2);
    }
    int waited = 0;
    ::waitpid(pid, &waited, 0);
    return WEXITSTATUS(waited);
  };
  EXPECT_EQ(can_hear(kAlice, false), 0);
  EXPECT_EQ(can_hear(kBob, false), 1);
  EXPECT_EQ(can_hear(kBob, true), 2);
  // Nor can the job's user get at its supervisor, or at the process that holds its terminal.
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::setresgid(kAlice, kAlice, kAlice) != 0 || ::setresuid(kAlice, kAlice, kAlice) != 0) ::_exit(9);
    const bool can_kill = ::kill(static_cast<pid_t>(state->runner_pid), SIGKILL) == 0;
    const bool can_look = ::access(directory(spec).c_str(), R_OK | X_OK) == 0 ||
                          ::access((directory(spec) + "/control").c_str(), W_OK) == 0;
    ::_exit(can_kill || can_look ? 1 : 0);
  }
  int waited = 0;
  ::waitpid(pid, &waited, 0);
  EXPECT_EQ(waited, 0);
  type(root, "quit\n");
  EXPECT_TRUE(wait_for_end(connection.get()));
}

TEST_F(Attach, StandsClientsThatBreakTheProtocol) {
  std::mt19937_64 random(make_seed());
  const auto spec = make_interactive({"echo"});
  const auto connection = start(spec);
  Client good = attach(spec);
  ASSERT_TRUE(hear(good, "size"));
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  const auto descriptors = [&] {
    std::size_t count = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(state->runner_pid) + "/fd")) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  };
  const std::size_t before = descriptors();
  for (int round = 0; round < 200; ++round) {
    auto socket = os::connect_seqpacket(spec.attach_path);
    if (!socket) continue;  // too many at once
    std::vector<std::byte> bytes(random() % 64 + 1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (random() % 2 == 0) {
      const wire::Header header{static_cast<std::uint32_t>(random() % 4), static_cast<std::uint32_t>(bytes.size())};
      std::memcpy(bytes.data(), &header, std::min(bytes.size(), sizeof header));
    }
    // A hostile peer may also send descriptors.
    static_cast<void>(os::send_message(socket->get(), bytes, random() % 4 == 0 ? STDIN_FILENO : -1));
    // And hostile peers of the control socket: root only, but bytes are bytes. The runner would obey an order.
    if (wire::decode_to_runner(bytes)) continue;
    auto control = connect_runner(directory(spec));
    if (control) static_cast<void>(os::send_message(control->get(), bytes, STDIN_FILENO));
  }
  type(good, "still there\n");
  EXPECT_TRUE(hear(good, "heard still there\r\n"));
  // A descriptor that was open when `before` was counted may have been closed since.
  EXPECT_TRUE(eventually([&] { return descriptors() <= before; })) << before << " became " << descriptors();
  type(good, "quit\n");
  listen_to_the_end(good);
  EXPECT_TRUE(good.ended);
  EXPECT_TRUE(wait_for_end(connection.get()));
}

TEST_F(Attach, EndsCleanlyWhateverDies) {
  // The terminal's process: the job hears that its terminal is gone.
  auto spec = make_interactive({"echo"});
  auto connection = start(spec);
  Client client = attach(spec);
  ASSERT_TRUE(hear(client, "size"));
  const auto state = wait_until_running(connection.get());
  ASSERT_TRUE(state);
  const std::string children =
      "/proc/" + std::to_string(state->runner_pid) + "/task/" + std::to_string(state->runner_pid) + "/children";
  std::string list = read_text(children);
  pid_t terminal = 0;
  for (std::size_t at = 0; at < list.size();) {
    const pid_t pid = std::atoi(list.c_str() + at);
    if (pid != static_cast<pid_t>(state->main_pid)) terminal = pid;
    at = list.find(' ', at) + 1;
    if (at == 0) break;
  }
  ASSERT_GT(terminal, 0);
  ASSERT_EQ(::kill(terminal, SIGKILL), 0);
  const auto end = wait_for_end(connection.get());
  ASSERT_TRUE(end);
  EXPECT_EQ(end->how, EndHow::kSignaled);
  EXPECT_EQ(end->code, static_cast<std::uint32_t>(SIGHUP));
  // The supervisor is killed: the attached client is told that the end is not known.
  spec = make_interactive({"echo"});
  connection = start(spec);
  Client other = attach(spec);
  ASSERT_TRUE(hear(other, "size"));
  const auto running = wait_until_running(connection.get());
  ASSERT_TRUE(running);
  ASSERT_EQ(::kill(static_cast<pid_t>(running->runner_pid), SIGKILL), 0);
  listen_to_the_end(other);
  ASSERT_TRUE(other.ended);
  EXPECT_EQ(other.ended->how, 0u);
  EXPECT_TRUE(eventually([&] { return look_at_runner(directory(spec))->standing == RunnerStanding::kLost; }));
  // A log that cannot be opened ends it before it begins.
  spec = make_interactive({"echo"});
  spec.log_path = "/proc/nothing";
  const auto unstarted = run(spec);
  EXPECT_EQ(unstarted.how, EndHow::kNotStarted);
  EXPECT_EQ(unstarted.code, 125u);
  EXPECT_NE(std::string(wire::text_of(unstarted.text)).find("log"), std::string::npos) << wire::text_of(unstarted.text);
}

TEST_F(Attach, SaysInTheLogWhatAFullDiskHasCost) {
  if (!is_root()) GTEST_SKIP() << "needs root to mount a small file system";
  const std::string disk = folder_ + "/disk";
  std::filesystem::create_directory(disk);
  if (::mount("gpumux-test", disk.c_str(), "tmpfs", 0, "size=64k,mode=0777") != 0)
    GTEST_SKIP() << "no file system can be mounted here: " << std::strerror(errno);
  auto spec = make_interactive({"echo"});
  spec.log_path = disk + "/job.log";
  const std::string filler = disk + "/filler";
  const auto connection = start(spec);
  Client client = attach(spec);
  ASSERT_TRUE(hear(client, "size 24 80\r\n"));
  {
    std::ofstream file(filler);
    while (file << std::string(1024, 'f') << std::flush) {
    }
  }
  // Fills what is left of the log's own last page, and more.
  for (int i = 0; i < 8; ++i) {
    type(client, std::string(1000, 'l') + "\n");
    ASSERT_TRUE(hear(client, "heard " + std::string(1000, 'l')));
    client.heard.clear();
  }
  std::filesystem::remove(filler);
  type(client, "after\n");
  ASSERT_TRUE(hear(client, "heard after\r\n")) << "who is attached sees everything all the same";
  type(client, "quit\n");
  EXPECT_TRUE(wait_for_end(connection.get()));
  const std::string log = read_text(spec.log_path);
  EXPECT_NE(log.find("bytes of output are missing here: No space left on device]"), std::string::npos) << log.size();
  EXPECT_NE(log.find("heard after\r\n"), std::string::npos);
  ::umount2(disk.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace gpumux::runners
