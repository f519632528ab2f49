// SPDX-License-Identifier: Apache-2.0
#include "api_client/conversation.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <utility>

#include "api_client/client.h"
#include "api_client/http.h"
#include "os/runtime_dir.h"

namespace gpumux::api_client {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

}  // namespace

Conversation::Conversation(asio::io_context& context, std::string runtime_dir, base::Duration patience)
    : context_(context),
      runtime_dir_(std::move(runtime_dir)),
      path_(os::api_socket(runtime_dir_)),
      patience_(patience),
      socket_(context),
      deadline_(context) {}

void Conversation::ask(Request request, OnAnswer on_answer) {
  asked_.push_back({std::move(request), std::move(on_answer)});
  if (asked_.size() == 1) asio::post(context_, [this] { next(); });
}

void Conversation::next() {
  if (asked_.empty()) return;
  if (!socket_.is_open()) {
    auto stream = connect_stream(runtime_dir_, base::Duration::zero());
    if (!stream) return fail(stream.error());
    socket_.assign(asio::local::stream_protocol(), stream->release());
    buffer_.clear();
    ++connections_;
  }
  send();
}

// Handlers of a connection that was closed come later than the next connection may: `connection` tells them.
template <class Then>
auto Conversation::when_done(const char* doing, Then then) {
  return [this, doing, then = std::move(then), connection = connections_](const error_code& error, std::size_t) {
    if (connection != connections_ || !socket_.is_open()) return;
    if (error) return fail(is_late_ ? late_error(path_, doing) : connection_error(error, path_, doing));
    then();
  };
}

void Conversation::send() {
  is_late_ = false;
  deadline_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(patience_));
  deadline_.async_wait([this](const error_code& error) {
    if (error) return;  // moved on
    is_late_ = true;
    error_code ignored;
    socket_.cancel(ignored);
  });
  const Request& asked = asked_.front().request;
  request_ = make_request(asked.method, asked.target, asked.body);
  request_.keep_alive(true);
  parser_.emplace();
  parser_->body_limit(kMaxAnswerBytes);
  // A daemon that turns a client away answers before it is asked, and closes: what cannot be written is no failure yet.
  http::async_write(socket_, request_, [this, connection = connections_](const error_code&, std::size_t) {
    if (connection == connections_ && socket_.is_open()) receive();
  });
}

void Conversation::receive() {
  if (is_late_) return fail(late_error(path_, "while it was asked"));
  http::async_read(socket_, buffer_, *parser_, when_done("before its answer was complete", [this] { answered(); }));
}

void Conversation::answered() {
  deadline_.cancel();
  auto response = parser_->release();
  if (!response.keep_alive()) {
    error_code ignored;
    socket_.close(ignored);
  }
  const Asked asked = std::move(asked_.front());
  asked_.pop_front();
  if (!asked_.empty()) asio::post(context_, [this] { next(); });
  const unsigned status = response.result_int();
  if (status >= 300) return asked.on_answer(tl::unexpected(read_error(status, response.body())));
  asked.on_answer(std::move(response.body()));
}

void Conversation::fail(const base::Error& error) {
  deadline_.cancel();
  error_code ignored;
  socket_.close(ignored);
  // A request that a handler makes now is another attempt.
  const std::deque<Asked> failed = std::exchange(asked_, {});
  for (const Asked& one : failed) one.on_answer(tl::unexpected(error));
}

}  // namespace gpumux::api_client
