// SPDX-License-Identifier: Apache-2.0
#include "web/feed.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "api_client/http.h"
#include "base/result.h"
#include "os/system_clock.h"
#include "os/wall_clock.h"
#include "web/await.h"

namespace gpumux::web {
namespace {

namespace asio = boost::asio;

// Of the trace, in one message: 2.5 MB. A page that misses some does not draw them.
constexpr char kMostEvents[] = "10000";

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string gone_text(const std::string& why) { return R"({"kind":"gone","why":)" + quoted(why) + "}"; }

// The number of the event in this line of the trace; 0: it is none.
std::uint64_t number_of(std::string_view line) {
  const auto event = nlohmann::json::parse(line, nullptr, false);
  return event.is_object() ? event.value("sequence", std::uint64_t{0}) : 0;
}

// One daemon, from the first look at it to the first failure.
class Watch {
 public:
  explicit Watch(Upstream& upstream) : upstream_(upstream), connection_(upstream.new_connection()) {}

  // The message to all pages.
  asio::awaitable<base::Result<std::string>> look() {
    if (daemon_.empty()) {
      auto daemon = co_await read("/v1/daemon");
      if (!daemon) co_return daemon;
      daemon_ = std::move(*daemon);
    }
    auto status = co_await read("/v1/status");
    if (!status) co_return status;
    // A daemon without a queue has all the rest.
    const auto queue = co_await ask("/v1/queue");
    if (!queue) co_return tl::unexpected(queue.error());
    std::string target = "/v1/trace?limit=1";
    if (next_event_ != 0) {
      target = "/v1/trace?limit=";
      target += kMostEvents;
      target += "&since=" + std::to_string(next_event_);
    }
    auto trace = co_await read(std::move(target));
    if (!trace) co_return trace;
    take_events(*trace);
    co_return R"({"kind":"news","now_ns":)" + std::to_string(os::now().time_since_epoch().count()) + R"(,"unix_ns":)" +
        std::to_string(os::wall_clock_ns()) + R"(,"daemon":)" + daemon_ + R"(,"status":)" + *status + R"(,"queue":)" +
        (queue->http_status == 200 ? queue->body : "null") + R"(,"after":)" + std::to_string(after_) +
        R"(,"events":[)" + *trace + "]}";
  }

 private:
  asio::awaitable<base::Result<Answer>> ask(std::string target) {
    api_client::Request request{"GET", std::move(target)};
    co_return co_await connection_.ask(std::move(request), api_client::kDefaultTimeout);
  }

  // The body of an answer that is no error.
  asio::awaitable<base::Result<std::string>> read(std::string target) {
    co_return api_client::body_of(co_await ask(std::move(target)));
  }

  // `lines` becomes a list of them.
  void take_events(std::string& lines) {
    while (!lines.empty() && lines.back() == '\n') lines.pop_back();
    after_ = next_event_ == 0 ? 0 : next_event_ - 1;
    if (lines.empty()) {
      next_event_ = after_ + 1;
      return;
    }
    const std::string_view all = lines;
    after_ = number_of(all.substr(0, all.find('\n'))) - 1;
    next_event_ = number_of(all.substr(all.rfind('\n') + 1)) + 1;
    // A page asks again for what has changed.
    if (lines.find(R"("event": "job")") != std::string::npos) upstream_.forget_answers();
    std::replace(lines.begin(), lines.end(), '\n', ',');
  }

  Upstream& upstream_;
  api_client::Connection connection_;
  std::string daemon_;            // its answer; empty: it was not asked yet
  std::uint64_t next_event_ = 0;  // the first that was not seen yet; 0: not known
  std::uint64_t after_ = 0;       // the event before the newest message's
};

}  // namespace

Feed::Feed(asio::io_context& io, std::shared_ptr<Upstream> upstream)
    : io_(io), upstream_(std::move(upstream)), came_(io, std::chrono::steady_clock::time_point::max()) {}

void Feed::start() { asio::co_spawn(io_, serve(shared_from_this()), asio::detached); }

void Feed::close() {
  is_open_ = false;
  came_.cancel();
}

void Feed::join(Viewer& viewer) {
  viewers_.insert(&viewer);
  if (newest_ && std::chrono::steady_clock::now() - newest_at_ < 2 * kLookEvery) viewer.show(newest_);
  if (viewers_.size() == 1) came_.cancel();
}

void Feed::leave(Viewer& viewer) { viewers_.erase(&viewer); }

void Feed::broadcast(std::string message) {
  newest_ = std::make_shared<const std::string>(std::move(message));
  newest_at_ = std::chrono::steady_clock::now();
  // A viewer that is too slow leaves when it is shown something.
  const std::vector<Viewer*> now(viewers_.begin(), viewers_.end());
  for (Viewer* viewer : now) viewer->show(newest_);
}

asio::awaitable<void> Feed::serve(std::shared_ptr<Feed> self) {
  asio::steady_timer pause(self->io_);
  while (self->is_open_) {
    while (self->is_open_ && self->viewers_.empty()) co_await self->came_.async_wait(kAwait);
    Watch watch(*self->upstream_);
    for (bool goes_on = true; goes_on && self->is_open_ && !self->viewers_.empty();) {
      pause.expires_after(kLookEvery);
      auto news = co_await watch.look();
      self->broadcast(news ? std::move(*news) : gone_text(news.error().message()));
      goes_on = news.has_value();
      co_await pause.async_wait(kAwait);
    }
  }
}

}  // namespace gpumux::web
