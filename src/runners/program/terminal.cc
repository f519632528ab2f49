// SPDX-License-Identifier: Apache-2.0
#include "runners/program/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "runners/program/child.h"
#include "runners/program/job_log.h"
#include "runners/program/privileges.h"
#include "runners/program/report.h"
#include "wire/attach_messages.h"

namespace gpumux::runners {
namespace {

using base::Result;
using base::Status;
using namespace std::chrono_literals;

// Watchers of one job; each costs a descriptor and a position.
constexpr std::size_t kMostClients = 32;
// Input that the job has not taken yet. Above it no more is read from clients, whose own sockets then fill.
constexpr std::size_t kMostPendingInput = 16384;
// After the end: how long clients that read slowly are waited for.
constexpr auto kFlushTime = 2s;
// A pty that no process has open may be opened again, by a process that knows its name. The interval at which this is
// looked for.
constexpr int kHungUpPollMs = 1000;

// The last `kCapacity` bytes of all that was ever written; memory is taken as it is used.
class Ring {
 public:
  static constexpr std::size_t kCapacity = wire::kAttachBacklogBytes;

  Ring() {
    void* memory =
        ::mmap(nullptr, kCapacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) bytes_ = static_cast<char*>(memory);
  }
  bool usable() const { return bytes_ != nullptr; }

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t at = total_ % kCapacity;
      const std::size_t part = std::min(bytes.size(), kCapacity - at);
      std::memcpy(bytes_ + at, bytes.data(), part);
      bytes.remove_prefix(part);
      total_ += part;
    }
  }
  std::uint64_t total() const { return total_; }
  std::uint64_t oldest() const { return total_ > kCapacity ? total_ - kCapacity : 0; }
  // The bytes that lie in one piece from `position` on, at most `most`.
  std::string_view from(std::uint64_t position, std::size_t most) const {
    const std::size_t at = position % kCapacity;
    const std::size_t there = static_cast<std::size_t>(total_ - position);
    return {bytes_ + at, std::min({there, kCapacity - at, most})};
  }

 private:
  char* bytes_ = nullptr;
  std::uint64_t total_ = 0;
};

// The log, which may fail and recover.
class LogWriter {
 public:
  explicit LogWriter(os::FileDescriptor file) : file_(std::move(file)) {}

  void append(std::string_view bytes) {
    if (lost_ != 0) {
      const std::string note =
          "\r\n[gpumux: " + std::to_string(lost_) + " bytes of output are missing here: " + ::strerror(why_) + "]\r\n";
      // All of the note or none: a nearly full disk may take half of it.
      if (write(note) != note.size()) {
        lost_ += bytes.size();
        return;
      }
      lost_ = 0;
    }
    lost_ += bytes.size() - write(bytes);
  }

 private:
  std::size_t write(std::string_view bytes) {
    std::size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t wrote = ::write(file_.get(), bytes.data() + at, bytes.size() - at);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) {
        why_ = wrote < 0 ? errno : ENOSPC;
        break;
      }
      at += static_cast<std::size_t>(wrote);
    }
    return at;
  }

  os::FileDescriptor file_;
  std::uint64_t lost_ = 0;
  int why_ = 0;
};

struct Client {
  os::FileDescriptor socket;
  bool greeted = false;    // has said hello
  std::uint64_t next = 0;  // the first byte that it was not sent
  bool cut_off = false;    // that byte is gone: the client gets no more than the notice of this
};

class Terminal {
 public:
  Terminal(os::FileDescriptor pty, os::FileDescriptor log, const TerminalPlan& plan)
      : pty_(std::move(pty)), log_(std::move(log)), link_(plan.link), listener_(plan.listener), uid_(plan.spec->uid) {}

  bool usable() const { return ring_.usable(); }

  void run() {
    while (!finished()) {
      poll_once();
    }
  }

 private:
  bool ended() const { return end_.kind == LinkKind::kEnded; }
  bool finished() const {
    if (!ended()) return false;
    return clients_.empty() || clock_.now() >= flush_until_;
  }

