// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/tenant_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include "daemon/loop/rate_limit.h"
#include "os/pidfd.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"
#include "server/peers/trust_domain.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

// In this time kMessagesPerSecond allows 250 messages more: some turns.
constexpr auto kThrottlePause = 5ms;
// Descriptors that are not tenants': sockets, locks, timers, API clients, files.
constexpr std::size_t kOtherDescriptors = 512;
// Its connection, and its pidfd.
constexpr std::size_t kDescriptorsPerTenant = 2;

bool is_connected(int socket) {
  pollfd poller{socket, POLLRDHUP, 0};
  return ::poll(&poller, 1, 0) == 0 || (poller.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
}

}  // namespace

class TenantServer::Connection final : public Carrier, public std::enable_shared_from_this<Connection> {
 public:
  Connection(TenantServer& server, base::TenantId id, server::Peer peer, ForeignConnection socket)
      : session(id, std::move(peer), *this),
        connected_at(server.leases_.now()),
        server_(server),
        socket_(server.io_),
        process_(server.io_),
        pause_(server.io_) {
    socket_.assign(socket.get());  // may throw: it is the caller's until then
    socket.release();
    // Stays the peer's: see close().
    if (session.peer.process != nullptr) process_.assign(session.peer.process->get());
  }
  ~Connection() {
    close();
    drop_socket();
  }

  // Another descriptor of it. Empty: there is none.
  os::FileDescriptor process() {
    const auto& known = session.peer.process;
    return os::FileDescriptor(known != nullptr ? ::fcntl(known->get(), F_DUPFD_CLOEXEC, 0) : -1);
  }

  void start() {
    wait_read();
    if (!process_.is_open()) return;
    process_.async_wait(asio::posix::stream_descriptor::wait_read,
                        [self = shared_from_this()](const boost::system::error_code& error) {
                          if (!error && self->open_) self->server_.end(*self, "ended", "", true);
                          if (!error) self->server_.settled_();
                        });
  }

  void close() {
    if (!std::exchange(open_, false)) return;
    outbox_.clear();
    if (process_.is_open()) process_.release();
    pause_.cancel();
    if (!is_at_door_) return drop_socket();
    // A doorkeeper has the connection, too. It must not be the last to close it.
    ::shutdown(socket_.native_handle(), SHUT_RDWR);
    socket_.cancel();
  }

