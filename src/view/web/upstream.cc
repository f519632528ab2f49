// SPDX-License-Identifier: Apache-2.0
#include "view/web/upstream.h"

#include <sys/un.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <utility>

#include "api_client/http.h"
#include "os/runtime_dir.h"

namespace gpumux::view::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using base::Code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

base::Error no_answer() {
  return {Code::kUnavailable, 0, "the gpumux daemon closed the connection: it was stopped or restarted"};
}

}  // namespace

asio::awaitable<base::Status> Upstream::Connection::connect() {
  std::string dir = upstream_.runtime_dir_;
  if (dir.empty()) {
    auto found = os::find_runtime_dir();
    if (!found) co_return tl::unexpected(found.error());
    dir = std::move(*found);
  }
  const std::string path = os::api_socket(dir);
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    co_return base::fail(Code::kInvalid, "the path of the daemon's socket is longer than 107 bytes: " + path);
  auto [error] = co_await stream_.async_connect(asio::local::stream_protocol::endpoint(path), kAwait);
  if (error == asio::error::access_denied)
    co_return base::fail(Code::kDenied, "this user may not connect to the gpumux daemon at " + path);
  if (error) co_return base::fail(Code::kUnavailable, "no gpumux daemon answers at " + path);
  co_return base::Status();
}

asio::awaitable<base::Result<Answer>> Upstream::Connection::ask(const char* method, std::string target,
                                                                std::string body) {
  stream_.expires_after(kAnswerTimeout);
  if (!stream_.socket().is_open()) {
    const base::Status connected = co_await connect();
    if (!connected) co_return tl::unexpected(connected.error());
  }
  // A daemon that turns a client away answers before it is asked, so a failed write is no failure yet.
  auto request = api_client::make_request(method, target, body);
  request.keep_alive(true);
  co_await http::async_write(stream_, request, kAwait);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  auto [error, size] = co_await http::async_read(stream_, buffer_, parser, kAwait);
  if (error == beast::error::timeout)
    co_return base::fail(Code::kTimeout, "the gpumux daemon does not answer: it hangs or is overloaded");
  if (error) co_return tl::unexpected(no_answer());
  auto& response = parser.get();
  co_return Answer{response.result_int(), std::string(response[http::field::content_type]), std::move(response.body())};
}

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
  Connection connection(*this);
  co_return co_await connection.ask("GET", std::move(target));
}

asio::awaitable<base::Result<Answer>> Upstream::change(std::string target, std::string body) {
  Connection connection(*this);
  auto answer = co_await connection.ask("PATCH", std::move(target), std::move(body));
  forget_answers();
  co_return answer;
}

}  // namespace gpumux::view::web
