// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on a connection of a TcpListener: requests are read within bounds, and answered one after the other.
//
// On the thread that runs the listener's io_context.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "listener/listener.h"

namespace gpumux::listener {

struct RequestLimits {
  std::uint32_t header_bytes;
  std::size_t body_bytes;
  std::chrono::seconds idle;  // between two requests
  std::chrono::seconds move;  // for a request that has begun, and for an answer
};

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;
using HttpResponse = boost::beast::http::response<boost::beast::http::string_body>;

// Until the connection ends or the listener closes. `stream`: the place's, or TLS above it. `answer`: a coroutine from
// an HttpRequest to an optional HttpResponse. A request that has no answer is returned: the connection is the caller's.
template <class Stream, class Answer>
boost::asio::awaitable<std::optional<HttpRequest>> answer_requests(Stream& stream, TcpListener::Place& place,
                                                                   const TcpListener& listener, RequestLimits limits,
                                                                   Answer answer) {
  namespace http = boost::beast::http;
  constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);
  boost::beast::tcp_stream& lowest = place.stream();
  boost::beast::flat_buffer buffer(2 * limits.header_bytes + limits.body_bytes);
  for (bool keep = true; keep && listener.is_open();) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(limits.header_bytes);
    parser.body_limit(limits.body_bytes);
    lowest.expires_after(limits.idle);
    auto [idle, first] = co_await http::async_read_some(stream, buffer, parser, kAwait);
    if (idle && idle != http::error::need_buffer) co_return std::nullopt;
    place.move_back();
    lowest.expires_after(limits.move);
    if (!parser.is_done()) {
      auto [error, size] = co_await http::async_read(stream, buffer, parser, kAwait);
      if (error) co_return std::nullopt;
    }
    HttpRequest request = parser.release();
    std::optional<HttpResponse> response = co_await answer(request);
    if (!response) co_return request;
    keep = response->keep_alive();
    lowest.expires_after(limits.move);
    auto [late, sent] = co_await http::async_write(stream, *response, kAwait);
    if (late) co_return std::nullopt;
  }
  co_return std::nullopt;
}

}  // namespace gpumux::listener