  void poll_once() {
    // A client that was cut off, and has not even read that, makes room for others.
    if (clients_.size() == kMostClients) std::erase_if(clients_, [](const Client& client) { return client.cut_off; });
    std::vector<pollfd> polled;
    polled.push_back({ended() ? -1 : link_.get(), POLLIN, 0});
    polled.push_back({clients_.size() < kMostClients && !ended() ? listener_.get() : -1, POLLIN, 0});
    const short pty_events = static_cast<short>(POLLIN | (input_.empty() ? 0 : POLLOUT));
    polled.push_back({hung_up_ ? -1 : pty_.get(), pty_events, 0});
    for (const Client& client : clients_) {
      short events = input_.size() < kMostPendingInput ? POLLIN : 0;
      if (client.greeted && (client.cut_off || client.next < ring_.total()))
        events = static_cast<short>(events | POLLOUT);
      polled.push_back({client.socket.get(), events, 0});
    }
    int timeout = hung_up_ ? kHungUpPollMs : -1;
    if (ended()) timeout = 50;
    if (::poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) ::_exit(1);

    if (polled[2].revents != 0 || hung_up_) serve_pty();
    // Clients before new ones: positions in `polled` are theirs.
    const std::size_t known = clients_.size();
    for (std::size_t i = 0; i < known; ++i) serve_client(clients_[i], polled[3 + i].revents);
    if (polled[1].revents != 0) accept_client();
    if (polled[0].revents != 0) serve_link();
    std::erase_if(clients_, [](const Client& client) { return !client.socket; });
  }

  // Reads what the job has written; true if there was something.
  bool read_output() {
    char buffer[wire::kMaxAttachOutputBytes];
    const ssize_t got = ::read(pty_.get(), buffer, sizeof buffer);
    // EIO: no process has the job's side open, now.
    hung_up_ = got == 0 || (got < 0 && errno == EIO);
    if (got <= 0) return false;
    const std::string_view bytes(buffer, static_cast<std::size_t>(got));
    log_.append(bytes);
    ring_.append(bytes);
    return true;
  }

  void serve_pty() {
    read_output();
    while (!input_.empty()) {
      const ssize_t wrote = ::write(pty_.get(), input_.data(), input_.size());
      if (wrote <= 0) {
        if (errno != EAGAIN && errno != EINTR) input_.clear();  // no process is there to read it
        break;
      }
      input_.erase(0, static_cast<std::size_t>(wrote));
    }
  }

  void accept_client() {
    Client client;
    client.socket = os::accept_connection(listener_.get());
    if (!client.socket) return;
    // The socket's mode says the same; this does not depend on the folder it is in.
    const auto peer = os::peer_credentials(client.socket.get());
    if (!peer || (peer->uid != uid_ && peer->uid != 0)) return;
    clients_.push_back(std::move(client));
  }

  void serve_client(Client& client, short revents) {
    if ((revents & POLLIN) != 0) {
      hear_client(client);
    } else if ((revents & (POLLHUP | POLLERR)) != 0) {
      client.socket.reset();
    }
    if (client.socket && client.greeted) feed_client(client);
  }

  void hear_client(Client& client) {
    std::byte buffer[wire::kMaxAttachInputBytes + 64];
    const auto received = os::receive_message(client.socket.get(), buffer);
    if (!received && received.error().code == base::Code::kUnavailable && received.error().system_errno == EAGAIN)
      return;
    if (!received || received->bytes == 0) return client.socket.reset();
    const auto message = wire::decode_from_attached(std::span(buffer, received->bytes));
    if (!message) return client.socket.reset();
    if (const auto* hello = std::get_if<wire::AttachHello>(&*message)) {
      if (client.greeted) return client.socket.reset();
      client.greeted = true;
      client.next = std::clamp(hello->from, ring_.oldest(), ring_.total());
      set_window(hello->window);
      send(client, wire::encode(wire::AttachWelcome{.from = client.next, .until = ring_.total()}).bytes());
    } else if (!client.greeted) {
      client.socket.reset();
    } else if (const auto* input = std::get_if<wire::AttachInput>(&*message)) {
      input_.append(input->bytes);
      serve_pty();
    } else if (const auto* resize = std::get_if<wire::AttachResize>(&*message)) {
      set_window(resize->window);
    }
  }

  void set_window(wire::WindowSize window) {
    if (window.rows == 0 || window.columns == 0) return;
    const winsize size{window.rows, window.columns, 0, 0};
    ::ioctl(pty_.get(), TIOCSWINSZ, &size);
  }

  // True when it was taken. A peer that is gone is dropped; one whose buffer is full is served later.
  bool send(Client& client, std::span<const std::byte> message) {
    const auto sent = os::send_message(client.socket.get(), message);
    if (!sent && sent.error().system_errno != EAGAIN) client.socket.reset();
    return sent.has_value();
  }