  bool send(std::span<const std::byte> message, int fd) override {
    if (!open_) return false;
    if (outbox_.empty()) {
      const auto sent = os::send_message(socket_.native_handle(), message, fd);
      if (sent) return true;
      // The other side's end is noticed where it is read: until then nothing is lost by keeping what we have to say.
      if (sent.error().system_errno != EAGAIN)
        return sent.error().system_errno == EPIPE || sent.error().system_errno == ECONNRESET;
    }
    if (outbox_.size() >= kMaxOutbox) return false;
    // A frame's, say: the last reference to another tenant's descriptor by the time that this is sent.
    ForeignDescriptor copy = foreign(fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (fd >= 0 && !copy) return false;
    outbox_.push_back({{message.begin(), message.end()}, std::move(copy)});
    if (outbox_.size() == 1) wait_write();
    return true;
  }

  void kill() override {
    if (!process_.is_open()) return;
    const auto killed = os::kill_process(process_.native_handle());
    if (!killed)
      server::log_error("cannot kill a silent tenant", {{"pid", session.peer.pid}, {"why", killed.error().message()}});
  }

  // A doorkeeper receives its message.
  bool is_at_door() const { return is_at_door_; }

  Session session;
  const base::TimePoint connected_at;

 private:
  ForeignDescriptor foreign(int fd) {
    return ForeignDescriptor(os::FileDescriptor(fd), server_.closer_, session.peer.account);
  }

  void drop_socket() {
    if (socket_.is_open()) server_.closer_.drop(os::FileDescriptor(socket_.release()));
  }

  void wait_read() {
    socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (error || !self->open_) return;
                         self->read_turn();
                         self->server_.reap();
                         self->server_.settled_();
                       });
  }

  // One turn at reading. An exception (out of memory, in a library) ends this session only.
  void read_turn() {
    try {
      read_some();
    } catch (const std::exception& e) {
      server_.end(*this, "internal_error", e.what(), false);
    }
  }

  void read_some() {
    std::array<std::byte, base::kMaxMessageBytes> buffer;
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      if (!rate_.take(server_.leases_.now())) return throttle();
      const auto next = os::peek(socket_.native_handle(), buffer);
      if (!next) {
        if (next.error().system_errno == EAGAIN) break;
        if (next.error().system_errno == ECONNRESET) return server_.end(*this, why_closed(), "", true);
        return server_.end(*this, "protocol_error", next.error().message(), false);
      }
      if (next->has_descriptors) {
        // Each one that is not harmless costs a doorkeeper.
        if (!Translator::takes_descriptor(session, std::span<const std::byte>(buffer).first(next->bytes)))
          return server_.end(*this, "protocol_error", "a descriptor where none belongs", false);
        if (server_.closer_.unclosed(session.peer.account) >= kMaxUnclosed) return throttle();
        return ask_door();
      }
      const auto received = os::receive_message(socket_.native_handle(), buffer);
      if (!received) return server_.end(*this, "protocol_error", received.error().message(), false);
      if (!take(std::span<const std::byte>(buffer).first(received->bytes), {})) return;
    }
    throttled_since_.reset();
    wait_read();
  }

  void ask_door() {
    is_at_door_ = true;
    server_.doorkeeper_.receive(socket_.native_handle(), session.peer.account, [self = shared_from_this()](Look look) {
      self->is_at_door_ = false;
      ForeignDescriptor fd = self->foreign(look.fd.release());
      if (!self->open_) return self->drop_socket();
      self->looked(look, std::move(fd));
      self->server_.reap();
      self->server_.settled_();
    });
  }

  void looked(const Look& look, ForeignDescriptor fd) {
    switch (look.outcome) {
      case Look::Outcome::kBusy: return throttle();
      case Look::Outcome::kLost:
        return server_.end(*this, "internal_error", "the process that received its message has ended", false);
      case Look::Outcome::kRefused:
        if (!session.welcomed)
          Translator::refuse(session, wire::Reason::kBadPage, "the lease page is not a memory file (memfd_create)");
        return server_.end(*this, "protocol_error", "a descriptor that is neither memory nor a GPU's", false);
      case Look::Outcome::kReceived: break;
    }
    if (look.was_cut) return server_.end(*this, "protocol_error", "a message is longer than allowed", false);
    try {
      if (!take(look.message, std::move(fd))) return;
    } catch (const std::exception& e) {
      return server_.end(*this, "internal_error", e.what(), false);
    }
    throttled_since_.reset();
    wait_read();
  }

  // The kernel closes a process's connections before it says that the process has ended.
  std::string_view why_closed() const {
    const auto process = server::process_info(session.peer.pid);
    return process && !process->is_ending ? "disconnected" : "ended";
  }

  // A message, or the connection's end. False: nothing more is read.
  bool take(std::span<const std::byte> message, ForeignDescriptor fd) {
    if (message.empty()) {
      server_.end(*this, why_closed(), "", true);
      return false;
    }
    if (const auto done = server_.translator_.receive(session, message, std::move(fd)); !done) {
      server_.end(*this, "protocol_error", done.error().message(), false);
      return false;
    }
    return !session.ended();  // cannot be written to: reaped by our caller
  }

  void throttle() {
    const base::TimePoint now = server_.leases_.now();
    if (!throttled_since_) {
      throttled_since_ = now;
      server::log_warning("a tenant sends too much and is read more slowly",
                          {{"tenant", session.id.value}, {"pid", session.peer.pid}, {"limit", kMessagesPerSecond}});
    } else if (now - *throttled_since_ > kMaxThrottled) {
      return server_.end(*this, "flood",
                         "more than " + std::to_string(kMessagesPerSecond) +
                             " messages a second for 10 s, or descriptors that cannot be closed",
                         false);
    }
    pause_.expires_after(kThrottlePause);
    pause_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error && self->open_) self->wait_read();
    });
  }

  void wait_write() {
    socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error && self->open_) self->write_some();
                       });
  }

  void write_some() {
    while (!outbox_.empty()) {
      const auto sent = os::send_message(socket_.native_handle(), outbox_.front().bytes, outbox_.front().fd.get());
      if (!sent && sent.error().system_errno == EAGAIN) return wait_write();
      if (!sent) return outbox_.clear();  // the reader notices
      outbox_.pop_front();
    }
  }

  TenantServer& server_;
  asio::posix::stream_descriptor socket_;
  asio::posix::stream_descriptor process_;
  asio::steady_timer pause_;
  struct Unsent {
    std::vector<std::byte> bytes;
    ForeignDescriptor fd;
  };
  std::deque<Unsent> outbox_;
  RateLimit rate_{kMessageBurst, kMessagesPerSecond};
  std::optional<base::TimePoint> throttled_since_;
  bool is_at_door_ = false;
  bool open_ = true;
};

Admission::Limits TenantServer::limits() {
  const long most = ::sysconf(_SC_OPEN_MAX);
  const auto descriptors = most > 0 ? static_cast<std::size_t>(most) : std::size_t{1024};
  const std::size_t room =
      descriptors > kOtherDescriptors ? (descriptors - kOtherDescriptors) / kDescriptorsPerTenant : 64;
  return {std::min(base::kMaxTenants, room), std::min(base::kMaxTenantsPerAccount, room),
          std::min(base::kReservedTenants, room / 2)};
}

