// SPDX-License-Identifier: Apache-2.0
#include "view/web/feed.h"

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace gpumux::view::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

constexpr char kFollowing[] = R"({"kind":"following"})";

std::int64_t now_ns(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string gone_text(const std::string& why) { return R"({"kind":"gone","why":)" + quoted(why) + "}"; }

// The sentence of an error of the daemon's.
std::string words_of(const Answer& answer) {
  const auto parsed = nlohmann::json::parse(answer.body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object())
    return parsed["error"].value("message", "");
  return "the daemon answered with HTTP status " + std::to_string(answer.status);
}

}  // namespace

Feed::Feed(asio::io_context& io, std::shared_ptr<Upstream> upstream)
    : io_(io), upstream_(std::move(upstream)), came_(io, std::chrono::steady_clock::time_point::max()) {}

void Feed::start() {
  asio::co_spawn(io_, poll(shared_from_this()), asio::detached);
  asio::co_spawn(io_, follow(shared_from_this()), asio::detached);
}

void Feed::close() {
  is_open_ = false;
  came_.cancel();
  if (trace_ != nullptr) trace_->close();
}

void Feed::join(Viewer& viewer) {
  viewers_.insert(&viewer);
  if (newest_ && std::chrono::steady_clock::now() - newest_at_ < 2 * kSnapshotEvery) viewer.show(newest_);
  if (is_following_) viewer.show(std::make_shared<const std::string>(kFollowing));
  if (viewers_.size() == 1) came_.cancel();
}

void Feed::leave(Viewer& viewer) {
  viewers_.erase(&viewer);
  if (viewers_.empty() && trace_ != nullptr) trace_->close();
}

void Feed::broadcast(Message message) {
  // A viewer that is too slow leaves when it is shown something.
  const std::vector<Viewer*> now(viewers_.begin(), viewers_.end());
  for (Viewer* viewer : now) viewer->show(message);
}

asio::awaitable<void> Feed::wait_for_viewers() {
  while (is_open_ && viewers_.empty()) co_await came_.async_wait(kAwait);
}

asio::awaitable<void> Feed::poll(std::shared_ptr<Feed> self) {
  asio::steady_timer pause(self->io_);
  while (self->is_open_) {
    co_await self->wait_for_viewers();
    pause.expires_after(kSnapshotEvery);
    self->newest_ = co_await self->snapshot();
    self->newest_at_ = std::chrono::steady_clock::now();
    self->broadcast(self->newest_);
    co_await pause.async_wait(kAwait);
  }
}

asio::awaitable<Feed::Message> Feed::snapshot() {
  std::vector<std::string> targets{"/v1/daemon", "/v1/status", "/v1/queue"};
  auto answers = co_await upstream_->read_all(std::move(targets));
  if (!answers) co_return std::make_shared<const std::string>(gone_text(answers.error().message()));
  const Answer& daemon = (*answers)[0];
  const Answer& status = (*answers)[1];
  const Answer& queue = (*answers)[2];
  for (const Answer* one : {&daemon, &status}) {
    if (one->status != 200) co_return std::make_shared<const std::string>(gone_text(words_of(*one)));
  }
  std::string text = R"({"kind":"snapshot","now_ns":)" + std::to_string(now_ns(CLOCK_MONOTONIC)) + R"(,"unix_ns":)" +
                     std::to_string(now_ns(CLOCK_REALTIME)) + R"(,"daemon":)" + daemon.body + R"(,"status":)" +
                     status.body + R"(,"queue":)" + (queue.status == 200 ? queue.body : "null") + "}";
  co_return std::make_shared<const std::string>(std::move(text));
}

asio::awaitable<void> Feed::follow(std::shared_ptr<Feed> self) {
  asio::steady_timer pause(self->io_);
  while (self->is_open_) {
    co_await self->wait_for_viewers();
    Upstream::Stream stream(self->io_);
    self->trace_ = &stream;
    co_await self->read_trace(stream);
    self->trace_ = nullptr;
    self->is_following_ = false;
    self->gathered_.clear();
    pause.expires_after(kSnapshotEvery);
    if (self->is_open_) co_await pause.async_wait(kAwait);
  }
}

// Until the daemon goes, or the last viewer.
asio::awaitable<void> Feed::read_trace(Upstream::Stream& stream) {
  const base::Status connected = co_await upstream_->connect(stream);
  if (!connected) co_return;
  http::request<http::empty_body> request(http::verb::get, "/v1/trace?follow=1&limit=0", 11);
  request.set(http::field::host, "gpumux");
  stream.expires_after(kAnswerTimeout);
  co_await http::async_write(stream, request, kAwait);
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  auto [refused, header_size] = co_await http::async_read_header(stream, buffer, parser, kAwait);
  if (refused || parser.get().result() != http::status::ok) co_return;
  stream.expires_never();
  is_following_ = true;
  broadcast(std::make_shared<const std::string>(kFollowing));
  std::array<char, 16384> chunk;
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    auto [error, size] = co_await http::async_read_some(stream, buffer, parser, kAwait);
    if (error && error != http::error::need_buffer) co_return;
    gather({chunk.data(), chunk.size() - parser.get().body().size});
    if (gathered_.size() > kMaxGatheredBytes) co_return;
  }
}

void Feed::gather(std::string_view bytes) {
  gathered_ += bytes;
  if (is_sending_ || bytes.empty()) return;
  is_sending_ = true;
  asio::co_spawn(io_, send_gathered(shared_from_this()), asio::detached);
}

asio::awaitable<void> Feed::send_gathered(std::shared_ptr<Feed> self) {
  asio::steady_timer pause(self->io_, kGatherFor);
  co_await pause.async_wait(kAwait);
  self->is_sending_ = false;
  const std::size_t end = self->gathered_.rfind('\n');
  if (end == std::string::npos) co_return;
  std::string lines = self->gathered_.substr(0, end);
  self->gathered_.erase(0, end + 1);
  // A view asks again for what has changed.
  if (lines.find(R"("event":"job")") != std::string::npos) self->upstream_->forget_answers();
  std::replace(lines.begin(), lines.end(), '\n', ',');
  self->broadcast(std::make_shared<const std::string>(R"({"kind":"trace","events":[)" + lines + "]}"));
}

}  // namespace gpumux::view::web
