// SPDX-License-Identifier: Apache-2.0
#include "client/agent.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "client/lease_page_memory.h"
#include "os/runtime_dir.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"

namespace gpumux::client {
namespace {

using namespace std::chrono_literals;

// How often a missing daemon is looked for. A connect to a missing socket costs microseconds; a restarted daemon waits
// for its tenants. A guess.
constexpr base::Duration kRetry = 50ms;
// A daemon that has accepted answers Hello within its next loop; this long without an answer it is stuck, and another
// try may do better. The time is a guess.
constexpr base::Duration kWelcomeTimeout = 5s;

int to_poll_ms(base::Duration duration) {
  if (duration <= 0ns) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(duration).count();
  return static_cast<int>(ms < 60'000 ? ms : 60'000);  // fits into an int; the agent then waits again
}

}  // namespace

Agent::Agent(AgentOptions options, SeatPort& port) : options_(std::move(options)), port_(port) {}

Agent::~Agent() {
  if (!thread_.is_started()) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

base::Status Agent::start() {
  if (!keep_wake()) return base::fail_errno(errno, "cannot create a pair of sockets");
  return thread_.start<&Agent::run>(this, "cannot create the agent's thread");
}

void Agent::run() {
  pthread_setname_np(pthread_self(), "gpumux-agent");
  const base::TimePoint deadline = os::now() + options_.connect_timeout;
  while (!stopping_.load(std::memory_order_acquire)) {
    // A process that is frozen in the middle of a try (its job is suspended) has had no time for it.
    const base::TimePoint began = os::now();
    if (connect_once() && await_welcome()) {
      serve();
      disconnect();
      if (stopping_.load(std::memory_order_acquire)) return;
      port_.on_lost();
    }
    disconnect();
    if (!refusal_.empty()) return port_.on_ungated(refusal_);
    if (!was_connected_ && began >= deadline) return port_.on_ungated(last_failure_);
    pause(kRetry);
  }
}

bool Agent::connect_once() {
  if (options_.page->fd() < 0) {
    refusal_ = "the program has closed its lease page, which each daemon needs";
    return false;
  }
  std::string path = options_.socket_path;
  if (path.empty()) {
    const auto dir = os::find_runtime_dir();
    if (!dir) {
      last_failure_ = dir.error().message();
      return false;
    }
    path = *dir + "/" + os::kTenantSocket;
  }
  auto socket = os::connect_seqpacket(path);
  if (!socket) {
    last_failure_ = "no daemon answers: " + socket.error().message();
    if (!was_connected_ && socket.error().system_errno == ENOENT && os::is_out_of_sight())
      refusal_ = "this program cannot see the folder of its daemon, GPUMUX_RUNTIME_DIR (a sandbox has to show it): " +
                 socket.error().message();
    return false;
  }
  if (const auto sent = os::send_message(socket->get(), wire::encode(options_.hello).bytes(), options_.page->fd());
      !sent) {
    last_failure_ = sent.error().message();
    return false;
  }
  const base::Locked locked(send_mutex_);
  socket_ = os::KeptDescriptor(std::move(*socket));
  return true;
}

bool Agent::await_welcome() {
  const base::TimePoint deadline = os::now() + kWelcomeTimeout;
  std::array<std::byte, base::kMaxMessageBytes> buffer;
  while (!stopping_.load(std::memory_order_acquire)) {
    pollfd waiting{socket_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, to_poll_ms(deadline - os::now())) == 0) {
      last_failure_ = "the daemon does not answer";
      return false;
    }
    const auto received = os::receive_message(socket_.get(), buffer);
    if (!received && received.error().system_errno == EAGAIN) continue;
    if (!received || received->bytes == 0) {
      last_failure_ = "the daemon closed the connection";
      return false;
    }
    const auto message = wire::decode_from_daemon(std::span(buffer).first(received->bytes));
    if (!message) {
      last_failure_ = message.error().message();
      return false;
    }
    if (const auto* refused = std::get_if<wire::Refused>(&*message)) {
      refusal_ = "the daemon refuses this process: " + std::string(wire::text_of(refused->text));
      return false;
    }
    if (const auto* welcome = std::get_if<wire::Welcome>(&*message)) {
      // The port forgets which seats were announced before other threads may send again.
      port_.on_connected(*welcome, std::exchange(was_connected_, true));
      connected_.store(true, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void Agent::serve() {
  std::array<std::byte, base::kMaxMessageBytes> buffer;
  port_.announce_seats();
  if (!closed_.empty()) port_.on_closed_by_program(std::exchange(closed_, {}));
  base::TimePoint next_second = os::now() + std::chrono::seconds(1);
  while (!stopping_.load(std::memory_order_acquire)) {
    if ((wake_reader_.is_lost() || wake_writer_.is_lost()) && keep_wake()) {
      port_.on_closed_by_program("what wakes the library's thread");
      port_.announce_seats();
    }
    const int socket = socket_.get();
    if (socket < 0) {
      closed_ = "the connection to the daemon";
      return;
    }
    std::array<pollfd, 2> waiting{{{socket, POLLIN, 0}, {wake_reader_.get(), POLLIN, 0}}};
    if (::poll(waiting.data(), waiting.size(), to_poll_ms(next_second - os::now())) < 0) continue;
    if (const base::TimePoint time = os::now(); time >= next_second) {
      port_.on_second();
      next_second = time + std::chrono::seconds(1);
    }
    if (waiting[1].revents != 0) {
      clear_wake();
      port_.announce_seats();
    }
    // The poll may have waited for what the number stood for before.
    while (waiting[0].revents != 0 && socket_) {
      auto received = os::receive_message(socket_.get(), buffer);
      if (!received && received.error().system_errno == EAGAIN) break;
      if (!received || received->bytes == 0) return;
      // A message that this version does not know comes from a newer daemon, which was told our version: leave it.
      const auto message = wire::decode_from_daemon(std::span(buffer).first(received->bytes));
      if (message) port_.on_message(*message, std::move(received->fd));
    }
  }
}

// Sleeps, but not through a stop. Wakes meant for announce_seats are kept: they are announced at the next connection
// anyway.
void Agent::pause(base::Duration duration) {
  const base::TimePoint end = os::now() + duration;
  while (!stopping_.load(std::memory_order_acquire) && os::now() < end) {
    pollfd waiting{wake_reader_.get(), POLLIN, 0};
    ::poll(&waiting, 1, to_poll_ms(end - os::now()));
    clear_wake();
  }
}

// Makes the sockets, for the first time or anew. False: it cannot be made. Then the agent wakes once a second.
bool Agent::keep_wake() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
  wake_reader_ = os::KeptDescriptor(os::FileDescriptor(ends[0]));
  const base::Locked locked(wake_mutex_);
  wake_writer_ = os::KeptDescriptor(os::FileDescriptor(ends[1]));
  return true;
}

void Agent::clear_wake() {
  const int fd = wake_reader_.get();
  std::byte byte;
  while (fd >= 0 && ::recv(fd, &byte, 1, MSG_DONTWAIT) == 1) {
  }
}

void Agent::disconnect() {
  connected_.store(false, std::memory_order_release);
  const base::Locked locked(send_mutex_);
  socket_.reset();
}

bool Agent::send_locked(std::span<const std::byte> bytes, bool may_be_lost, int fd) {
  if (!connected_.load(std::memory_order_acquire)) return false;
  const int socket = socket_.get();
  if (socket < 0) {
    wake();  // the agent's thread connects anew
    return false;
  }
  const int saved_errno = errno;
  const bool sent = os::send_message(socket, bytes, fd).has_value();
  if (!sent && !may_be_lost) ::shutdown(socket, SHUT_RDWR);  // the agent's thread sees the end and connects anew
  errno = saved_errno;
  return sent;
}

void Agent::wake() {
  const int saved_errno = errno;
  {
    const base::Locked locked(wake_mutex_);
    const int fd = wake_writer_.get();
    // A full queue wakes, too.
    if (fd >= 0) static_cast<void>(::send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  errno = saved_errno;
}

void Agent::close_after_fork() {
  socket_.reset();
  wake_reader_.reset();
  wake_writer_.reset();
}

}  // namespace gpumux::client
