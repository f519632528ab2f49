// SPDX-License-Identifier: Apache-2.0
#include "api_client/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http.hpp>
#include <utility>
#include <vector>

#include "api_client/http.h"
#include "base/version.h"
#include "os/runtime_dir.h"

namespace gpumux::api_client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using base::Code;
using base::Result;
using base::Status;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

http::request<http::string_body> message_of(const Request& asked) {
  http::request<http::string_body> message;
  message.method_string(asked.method);
  message.target(asked.target);
  message.version(11);
  message.set(http::field::host, "gpumux");
  message.set(http::field::user_agent, std::string("gpumux/") + base::version());
  if (!asked.accept.empty()) message.set(http::field::accept, asked.accept);
  if (!asked.body.empty()) {
    message.set(http::field::content_type, "application/json");
    message.body() = asked.body;
  }
  message.keep_alive(true);
  message.prepare_payload();
  return message;
}

}  // namespace

Status Connection::connect(base::Duration patience) {
  runtime_dir_ = given_dir_;
  if (runtime_dir_.empty()) {
    auto found = os::find_runtime_dir();
    if (!found) return tl::unexpected(std::move(found).error());
    runtime_dir_ = std::move(*found);
  }
  auto socket = connect_stream(runtime_dir_, patience);
  if (!socket) return tl::unexpected(std::move(socket).error());
  stream_.socket().assign(asio::local::stream_protocol(), socket->release());
  buffer_.clear();
  ++connections_;
  return {};
}

base::Error Connection::end(const boost::system::error_code& error, const char* doing) {
  stream_.close();
  return connection_error(error, os::api_socket(runtime_dir_), doing);
}

asio::awaitable<Status> Connection::send(const Request& request, base::Duration patience) {
  stream_.expires_after(patience);
  if (!stream_.socket().is_open()) {
    Status connected = connect(base::Duration::zero());
    if (!connected) co_return connected;
  }
  auto message = message_of(request);
  const auto [error, size] = co_await http::async_write(stream_, message, kAwait);
  if (error == beast::error::timeout) co_return tl::unexpected(end(error, "while it was asked"));
  // A daemon that turns a client away answers before it is asked, and closes: a failed write is no failure yet.
  co_return Status();
}

asio::awaitable<Result<Answer>> Connection::ask(Request request, base::Duration patience) {
  Status sent = co_await send(request, patience);
  if (!sent) co_return tl::unexpected(std::move(sent).error());
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  const auto [error, size] = co_await http::async_read(stream_, buffer_, parser, kAwait);
  if (error) co_return tl::unexpected(end(error, "before its answer was complete"));
  auto& response = parser.get();
  if (!response.keep_alive()) stream_.close();
  co_return Answer{response.result_int(), std::string(response[http::field::content_type]), std::move(response.body())};
}

asio::awaitable<Status> Connection::read_trace(Request request, base::Duration patience, bool follow,
                                               std::function<bool(std::string_view)> on_line) {
  Status sent = co_await send(request, patience);
  if (!sent) co_return sent;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);  // a followed trace has no end
  const auto [no_head, head_size] = co_await http::async_read_header(stream_, buffer_, parser, kAwait);
  if (no_head) co_return tl::unexpected(end(no_head, "before the trace began"));
  const unsigned http_status = parser.get().result_int();
  std::string pending;  // an unfinished line, or an error's body
  std::vector<char> chunk(16384);
  while (!parser.is_done()) {
    if (follow && http_status < 300) {
      stream_.expires_never();
    } else {
      stream_.expires_after(patience);
    }
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    const auto [error, size] = co_await http::async_read_some(stream_, buffer_, parser, kAwait);
    if (error && error != http::error::need_buffer) co_return tl::unexpected(end(error, "in the middle of the trace"));
    pending.append(chunk.data(), chunk.size() - parser.get().body().size);
    if (http_status < 300) {
      std::size_t begin = 0;
      for (std::size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
        if (end == begin || on_line(std::string_view(pending).substr(begin, end - begin))) continue;
        stream_.close();  // the rest of the trace is no answer to the next request
        co_return Status();
      }
      pending.erase(0, begin);
    }
    if (pending.size() > kMaxTraceLineBytes) {
      stream_.close();
      co_return base::fail(Code::kProtocol, "a line of the trace is longer than 64 KiB");
    }
  }
  if (http_status >= 300) co_return tl::unexpected(read_error(http_status, pending));
  if (!pending.empty()) on_line(pending);
  if (follow) {
    co_return base::fail(Code::kUnavailable, "the gpumux daemon at " + os::api_socket(runtime_dir_) +
                                                 " ended the trace: it was stopped or restarted");
  }
  co_return Status();
}

}  // namespace gpumux::api_client
