// SPDX-License-Identifier: Apache-2.0
#include "web/upstream.h"

#include <utility>

#include "web/await.h"

namespace gpumux::web {
namespace {

namespace asio = boost::asio;

}  // namespace

asio::awaitable<Upstream::Shared> Upstream::read(std::string target) {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(shared_, [&](const auto& one) { return one.second->answer && now - one.second->asked > kSharedFor; });
  const auto found = shared_.find(target);
  if (found != shared_.end()) {
    const std::shared_ptr<Question> question = found->second;
    while (!question->answer) co_await question->answered.async_wait(kAwait);
    co_return question->answer;
  }
  const auto question = std::make_shared<Question>(io_);
  shared_.emplace(target, question);
  auto answer = co_await read_now(std::move(target));
  question->answer = std::make_shared<const base::Result<Answer>>(std::move(answer));
  question->answered.cancel();
  co_return question->answer;
}

asio::awaitable<base::Result<Answer>> Upstream::read_now(std::string target) const {
  api_client::Connection connection = new_connection();
  api_client::Request request{"GET", std::move(target)};
  co_return co_await connection.ask(std::move(request), api_client::kDefaultTimeout);
}

asio::awaitable<base::Result<Answer>> Upstream::change(std::string target, std::string body) {
  api_client::Connection connection = new_connection();
  api_client::Request request{"PATCH", std::move(target), std::move(body)};
  auto answer = co_await connection.ask(std::move(request), api_client::kDefaultTimeout);
  forget_answers();
  co_return answer;
}

}  // namespace gpumux::web
