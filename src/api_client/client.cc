// SPDX-License-Identifier: Apache-2.0
#include "api_client/client.h"

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>

#include "api_client/http.h"
#include "os/file_descriptor.h"
#include "os/runtime_dir.h"

namespace gpumux::api_client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using base::Code;
using base::Result;
using base::Status;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;

// One connection: Asio's asynchronous calls, each run to its end or to the deadline, which is the way to give them a
// time limit.
class Connection {
 public:
  Connection(os::FileDescriptor socket, std::string path) : socket_(context_), path_(std::move(path)) {
    socket_.assign(asio::local::stream_protocol(), socket.release());
  }

  // `start` is handed a completion handler and starts one operation. No deadline: waits for ever.
  template <class Start>
  Status run(std::optional<SteadyTime> deadline, const char* doing, Start&& start) {
    std::optional<error_code> result;
    start([&result](error_code error, std::size_t) { result = error; });
    context_.restart();
    if (deadline) {
      context_.run_until(*deadline);
    } else {
      context_.run();
    }
    if (!result) {
      error_code ignored;
      socket_.close(ignored);
      context_.restart();
      context_.run();  // the cancelled operation's handler refers to this frame
      return tl::unexpected(late_error(path_, doing));
    }
    if (!*result || *result == http::error::need_buffer) return {};
    return tl::unexpected(connection_error(*result, path_, doing));
  }

  asio::local::stream_protocol::socket& socket() { return socket_; }

 private:
  asio::io_context context_;
  asio::local::stream_protocol::socket socket_;
  std::string path_;
};

// A daemon that turns a client away answers before it is asked, and closes: what cannot be written is no failure yet.
template <class Request>
Status send_request(Connection& connection, std::optional<SteadyTime> deadline, const Request& request) {
  Status sent = connection.run(deadline, "while it was asked",
                               [&](auto handler) { http::async_write(connection.socket(), request, handler); });
  if (!sent && sent.error().code == Code::kUnavailable) return {};
  return sent;
}

}  // namespace

Result<Client> Client::connect(const Options& options) {
  std::string dir = options.runtime_dir;
  if (dir.empty()) {
    auto found = os::find_runtime_dir();
    if (!found) return tl::unexpected(std::move(found).error());
    dir = std::move(*found);
  }
  auto socket = connect_stream(dir, options.timeout);
  if (!socket) return tl::unexpected(std::move(socket).error());
  return Client(std::move(dir), options.timeout);
}

Result<Client::Answer> Client::exchange(std::string_view method, const std::string& target, const std::string& body,
                                        base::Duration patience, const std::string& accept) const {
  const std::string path = os::api_socket(runtime_dir_);
  auto socket = connect_stream(runtime_dir_, timeout_);
  if (!socket) return tl::unexpected(std::move(socket).error());
  Connection connection(std::move(*socket), path);
  const SteadyTime deadline = std::chrono::steady_clock::now() + timeout_ + patience;
  auto request = make_request(method, target, body);
  if (!accept.empty()) request.set(http::field::accept, accept);
  GPUMUX_TRY(send_request(connection, deadline, request));
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  GPUMUX_TRY(connection.run(deadline, "before its answer was complete",
                            [&](auto handler) { http::async_read(connection.socket(), buffer, parser, handler); }));
  auto& response = parser.get();
  return Answer{response.result_int(), std::string(response[http::field::content_type]), std::move(response.body())};
}

Result<std::string> Client::call(std::string_view method, const std::string& target, const std::string& body,
                                 base::Duration patience) const {
  auto answer = exchange(method, target, body, patience);
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status >= 300) return tl::unexpected(read_error(answer->http_status, answer->body));
  return std::move(answer->body);
}

Result<std::string> Client::snapshot_text() const { return call("GET", "/v1/status", ""); }

Result<Client::Metrics> Client::metrics(bool with_names, const std::string& accept) const {
  auto answer = exchange("GET", std::string("/metrics?names=") + (with_names ? "1" : "0"), "", {}, accept);
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status >= 300) return tl::unexpected(read_error(answer->http_status, answer->body));
  return Metrics{std::move(answer->content_type), std::move(answer->body)};
}

Result<DaemonInfo> Client::daemon_info() const { return call("GET", "/v1/daemon", "").and_then(parse_daemon_info); }

Result<Snapshot> Client::snapshot() const { return snapshot_text().and_then(parse_snapshot); }

Result<std::vector<Gpu>> Client::change_settings(std::string_view gpu, const std::string& changes) const {
  // A GPU's name goes into a URL: nothing but what indices and UUIDs are made of may.
  for (const char c : gpu) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    if (!plain)
      return base::fail(Code::kInvalid, "'" + std::string(gpu) + "' is neither an index, nor a UUID, nor 'all'");
  }
  return call("PATCH", "/v1/gpus/" + std::string(gpu), changes).and_then(parse_settings);
}

Result<Seat> Client::change_tenant(std::uint64_t tenant, const std::string& changes) const {
  return call("PATCH", "/v1/tenants/" + std::to_string(tenant), changes).and_then(parse_tenant);
}

Status Client::hold() const {
  auto answer = call("POST", "/v1/hold", "");
  if (!answer) return tl::unexpected(std::move(answer).error());
  return {};
}

Status Client::trace(bool follow, std::uint64_t since, const std::function<bool(std::string_view)>& on_line,
                     std::optional<std::uint64_t> last) const {
  const std::string path = os::api_socket(runtime_dir_);
  auto socket = connect_stream(runtime_dir_, timeout_);
  if (!socket) return tl::unexpected(std::move(socket).error());
  Connection connection(std::move(*socket), path);
  const auto deadline = [this] { return std::chrono::steady_clock::now() + timeout_; };
  const auto request =
      make_request("GET",
                   "/v1/trace?follow=" + std::string(follow ? "1" : "0") + "&since=" + std::to_string(since) +
                       (last ? "&limit=" + std::to_string(*last) : ""),
                   "");
  GPUMUX_TRY(send_request(connection, deadline(), request));

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);  // a followed trace has no end
  GPUMUX_TRY(connection.run(deadline(), "before the trace began", [&](auto handler) {
    http::async_read_header(connection.socket(), buffer, parser, handler);
  }));
  const unsigned http_status = parser.get().result_int();
  std::string pending;  // an unfinished line, or an error's body
  std::array<char, 16384> chunk;
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    const std::optional<SteadyTime> limit = follow && http_status < 300 ? std::nullopt : std::optional(deadline());
    GPUMUX_TRY(connection.run(limit, "in the middle of the trace", [&](auto handler) {
      http::async_read_some(connection.socket(), buffer, parser, handler);
    }));
    pending.append(chunk.data(), chunk.size() - parser.get().body().size);
    if (http_status < 300) {
      std::size_t begin = 0;
      for (std::size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
        if (end > begin && !on_line(std::string_view(pending).substr(begin, end - begin))) return {};
      }
      pending.erase(0, begin);
    }
    if (pending.size() > kMaxTraceLineBytes)
      return base::fail(Code::kProtocol, "a line of the trace is longer than 64 KiB");
  }
  if (http_status >= 300) return tl::unexpected(read_error(http_status, pending));
  if (!pending.empty()) on_line(pending);
  if (follow) {
    return base::fail(Code::kUnavailable,
                      "the gpumux daemon at " + path + " ended the trace: it was stopped or restarted");
  }
  return {};
}

}  // namespace gpumux::api_client