TenantServer::TenantServer(asio::io_context& io, Translator& translator, TenantParts& parts, Leases& leases,
                           const server::AccessRules& access, Closer& closer, Admission::Limits limits,
                           std::function<void()> settled)
    : io_(io),
      translator_(translator),
      parts_(parts),
      leases_(leases),
      access_(access),
      closer_(closer),
      admission_(limits, "tenants", access, closer),
      settled_(std::move(settled)),
      listener_(
          io, closer, [this](ForeignConnection socket) { add(std::move(socket)); }, [this] { settled_(); }),
      doorkeeper_(io, closer) {}

TenantServer::~TenantServer() { close(); }

void TenantServer::listen(os::FileDescriptor socket, server::Door door, os::PeerLookup lookup,
                          ContainerRecords containers) {
  door_ = door;
  lookup_ = lookup;
  containers_ = std::move(containers);
  parts_.standings.set_container_of([this](pid_t pid) { return containers_.container_of(pid); });
  listener_.listen(std::move(socket));
}

void TenantServer::add(ForeignConnection socket) {
  auto peer = server::peer_of(socket.get(), access_.subordinates(), door_, lookup_);
  if (!peer) return;
  // It has ended. (Before Linux 5.3 there are no pidfds, and the connection's end has to do.)
  if (peer->process == nullptr && os::open_pidfd(::getpid())) return;
  // The answers from /proc are of this process if that has not ended by then.
  std::string domain = peer->process != nullptr ? server::trust_domain(peer->pid, peer->uid) : std::string();
  auto container = peer->process != nullptr ? containers_.container_of(peer->pid) : nullptr;
  if (!is_connected(socket.get())) return;
  if (peer->has_ended()) {
    domain.clear();
    container = nullptr;
  }
  const base::TenantId id{next_tenant_++};
  const auto connection = std::make_shared<Connection>(*this, id, std::move(*peer), std::move(socket));
  Session& session = connection->session;
  session.trust_domain = std::move(domain);
  session.container = std::move(container);
  if (!access_.may_connect(session.peer)) {
    Translator::refuse(
        session, wire::Reason::kDenied,
        "user " + std::to_string(session.peer.uid) + " may not use this daemon (allow_users, allow_groups)");
    return connection->close();
  }
  if (const auto why = admission_.refusal(session.peer)) {
    Translator::refuse(session, wire::Reason::kLimit, *why);
    if (may_complain()) {
      server::log_warning("a tenant is refused: too many are connected",
                          {{"pid", session.peer.pid}, {"uid", session.peer.uid}, {"why", *why}});
    }
    return connection->close();
  }
  admission_.entered(session.peer.account);
  connections_.emplace(id, connection);
  parts_.table.add(session);
  connection->start();
}

bool TenantServer::may_complain() {
  if (!complaints_.take(leases_.now())) {
    ++complaints_suppressed_;
    return false;
  }
  if (const auto suppressed = std::exchange(complaints_suppressed_, 0); suppressed > 0) {
    server::log_warning("more tenants misbehaved than this log names", {{"left_out", suppressed}});
  }
  return true;
}

void TenantServer::end(Connection& connection, std::string_view why, const std::string& detail, bool expected) {
  const auto found = connections_.find(connection.session.id);
  if (found == connections_.end()) return;
  const auto keep = found->second;  // the caller may be one of its own functions
  connections_.erase(found);
  const Session& session = connection.session;
  admission_.left(session.peer.account);
  connection.session.process = connection.process();
  connection.close();
  translator_.ended(connection.session, why);
  const server::LogFields fields{{"tenant", session.id.value},
                                 {"pid", session.peer.pid},
                                 {"program", session.label->program},
                                 {"why", why},
                                 {"detail", detail}};
  if (!expected) {
    if (may_complain()) server::log_warning("tenant dropped", fields);
  } else if (session.welcomed) {
    server::log_info("tenant gone", fields);
  }
  if (gone_ && session.welcomed) gone_(session);
  reap();
}

void TenantServer::reap() {
  for (const base::TenantId id : parts_.mail.take_unwritable()) {
    const auto found = connections_.find(id);
    if (found != connections_.end()) end(*found->second, "does_not_read", "its messages pile up unread", false);
  }
}

void TenantServer::housekeeping() {
  const base::TimePoint now = leases_.now();
  std::vector<std::shared_ptr<Connection>> late;
  for (const auto& [id, connection] : connections_) {
    // A doorkeeper may have its Hello.
    if (connection->is_at_door()) continue;
    if (!connection->session.welcomed && now - connection->connected_at > kHelloTimeout) late.push_back(connection);
  }
  for (const auto& connection : late)
    end(*connection, "no_hello", "it sent no message within 5 s of connecting", false);
}

void TenantServer::close() {
  listener_.close();
  for (const auto& [id, connection] : connections_) connection->close();
  connections_.clear();
  doorkeeper_.close();
}

}  // namespace gpumux::daemon