  void feed_client(Client& client) {
    client.cut_off = client.cut_off || client.next < ring_.oldest();
    if (client.cut_off) {
      if (send(client, wire::encode(wire::AttachLagging{.next = client.next}).bytes())) client.socket.reset();
      return;
    }
    std::string message;
    while (client.socket && client.next < ring_.total()) {
      const std::string_view bytes = ring_.from(client.next, wire::kMaxAttachOutputBytes);
      const wire::Header header = wire::attach_header(wire::AttachType::kOutput, bytes.size());
      message.assign(reinterpret_cast<const char*>(&header), sizeof header);
      message.append(bytes);
      if (!send(client, std::as_bytes(std::span(message)))) return;
      client.next += bytes.size();
    }
    if (client.socket && ended() && send(client, wire::encode(wire::AttachEnded{end_.how, end_.code}).bytes()))
      client.socket.reset();
  }

  void serve_link() {
    LinkMessage message;
    const ssize_t got = ::recv(link_.get(), &message, sizeof message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got == static_cast<ssize_t>(sizeof message) && message.kind == LinkKind::kDrain) {
      while (read_output()) {
      }
      const LinkMessage drained{.kind = LinkKind::kDrained};
      static_cast<void>(::send(link_.get(), &drained, sizeof drained, MSG_NOSIGNAL));
      return;
    }
    if (got == static_cast<ssize_t>(sizeof message) && message.kind == LinkKind::kEnded) {
      end_ = message;
    } else {
      // The supervisor is gone, and the job with it.
      while (read_output()) {
      }
      end_ = LinkMessage{.kind = LinkKind::kEnded};
    }
    flush_until_ = clock_.now() + kFlushTime;
    std::erase_if(clients_, [](const Client& client) { return !client.greeted; });
    for (Client& client : clients_) feed_client(client);
  }

  os::FileDescriptor pty_;
  LogWriter log_;
  os::FileDescriptor link_;
  os::FileDescriptor listener_;
  uid_t uid_;
  os::SystemClock clock_;
  Ring ring_;
  std::vector<Client> clients_;
  std::string input_;
  bool hung_up_ = false;
  LinkMessage end_;
  base::TimePoint flush_until_;
};

// A pty of the user's, as the user would have opened it: the user owns the job's side.
Result<os::FileDescriptor> open_pty(wire::WindowSize window) {
  os::FileDescriptor pty(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!pty) return base::fail_errno(errno, "cannot open a terminal");
  if (::grantpt(pty.get()) != 0 || ::unlockpt(pty.get()) != 0)
    return base::fail_errno(errno, "cannot set up a terminal");
  if (window.rows != 0 && window.columns != 0) {
    const winsize size{window.rows, window.columns, 0, 0};
    ::ioctl(pty.get(), TIOCSWINSZ, &size);
  }
  return pty;
}

[[noreturn]] void fail(const TerminalPlan& plan, const base::Error& error) {
  send_report(plan.report, ReportKind::kFailed, wire::kExitNotStarted, error.message());
  ::_exit(static_cast<int>(wire::kExitNotStarted));
}

}  // namespace

void become_terminal(const TerminalPlan& plan) {
  ::prctl(PR_SET_NAME, "gpumux-terminal", 0, 0, 0);
  reset_signals();
  // The end of a client, and the user's limit on the size of files, are errors of single writes, not ends.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  ::setsid();
  close_all_but({plan.link, plan.report, plan.listener});
  if (const Status ready = empty_standard_streams(); !ready) fail(plan, ready.error());
  if (const Status became = become_user(*plan.spec); !became) fail(plan, became.error());
  ::umask(static_cast<mode_t>(plan.spec->umask));
  auto log = open_job_log(plan.spec->log_path, plan.spec->log_opening);
  if (!log) fail(plan, log.error());
  auto pty = open_pty(plan.spec->window);
  if (!pty) fail(plan, pty.error());
  // By descriptor, not by name: the name may mean another one in this place's /dev.
  os::FileDescriptor job_side(::ioctl(pty->get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!job_side) fail(plan, base::fail_errno(errno, "cannot open the job's side of its terminal").value());
  Terminal terminal(std::move(*pty), std::move(*log), plan);
  if (!terminal.usable()) fail(plan, base::fail_errno(ENOMEM, "cannot keep the terminal's output").value());
  const LinkMessage ready{.kind = LinkKind::kReady};
  if (const Status sent = os::send_message(plan.link, std::as_bytes(std::span(&ready, 1)), job_side.get()); !sent)
    ::_exit(1);
  job_side.reset();
  ::close(plan.report);
  terminal.run();
  ::_exit(0);
}

}  // namespace gpumux::runners
