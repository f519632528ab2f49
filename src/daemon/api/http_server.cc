// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "daemon/peers/client_stream.h"
#include "os/system_clock.h"
#include "server/loop/log.h"
#include "server/loop/pool_work.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using namespace std::chrono_literals;

// curl sends 100 bytes of header; the longest body names every setting.
constexpr std::uint32_t kMaxHeaderBytes = 8 << 10;
constexpr std::uint64_t kMaxBodyBytes = 16 << 10;
// A job's arguments and environment: the kernel takes 6 MiB, JSON may need more for them.
constexpr std::uint64_t kMaxSubmissionBytes = 16 << 20;
// A request beyond this counts in kMaxLargeRequests. An ordinary job is far below: its environment is 4 KiB.
constexpr std::uint64_t kLargeRequestBytes = 512 << 10;
// The time for a large request: this, and a second for each kLeastBytesPerSecond. A slow disk reads a hundred times as
// fast.
constexpr auto kLargeRequestStart = 2s;
constexpr std::uint64_t kLeastBytesPerSecond = 1 << 20;
// A connection reads ahead the header and the body of an ordinary request.
constexpr std::size_t kMaxBufferBytes = 32 << 10;
// A kept connection may be idle this long between requests; a request and its answer have to arrive in time.
constexpr auto kIdleTimeout = 60s;
constexpr auto kWriteTimeout = 10s;
// Followers are served in batches, so that a thousand switches a second are not a thousand writes to each.
constexpr auto kTraceBatch = 5ms;

template <class Message>
void set_fields(Message& message, std::string_view type, bool keep) {
  message.set(http::field::server, "gpumuxd");
  message.set(http::field::content_type, type);
  message.set(http::field::cache_control, "no-store");
  message.keep_alive(keep);
}

// Whether the connection stays, and whether the answer has a body: none to HEAD.
struct AnswerForm {
  bool keep = false;
  bool has_body = true;
};

void set_answer(http::response<http::string_body>& message, server::ApiResponse answer, AnswerForm form) {
  message.result(answer.status);
  set_fields(message, answer.content_type, form.keep);
  if (!answer.allow.empty()) message.set(http::field::allow, answer.allow);
  const std::size_t length = answer.body.size();
  if (form.has_body) message.body() = std::move(answer.body);
  message.content_length(length);
}

}  // namespace

class HttpServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer& server, server::Peer client, ForeignConnection socket)
      : peer(std::move(client)),
        server_(server),
        stream_(server.io_, std::move(socket), server.closer_),
        deadline_(server.io_),
        buffer_(kMaxBufferBytes) {}

  void start() { read(); }

  void close() {
    large_.reset();
    deadline_.cancel();
    stream_.close();
  }

  // The trace has grown.
  void poke() {
    if (trace_ && std::exchange(trace_->awaits_more, false)) send_trace();
  }

  const server::Peer peer;

 private:
  // One of the large requests that the server counts.
  class LargeRequest {
   public:
    LargeRequest(HttpServer& server, const server::Account& account) : server_(server), account_(account) {
      ++server_.large_requests_;
      ++server_.large_per_account_[account_];
    }
    LargeRequest(const LargeRequest&) = delete;
    LargeRequest& operator=(const LargeRequest&) = delete;
    ~LargeRequest() {
      --server_.large_requests_;
      const auto own = server_.large_per_account_.find(account_);
      if (--own->second == 0) server_.large_per_account_.erase(own);
    }

   private:
    HttpServer& server_;
    const server::Account& account_;
  };

  // The trace, which is made while it is sent. Its end may be the connection's: with HTTP/1.0 nothing else tells it.
  struct SentTrace {
    // `last`: of all events that there are.
    SentTrace(const server::ApiTrace& asked, AnswerForm form, unsigned version, std::uint64_t last)
        : follow(asked.follow),
          keep(form.keep && version >= 11 && !asked.follow),
          names_of(asked.names_of),
          cursor(std::max<std::uint64_t>({asked.since, 1, last < asked.limit ? 1 : last - asked.limit + 1})) {
      pieces.version(version);
      pieces.chunked(version >= 11);
      set_fields(pieces, "application/x-ndjson", keep);
      pieces.body().more = true;
    }
    const bool follow;
    const bool keep;
    const std::optional<uid_t> names_of;
    std::uint64_t cursor;
    bool caught_up = false;    // has been sent something: from here on there may be no gap
    bool awaits_more = false;  // a follower that has been sent all that there is
    http::response<http::buffer_body> pieces;
    http::response_serializer<http::buffer_body> writer{pieces};
    std::string piece;
  };

  bool is_open() const { return stream_.is_open(); }

  // For what the connection is about to do. Its end has to call in_time().
  void expires_after(std::chrono::nanoseconds time) {
    deadline_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(time));
    deadline_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      // A deadline that was moved on may have fired already.
      const bool is_late = !error && self->deadline_.expiry() <= asio::steady_timer::clock_type::now();
      if (is_late && self->is_open()) self->server_.remove(*self);
    });
  }
  void in_time() { deadline_.expires_at(asio::steady_timer::time_point::max()); }

  void read() {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(kMaxSubmissionBytes);
    expires_after(kIdleTimeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](const boost::system::error_code& error, std::size_t) {
                              self->header_was_read(error);
                            });
  }

  // Only a submission may be long, and few of them at once.
  void header_was_read(const boost::system::error_code& error) {
    if (!is_open() || error || parser_->is_done()) return was_read(error);
    const auto& message = parser_->get();
    // A peer that can hand in no job need not say more of it.
    const bool is_submission = message.method() == http::verb::post && message.target() == "/v1/jobs" &&
                               !peer.is_contained && server_.access_.may_connect(peer);
    const std::uint64_t limit = is_submission ? kMaxSubmissionBytes : kMaxBodyBytes;
    const std::uint64_t length = parser_->content_length().value_or(limit);
    if (parser_->content_length() && length > limit) return was_read(http::error::body_limit);
    if (length > kLargeRequestBytes) {
      const auto own = server_.large_per_account_.find(peer.account);
      if (own != server_.large_per_account_.end() && own->second >= kMaxLargeRequestsPerAccount) {
        return respond(server::error_response(
                           429, {base::Code::kUnavailable, 0,
                                 peer.account.text() + " is submitting " + std::to_string(kMaxLargeRequestsPerAccount) +
                                     " long jobs now, which is the limit: try again"}),
                       false);
      }
      const std::size_t reserved = server_.access_.may_change(peer) ? 0 : kReservedLargeRequests;
      if (server_.large_requests_ >= kMaxLargeRequests - reserved) {
        return respond(server::error_response(
                           503, {base::Code::kUnavailable, 0, "other users are submitting long jobs now: try again"}),
                       false);
      }
      large_.emplace(server_, peer.account);
      expires_after(kLargeRequestStart + std::chrono::seconds(length / kLeastBytesPerSecond));
    }
    parser_->body_limit(limit);
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](const boost::system::error_code& late, std::size_t) { self->was_read(late); });
  }

  void was_read(const boost::system::error_code& error) {
    in_time();
    if (!is_open()) return;
    if (error == http::error::body_limit || error == http::error::header_limit ||
        error == http::error::buffer_overflow) {
      return respond(server::error_response(413, {base::Code::kExhausted, 0, "the request is too long"}), false);
    }
    if (error && error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return respond(server::error_response(400, {base::Code::kInvalid, 0, "this is not HTTP: " + error.message()}),
                     false);
    }
    if (error) return server_.remove(*this);
    try {
      handle();
    } catch (const std::exception& e) {
      server::log_error("an API request failed", {{"uid", peer.uid}, {"pid", peer.pid}, {"why", e.what()}});
      respond(server::error_response(500, {base::Code::kInternal, 0, "the daemon failed to answer; its log says why"}),
              false);
    }
  }

  void handle() {
    server_.last_used_ = os::now();
    const auto& message = parser_->get();
    const AnswerForm form{message.keep_alive(), message.method() != http::verb::head};
    const unsigned version = message.version();
    if (!server_.access_.may_connect(peer)) {
      return respond(
          server::error_response(403, {base::Code::kDenied, 0,
                                       "you (user " + std::to_string(peer.uid) +
                                           ") may not use this daemon: ask its owner to let you in (allow_users "
                                           "or allow_groups in its configuration)"}),
          false);
    }
    server::ApiRequest request{std::string(message.method_string()), std::string(message.target()),
                               std::move(parser_->get().body()), peer, std::string(message[http::field::accept])};
    server::ApiAnswer answer = server_.api_.answer(request);
    if (auto* response = std::get_if<server::ApiResponse>(&answer)) return respond(std::move(*response), form);
    if (auto* trace = std::get_if<server::ApiTrace>(&answer)) {
      if (form.has_body) return start_trace(*trace, form, version);
      return respond({200, "", "application/x-ndjson"}, form);
    }
    if (auto* later = std::get_if<server::ApiLater>(&answer)) {
      return (*later)([self = shared_from_this(), form](server::ApiResponse response) {
        if (self->is_open()) self->respond(std::move(response), form);
      });
    }
    server::work_then(
        server_.worker_, server_.io_,
        [work = std::move(std::get<server::ApiWork>(answer))] {
          try {
            return work();
          } catch (const std::exception& e) {
            return server::error_response(500, {base::Code::kInternal, 0, e.what()});
          }
        },
        [self = shared_from_this(), form](server::ApiResponse response) {
          if (self->is_open()) self->respond(std::move(response), form);
        });
  }

  void next_request(bool keep) {
    if (!keep) return server_.remove(*this);
    read();
  }

  // The handler of a write: calls `then` unless the client has gone. (need_buffer: a piece has been written.)
  template <class Then>
  auto when_written(Then then) {
    return [self = shared_from_this(), then = std::move(then)](const boost::system::error_code& error,
                                                               std::size_t) mutable {
      self->in_time();
      if (!self->is_open()) return;
      if (error && error != http::error::need_buffer) return self->server_.remove(*self);
      then();
    };
  }

  void respond(server::ApiResponse answer, bool keep) { respond(std::move(answer), AnswerForm{keep}); }

  void respond(server::ApiResponse answer, AnswerForm form) {
    large_.reset();
    server_.last_used_ = os::now();
    response_ = {};
    set_answer(response_, std::move(answer), form);
    expires_after(kWriteTimeout);
    http::async_write(stream_, response_, when_written([this, keep = form.keep] {
                        response_.body().clear();
                        response_.body().shrink_to_fit();
                        next_request(keep);
                      }));
  }

  // ---- the trace

  void start_trace(const server::ApiTrace& asked, AnswerForm form, unsigned version) {
    trace_.emplace(asked, form, version, server_.trace_.last_sequence());
    if (trace_->follow) {
      server_.followers_.insert(this);
      watch();
    }
    expires_after(kWriteTimeout);
    http::async_write_header(stream_, trace_->writer, when_written([this] { send_trace(); }));
  }

  void send_piece(std::string text) {
    trace_->piece = std::move(text);
    trace_->pieces.body().data = trace_->piece.data();
    trace_->pieces.body().size = trace_->piece.size();
    write_piece([this] { send_trace(); });
  }

  void end_pieces() {
    trace_->pieces.body() = {nullptr, 0, false};
    write_piece([this] {
      const bool keep = trace_->keep;
      trace_.reset();
      next_request(keep);
    });
  }

  template <class Then>
  void write_piece(Then then) {
    expires_after(kWriteTimeout);
    http::async_write(stream_, trace_->writer, when_written(std::move(then)));
  }

  // A follower says nothing more: any byte of it, or its end, ends it.
  void watch() {
    stream_.async_wait_read([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error && self->is_open()) self->server_.remove(*self);
    });
  }

  void send_trace() {
    const TraceEntry* entry = server_.trace_.at_or_after(trace_->cursor);
    trace_->awaits_more = entry == nullptr && trace_->follow;
    if (entry == nullptr) return trace_->follow ? void() : end_pieces();  // poked when there is more
    if (entry->sequence > trace_->cursor && trace_->follow && trace_->caught_up) {
      server::log_warning("a follower of the trace reads too slowly and is cut off",
                          {{"uid", peer.uid}, {"pid", peer.pid}});
      return server_.remove(*this);
    }
    trace_->caught_up = true;
    const std::uint64_t first = entry->sequence;
    const std::uint64_t end = TraceTexts::end_of(first);
    if (const std::string* text = server_.trace_texts_.find(trace_->names_of, first)) {
      trace_->cursor = end;
      return send_piece(*text);
    }
    std::vector<TraceEntry> entries;
    while (entry != nullptr && entry->sequence < end) {
      entries.push_back(*entry);
      trace_->cursor = entry->sequence + 1;
      entry = server_.trace_.at_or_after(trace_->cursor);
    }
    const bool is_whole = TraceTexts::is_begin(first) && trace_->cursor == end;
    // The text takes longer to make than the copies, and the loop has better to do.
    server::work_then(
        server_.worker_, server_.io_,
        [entries = std::move(entries), names_of = trace_->names_of] {
          std::string text;
          for (const TraceEntry& one : entries) append_json_line(text, one, names_of);
          return text;
        },
        [self = shared_from_this(), first, is_whole](std::string text) {
          if (!self->is_open()) return;
          if (is_whole) self->server_.trace_texts_.keep(self->trace_->names_of, first, text);
          self->send_piece(std::move(text));
        });
  }

  HttpServer& server_;
  ClientStream stream_;
  asio::steady_timer deadline_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  std::optional<LargeRequest> large_;  // until it is answered
  std::optional<SentTrace> trace_;     // until its end was sent
};

