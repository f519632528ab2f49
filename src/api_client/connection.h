// SPDX-License-Identifier: Apache-2.0
// A connection to the daemon's HTTP API: each request is a coroutine. Client, Conversation and the web view use it.
//
// One request after the other: the daemon looks up who asks once for each connection. After an error the connection is
// closed, and the next request connects anew. Errors are those of Client.
//
// Owned by the thread that runs `context`.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "api_client/request.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

// The largest answer that is read: 1,000 seats are about 400 KiB of JSON.
inline constexpr std::size_t kMaxAnswerBytes = 64 << 20;

// The longest line of a trace.
inline constexpr std::size_t kMaxTraceLineBytes = 64 << 10;

class Connection {
 public:
  // `runtime_dir`: the daemon's; empty: os::find_runtime_dir(), asked each time that it connects.
  Connection(boost::asio::io_context& context, std::string runtime_dir)
      : given_dir_(std::move(runtime_dir)), stream_(context) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // A caller that may wait for a daemon with a full backlog connects first, and waits at most `patience`.
  base::Status connect(base::Duration patience);

  // An answer, whatever it says; `patience` is how long it may take.
  boost::asio::awaitable<base::Result<Answer>> ask(Request request, base::Duration patience);

  // Hands each line of a trace, without its newline, to `on_line` until that returns false or the trace ends. `follow`:
  // only the daemon's end ends it. `patience`: for the first byte. For each further one, too, unless `follow`.
  boost::asio::awaitable<base::Status> read_trace(Request request, base::Duration patience, bool follow,
                                                  std::function<bool(std::string_view line)> on_line);

  // Where the daemon was found last.
  const std::string& runtime_dir() const { return runtime_dir_; }
  // How many connections there were. A daemon that is restarted has a new one.
  std::uint64_t connections() const { return connections_; }

 private:
  boost::asio::awaitable<base::Status> send(const Request& request, base::Duration patience);
  // `error` ended `doing`, and with it the connection.
  base::Error end(const boost::system::error_code& error, const char* doing);

  const std::string given_dir_;
  std::string runtime_dir_;
  std::uint64_t connections_ = 0;
  boost::beast::basic_stream<boost::asio::local::stream_protocol> stream_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace gpumux::api_client
