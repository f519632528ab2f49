// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on the API's socket.
//
// Clients are strangers. Limits bound the size and time of requests and the number of connections (admission.h). The
// server cuts off a client that reads the trace too slowly to keep up with the ring. Descriptors that clients send
// along go to the closer (client_stream.h). Everything runs on the loop's thread but ApiWork, which runs on `worker`,
// one at a time. If a client goes while it waits for an ApiLater, the server notices when the answer comes.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "daemon/api/api.h"
#include "daemon/api/trace_texts.h"
#include "daemon/loop/trace.h"
#include "daemon/peers/admission.h"
#include "daemon/peers/closer.h"
#include "daemon/peers/listener.h"
#include "os/file_descriptor.h"
#include "server/peers/access.h"

namespace gpumux::daemon {

// Dashboards, watchers and clients that wait for the end of a job; a connection costs some 12 KiB.
inline constexpr std::size_t kMaxApiConnections = 2048;
// Of these, one account has a quarter at most. The last ones are for root, the owner and administrators.
inline constexpr std::size_t kMaxApiConnectionsPerAccount = 512;
inline constexpr std::size_t kReservedApiConnections = 64;
// Requests of megabytes (a job with a large environment) that are in memory at once.
inline constexpr std::size_t kMaxLargeRequests = 8;
// And of one account, so that no account keeps the others from theirs.
inline constexpr std::size_t kMaxLargeRequestsPerAccount = 2;
// And for users who may change settings, when others have all that they may.
inline constexpr std::size_t kReservedLargeRequests = 2;

class HttpServer {
 public:
  HttpServer(boost::asio::io_context& io, boost::asio::thread_pool& worker, Api& api, Trace& trace,
             const server::AccessRules& access, Closer& closer);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Another socket that clients come by.
  void listen(os::FileDescriptor socket, server::Door door, os::PeerLookup lookup);
  // Connections that were accepted stay.
  void stop_listening();
  // There is something new in the trace.
  void trace_grew();
  void close();

  // The last time that a request came or a follower left.
  base::TimePoint last_used() const { return last_used_; }
  bool has_followers() const { return !followers_.empty(); }

 private:
  class Connection;
  void add(ForeignConnection socket, server::Door door, os::PeerLookup lookup);
  static void turn_away(const ForeignConnection& socket, const std::string& why);
  void remove(Connection& connection);

  boost::asio::io_context& io_;
  boost::asio::thread_pool& worker_;
  Api& api_;
  Trace& trace_;
  const server::AccessRules& access_;
  Closer& closer_;
  Admission admission_;
  std::deque<UnixListener> listeners_;
  TraceTexts trace_texts_;
  boost::asio::steady_timer flush_;
  bool flush_armed_ = false;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::unordered_set<Connection*> followers_;
  std::size_t large_requests_ = 0;
  std::map<server::Account, std::size_t> large_per_account_;  // without those that have none
  base::TimePoint last_used_{};
};

}  // namespace gpumux::daemon
