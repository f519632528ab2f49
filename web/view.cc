// SPDX-License-Identifier: Apache-2.0
#include "web/view.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket.hpp>
#include <chrono>
#include <utility>

#include "web/await.h"
#include "web/limits.h"

namespace gpumux::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;

}  // namespace

View::View(beast::tcp_stream stream, Feed& feed)
    : socket_(std::move(stream)),
      feed_(feed),
      more_(socket_.get_executor(), std::chrono::steady_clock::time_point::max()) {}

asio::awaitable<void> View::run(std::shared_ptr<View> self, Request request, std::string protocol) {
  auto& socket = self->socket_;
  // The WebSocket has time limits of its own: a peer that answers no ping is gone.
  beast::get_lowest_layer(socket).expires_never();
  socket.set_option(websocket::stream_base::timeout{kMoveTimeout, kIdleTimeout, true});
  socket.set_option(websocket::stream_base::decorator([protocol](websocket::response_type& response) {
    response.set(http::field::server, "gpumux");
    response.set(http::field::sec_websocket_protocol, protocol);
  }));
  socket.read_message_max(1);
  socket.text(true);
  // One write for each message: pieces of 4 KiB would each cost a system call.
  socket.auto_fragment(false);
  auto [refused] = co_await socket.async_accept(request, kAwait);
  if (refused) co_return;
  asio::co_spawn(socket.get_executor(), write(self), asio::detached);
  self->feed_.join(*self);
  beast::flat_buffer buffer;
  co_await socket.async_read(buffer, kAwait);
  self->feed_.leave(*self);
  self->close();
}

asio::awaitable<void> View::write(std::shared_ptr<View> self) {
  while (self->is_open_) {
    if (self->unsent_.empty()) {
      co_await self->more_.async_wait(kAwait);
      continue;
    }
    const Feed::Message message = self->unsent_.front();
    auto [error, size] = co_await self->socket_.async_write(asio::buffer(*message), kAwait);
    if (error) {
      self->close();
      co_return;
    }
    self->unsent_.pop_front();
    self->unsent_bytes_ -= message->size();
  }
}

void View::show(const Feed::Message& message) {
  if (unsent_bytes_ + message->size() > kMaxUnsentBytes) {
    close();
    return;
  }
  unsent_.push_back(message);
  unsent_bytes_ += message->size();
  more_.cancel();
}

void View::close() {
  is_open_ = false;
  more_.cancel();
  beast::get_lowest_layer(socket_).close();
}

}  // namespace gpumux::web