HttpServer::HttpServer(asio::io_context& io, asio::thread_pool& worker, Api& api, Trace& trace,
                       const server::AccessRules& access, Closer& closer)
    : io_(io),
      worker_(worker),
      api_(api),
      trace_(trace),
      access_(access),
      closer_(closer),
      admission_({kMaxApiConnections, kMaxApiConnectionsPerAccount, kReservedApiConnections}, "connections", access,
                 closer),
      flush_(io),
      last_used_(os::now()) {}

HttpServer::~HttpServer() { close(); }

void HttpServer::listen(os::FileDescriptor socket, server::Door door, os::PeerLookup lookup) {
  auto& listener = listeners_.emplace_back(
      io_, closer_, [this, door, lookup](ForeignConnection client) { add(std::move(client), door, lookup); }, [] {});
  listener.listen(std::move(socket));
}

// The listeners stay, closed: a wait of theirs may come back late.
void HttpServer::stop_listening() {
  for (UnixListener& listener : listeners_) listener.close();
}

// One attempt at one send: a client that is not let in costs no memory and no wait.
void HttpServer::turn_away(const ForeignConnection& socket, const std::string& why) {
  http::response<http::string_body> refusal;
  set_answer(refusal, server::error_response(503, {base::Code::kUnavailable, 0, why}), AnswerForm{});
  std::ostringstream text;
  text << refusal;
  const std::string_view bytes = text.view();
  static_cast<void>(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void HttpServer::add(ForeignConnection socket, server::Door door, os::PeerLookup lookup) {
  auto peer = server::peer_of(socket.get(), access_.subordinates(), door, lookup);
  if (!peer) return;
  if (const auto why = admission_.refusal(*peer)) return turn_away(socket, *why);
  auto connection = std::make_shared<Connection>(*this, std::move(*peer), std::move(socket));
  admission_.entered(connection->peer.account);
  connections_.emplace(connection.get(), connection);
  connection->start();
}

void HttpServer::remove(Connection& connection) {
  const auto found = connections_.find(&connection);
  if (found == connections_.end()) return;
  const auto keep = found->second;
  connections_.erase(found);
  if (followers_.erase(&connection) > 0) last_used_ = os::now();
  admission_.left(connection.peer.account);
  connection.close();
}

void HttpServer::trace_grew() {
  if (followers_.empty() || flush_armed_) return;
  flush_armed_ = true;
  flush_.expires_after(kTraceBatch);
  flush_.async_wait([this](const boost::system::error_code& error) {
    flush_armed_ = false;
    if (error) return;
    // A poke may remove a follower.
    const std::vector<Connection*> followers(followers_.begin(), followers_.end());
    for (Connection* follower : followers) {
      if (followers_.contains(follower)) follower->poke();
    }
  });
}

void HttpServer::close() {
  for (UnixListener& listener : listeners_) listener.close();
  flush_.cancel();
  for (const auto& [key, connection] : connections_) connection->close();
  followers_.clear();
  connections_.clear();
}

}  // namespace gpumux::daemon
