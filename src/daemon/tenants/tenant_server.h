// SPDX-License-Identifier: Apache-2.0
// The tenants' socket: accepting, reading, writing, and noticing deaths.
//
// A tenant is gone when its process has ended (pidfd: a forked child may hold the socket open). It is also gone when
// its connection is closed (a living process may leave). A tenant that breaks the protocol, floods or does not read is
// disconnected with a logged reason. The others notice nothing:
//   - a connection is read at most kMessagesPerTurn at a time, then the others have their turn;
//   - it may send kMessagesPerSecond on average; beyond that it is read no faster, and dropped after kMaxThrottled of
//   that;
//   - messages that it does not read wait in its own outbox, which is bounded;
//   - it may send descriptors where they belong only, and no more than are closed in time (closer.h). A message with
//   others is not received: its connection ends;
//   - a doorkeeper receives the messages with descriptors (doorkeeper.h). The connection is not read until it has.
//
// Everything runs on the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <unordered_map>

#include "base/limits.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/peers/admission.h"
#include "daemon/peers/closer.h"
#include "daemon/peers/container.h"
#include "daemon/peers/doorkeeper.h"
#include "daemon/peers/listener.h"
#include "daemon/tenants/tenant_parts.h"
#include "daemon/tenants/translate.h"
#include "os/file_descriptor.h"
#include "server/peers/access.h"

namespace gpumux::daemon {

// Enough to take a whole hand-over's messages in one turn, too few to make others wait: 16 take about 50 us.
inline constexpr int kMessagesPerTurn = 16;

// A tenant that gives its lease back whenever it is idle for 200 us sends 10,000. More than a few GPUs of that is a
// flood.
inline constexpr std::int64_t kMessagesPerSecond = 50'000;
// A tenth of a second's. A guess: a tenant's threads all begin at once.
inline constexpr std::int64_t kMessageBurst = 5'000;
// A guess: a peak of work is over by then, and a flood is not.
inline constexpr std::chrono::seconds kMaxThrottled{10};

// From connecting to Hello. A stopped process must not keep a place for ever.
inline constexpr std::chrono::seconds kHelloTimeout{5};

// Messages that wait for a tenant to read, beyond the kernel's buffer (some 270 of them).
inline constexpr std::size_t kMaxOutbox = 64;

class TenantServer {
 public:
  // How many there may be with the descriptors that this process may have.
  static Admission::Limits limits();
  // `settled` is called after each turn: the core may want another deadline.
  TenantServer(boost::asio::io_context& io, Translator& translator, TenantParts& parts, Leases& leases,
               const server::AccessRules& access, Closer& closer, Admission::Limits limits,
               std::function<void()> settled);
  ~TenantServer();
  TenantServer(const TenantServer&) = delete;
  TenantServer& operator=(const TenantServer&) = delete;

  // Whether tenants' messages can be received here. For the start: it waits.
  base::Status check() { return doorkeeper_.check(); }
  void listen(os::FileDescriptor socket, server::Door door, os::PeerLookup lookup, ContainerRecords containers);

  // Ends sessions that could not be written to. After every event that did not come from here.
  void reap();
  // About once a second: ends connections that have not said Hello.
  void housekeeping();

  std::size_t connections() const { return connections_.size(); }
  // Connections that are in the socket's queue and not accepted yet.
  bool has_pending() { return listener_.has_pending(); }
  // Closes the listening socket and every connection. Tenants go on, and look for another daemon.
  void close();

  void on_gone(std::function<void(const Session&)> callback) { gone_ = std::move(callback); }

 private:
  class Connection;
  void add(ForeignConnection socket);
  bool may_complain();
  void end(Connection& connection, std::string_view why, const std::string& detail, bool expected);

  boost::asio::io_context& io_;
  Translator& translator_;
  TenantParts& parts_;
  Leases& leases_;
  const server::AccessRules& access_;
  Closer& closer_;
  Admission admission_;
  server::Door door_ = server::Door::kOpen;
  os::PeerLookup lookup_ = os::PeerLookup::kBySocket;
  ContainerRecords containers_;
  std::function<void()> settled_;
  std::function<void(const Session&)> gone_;
  UnixListener listener_;
  std::unordered_map<base::TenantId, std::shared_ptr<Connection>> connections_;
  std::uint64_t next_tenant_ = 1;
  // Lines about tenants that misbehave: enough to see it, too few to fill a disk.
  RateLimit complaints_{50, 5};
  std::uint64_t complaints_suppressed_ = 0;
  Doorkeeper doorkeeper_;  // is destroyed first: its pending requests use the other members
};

}  // namespace gpumux::daemon
