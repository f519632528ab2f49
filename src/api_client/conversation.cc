// SPDX-License-Identifier: Apache-2.0
#include "api_client/conversation.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "api_client/http.h"

namespace gpumux::api_client {

namespace asio = boost::asio;

Conversation::Conversation(asio::io_context& context, std::string runtime_dir, base::Duration patience)
    : context_(context), patience_(patience), connection_(context, std::move(runtime_dir)) {}

void Conversation::ask(Request request, OnAnswer on_answer) {
  asked_.push_back({std::move(request), std::move(on_answer)});
  if (asked_.size() == 1) asio::post(context_, [this] { asio::co_spawn(context_, converse(), asio::detached); });
}

asio::awaitable<void> Conversation::converse() {
  while (!asked_.empty()) {
    auto answer = co_await connection_.ask(asked_.front().request, patience_);
    if (!answer) {
      // A request that a handler makes now is another attempt.
      const std::deque<Asked> failed = std::exchange(asked_, {});
      for (const Asked& one : failed) one.on_answer(tl::unexpected(answer.error()));
      co_return;
    }
    // It counts as asked until its handler has returned: a request that the handler makes is the next one here.
    asked_.front().on_answer(body_of(std::move(answer)));
    asked_.pop_front();
  }
}

}  // namespace gpumux::api_client
