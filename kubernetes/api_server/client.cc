// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/api_server/client.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace gpumux::kubernetes {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using base::Code;

// Above all tokens.
constexpr std::size_t kMaxTokenBytes = 64 << 10;

std::string without_end(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
}

base::Result<std::string> read_token(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string token;
  if (file) token = without_end({std::istreambuf_iterator<char>(file), {}});
  if (token.empty() || token.size() > kMaxTokenBytes || token.find_first_of("\r\n") != std::string::npos)
    return base::fail(Code::kUnavailable,
                      "cannot read a token of a service account from " + path + "; is the pod given one?");
  return token;
}

base::Error server_error(unsigned status, const std::string& what, const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  std::string said = "status " + std::to_string(status);
  if (json.is_object() && json.contains("message") && json["message"].is_string())
    said = json["message"].get<std::string>() + " (" + said + ")";
  const Code code = status == 401 || status == 403   ? Code::kDenied
                    : status == 404                  ? Code::kNotFound
                    : status == 409                  ? Code::kExists
                    : status == 400 || status == 422 ? Code::kInvalid
                                                     : Code::kUnavailable;
  return {code, 0, "the API server refuses " + what + ": " + said};
}

}  // namespace

struct ApiServer::Answer {
  unsigned status = 0;
  std::string body;
  bool is_last = false;  // of the connection
};

class ApiServer::Connection {
 public:
  Connection(const ApiServerSettings& settings, ssl::context context)
      : settings_(settings), context_(std::move(context)), stream_(events_, context_) {}

  base::Result<Answer> exchange(http::request<http::string_body> request) {
    std::optional<base::Result<Answer>> result;
    asio::co_spawn(events_, converse(std::move(request)), [&](std::exception_ptr thrown, Answer answer) {
      if (!thrown) {
        result = std::move(answer);
        return;
      }
      const auto fail = [&](const std::string& why) {
        result = base::fail(Code::kUnavailable, "no answer from the API server at " + name() + ": " + why);
      };
      try {
        std::rethrow_exception(thrown);
      } catch (const boost::system::system_error& error) {
        fail(error.code().message());  // what() names Boost's own source, too
      } catch (const std::exception& error) {
        fail(error.what());
      }
    });
    events_.restart();
    events_.run_for(settings_.limit);
    if (result) return std::move(*result);
    // The stream's end ends the coroutine, which uses what is here.
    boost::system::error_code ignored;
    beast::get_lowest_layer(stream_).socket().close(ignored);
    events_.run();
    return base::fail(Code::kTimeout, "no answer from the API server at " + name() + " within " +
                                          std::to_string(settings_.limit.count()) + " ms");
  }

 private:
  std::string name() const { return settings_.address + " port " + settings_.port; }

  asio::awaitable<Answer> converse(http::request<http::string_body> request) {
    if (!is_open_) {
      const auto port = static_cast<unsigned short>(std::stoul(settings_.port));
      const asio::ip::tcp::endpoint server(asio::ip::make_address(settings_.address), port);
      co_await beast::get_lowest_layer(stream_).async_connect(server, asio::use_awaitable);
      beast::get_lowest_layer(stream_).socket().set_option(asio::ip::tcp::no_delay(true));
      co_await stream_.async_handshake(ssl::stream_base::client, asio::use_awaitable);
      is_open_ = true;
    }
    co_await http::async_write(stream_, request, asio::use_awaitable);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kMaxAnswerBytes);
    co_await http::async_read(stream_, buffer_, parser, asio::use_awaitable);
    auto response = parser.release();
    co_return Answer{response.result_int(), std::move(response.body()), response.need_eof()};
  }

  const ApiServerSettings& settings_;
  asio::io_context events_;
  ssl::context context_;
  beast::ssl_stream<beast::tcp_stream> stream_;
  beast::flat_buffer buffer_;
  bool is_open_ = false;
};

ApiServer::ApiServer(ApiServerSettings settings) : settings_(std::move(settings)) {}

ApiServer::~ApiServer() = default;

base::Result<std::string> ApiServer::get(const std::string& path) { return call("GET", path, {}); }

base::Result<std::string> ApiServer::create(const std::string& path, const std::string& object) {
  return call("POST", path, object);
}

base::Result<std::string> ApiServer::replace(const std::string& path, const std::string& object) {
  return call("PUT", path, object);
}

base::Status ApiServer::remove(const std::string& path) {
  const auto answer = call("DELETE", path, {});
  if (!answer) return tl::unexpected(answer.error());
  return {};
}

base::Result<std::string> ApiServer::call(const std::string& method, const std::string& path, const std::string& body) {
  const std::lock_guard lock(mutex_);
  try {
    const bool may_be_closed = connection_ != nullptr;
    auto answer = exchange(method, path, body);
    if (!answer && may_be_closed && answer.error().code == Code::kUnavailable) answer = exchange(method, path, body);
    if (!answer) return tl::unexpected(answer.error());
    if (answer->status / 100 == 2) return std::move(answer->body);
    return tl::unexpected(server_error(answer->status, method + " " + path, answer->body));
  } catch (const std::exception& error) {
    connection_.reset();
    return base::fail(Code::kUnavailable, "cannot ask the API server: " + std::string(error.what()));
  }
}

base::Result<ApiServer::Answer> ApiServer::exchange(const std::string& method, const std::string& path,
                                                    const std::string& body) {
  const auto token = read_token(settings_.token_file);
  if (!token) return tl::unexpected(token.error());
  if (!connection_) {
    ssl::context context(ssl::context::tls_client);
    context.set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
    boost::system::error_code error;
    context.load_verify_file(settings_.authorities_file, error);
    if (error)
      return base::fail(Code::kUnavailable, "cannot read the certificates of the API server's authorities from " +
                                                settings_.authorities_file + ": " + error.message());
    context.set_verify_mode(ssl::verify_peer);
    context.set_verify_callback(ssl::host_name_verification(settings_.address));
    connection_ = std::make_unique<Connection>(settings_, std::move(context));
  }
  http::request<http::string_body> request(http::string_to_verb(method), path, 11);
  const bool is_v6 = settings_.address.find(':') != std::string::npos;
  request.set(http::field::host, (is_v6 ? "[" + settings_.address + "]" : settings_.address) + ":" + settings_.port);
  request.set(http::field::authorization, "Bearer " + *token);
  request.set(http::field::accept, "application/json");
  request.set(http::field::user_agent, "gpumux-kubelet-plugin");
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  auto answer = connection_->exchange(std::move(request));
  if (!answer || answer->is_last) connection_.reset();
  return answer;
}

}  // namespace gpumux::kubernetes
