// SPDX-License-Identifier: Apache-2.0
#include "exporter/server.h"

#include <fcntl.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <utility>

#include "listener/requests.h"
#include "os/durable_file.h"

namespace gpumux::exporter {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using base::Code;
using listener::TcpListener;
using namespace std::chrono_literals;

// Without an exception: an error is how a connection ends.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Prometheus sends some 300 bytes; a token of Kubernetes has 1 KiB.
constexpr std::uint32_t kMaxHeaderBytes = 8 * 1024;
constexpr std::size_t kMaxTokenBytes = 4 * 1024;
// A scraper keeps its connection from one scrape to the next, which is a minute at most by habit.
constexpr auto kIdleTimeout = 130s;
// A handshake, a request that has begun, an answer.
constexpr auto kMoveTimeout = 10s;

base::Result<tcp::endpoint> endpoint_of(const std::string& text) {
  const auto wrong = [&] {
    return base::fail(Code::kInvalid, "'" + text +
                                          "' is no address of metrics: write ADDRESS:PORT with numbers only, "
                                          "as 127.0.0.1:9840 or [::]:9840");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return wrong();
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return wrong();
  }
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, port);
  if (read.ec != std::errc() || read.ptr != end) return wrong();
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (error) return wrong();
  return tcp::endpoint(address, port);
}

base::Result<std::string> read_token(const std::string& file) {
  auto text = os::read_file_at(AT_FDCWD, file.c_str(), kMaxTokenBytes);
  if (!text) return base::fail(Code::kInvalid, text.error().message());
  std::string token = text->substr(0, text->find_first_of("\r\n"));
  if (token.empty()) return base::fail(Code::kInvalid, file + " has no token in its first line");
  return token;
}

base::Result<std::unique_ptr<ssl::context>> tls_of(const Settings& settings) {
  if (settings.certificate_file.empty() != settings.key_file.empty())
    return base::fail(Code::kInvalid, "metrics over TLS need both a certificate and a key: one of them is not set");
  if (settings.certificate_file.empty()) return nullptr;
  auto tls = std::make_unique<ssl::context>(ssl::context::tls_server);
  boost::system::error_code error;
  tls->set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (!error) tls->use_certificate_chain_file(settings.certificate_file, error);
  if (error)
    return base::fail(Code::kInvalid,
                      settings.certificate_file + " cannot be used as a certificate in PEM: " + error.message());
  tls->use_private_key_file(settings.key_file, ssl::context::pem, error);
  if (error)
    return base::fail(Code::kInvalid, settings.key_file + " cannot be used as the key of " + settings.certificate_file +
                                          ": " + error.message());
  return tls;
}

// The settings and their files, as they are understood.
struct Plan {
  tcp::endpoint endpoint;
  std::optional<std::string> token;
  std::unique_ptr<ssl::context> tls;
};

base::Result<Plan> plan_of(const Settings& settings) {
  const auto endpoint = endpoint_of(settings.address);
  if (!endpoint) return tl::unexpected(endpoint.error());
  Plan plan{.endpoint = *endpoint, .token = {}, .tls = {}};
  if (!settings.token_file.empty()) {
    auto token = read_token(settings.token_file);
    if (!token) return tl::unexpected(token.error());
    plan.token = std::move(*token);
  }
  auto tls = tls_of(settings);
  if (!tls) return tl::unexpected(tls.error());
  plan.tls = std::move(*tls);
  return plan;
}

listener::HttpResponse response_of(Page page, unsigned version, bool keep) {
  listener::HttpResponse response(static_cast<http::status>(page.status), version);
  response.set(http::field::server, "gpumux");
  response.set(http::field::content_type, page.content_type);
  response.set(http::field::cache_control, "no-store");
  if (page.status == 401) response.set(http::field::www_authenticate, "Bearer");
  if (page.status == 405) response.set(http::field::allow, "GET");
  response.keep_alive(keep);
  response.body() = std::move(page.body);
  response.prepare_payload();
  return response;
}

Page refusal(unsigned status, std::string why) { return {status, "text/plain; charset=utf-8", std::move(why) + "\n"}; }

}  // namespace

class Server::Impl : public std::enable_shared_from_this<Server::Impl> {
 public:
  Impl(asio::io_context& io, std::unique_ptr<ssl::context> tls, std::optional<std::string> token, Source source)
      : io_(io),
        listener_(io, kMaxConnections),
        tls_(std::move(tls)),
        token_(std::move(token)),
        source_(std::move(source)) {}

  base::Status listen(const tcp::endpoint& endpoint) {
    return listener_
        .listen({endpoint},
                [self = shared_from_this()](TcpListener::Place place) { return begin(self, std::move(place)); })
        .map_error([](base::Error error) {
          error.what = "cannot listen for scrapers: " + error.what;
          return error;
        });
  }

  void close() { listener_.close(); }

  tcp::endpoint endpoint() const { return listener_.endpoint(); }

 private:
  static asio::awaitable<void> begin(std::shared_ptr<Impl> self, TcpListener::Place place) {
    beast::tcp_stream& lowest = place.stream();
    if (self->tls_ == nullptr) {
      co_await self->serve(lowest, place);
      co_return;
    }
    beast::ssl_stream<beast::tcp_stream&> stream(lowest, *self->tls_);
    lowest.expires_after(kMoveTimeout);
    auto [error] = co_await stream.async_handshake(ssl::stream_base::server, kAwait);
    if (!error) co_await self->serve(stream, place);
  }

  template <class Stream>
  asio::awaitable<void> serve(Stream& stream, TcpListener::Place& place) {
    const listener::RequestLimits limits{
        .header_bytes = kMaxHeaderBytes, .body_bytes = 0, .idle = kIdleTimeout, .move = kMoveTimeout};
    co_await listener::answer_requests(
        stream, place, listener_, limits,
        [this](const listener::HttpRequest& request) -> asio::awaitable<std::optional<listener::HttpResponse>> {
          co_return response_of(co_await answer(request), request.version(), request.keep_alive());
        });
  }

  asio::awaitable<Page> answer(const listener::HttpRequest& request) {
    if (request.method() != http::verb::get) co_return refusal(405, "this address is only read");
    const std::string_view target = request.target();
    if (target.substr(0, target.find('?')) != "/metrics") co_return refusal(404, "there is only /metrics here");
    if (!is_allowed(request[http::field::authorization]))
      co_return refusal(401, "send the token of metrics: Authorization: Bearer TOKEN");
    co_return co_await page(token_ ? Names::kShown : Names::kHidden, std::string(request[http::field::accept]));
  }

  bool is_allowed(std::string_view authorization) const {
    constexpr std::string_view kScheme = "bearer ";
    if (!token_) return true;
    const bool is_bearer = authorization.size() == kScheme.size() + token_->size() &&
                           beast::iequals(authorization.substr(0, kScheme.size()), kScheme);
    // In the same time wherever the first difference is.
    return is_bearer && CRYPTO_memcmp(authorization.data() + kScheme.size(), token_->data(), token_->size()) == 0;
  }

  asio::awaitable<Page> page(Names names, std::string accept) {
    return asio::async_initiate<const asio::use_awaitable_t<>, void(Page)>(
        [this, names](auto handler, std::string accepted) {
          // A std::function must be copyable, and a handler is not.
          auto shared = std::make_shared<decltype(handler)>(std::move(handler));
          source_(names, std::move(accepted), [this, shared](Page made) {
            asio::post(io_, [shared, made = std::move(made)]() mutable { std::move (*shared)(std::move(made)); });
          });
        },
        asio::use_awaitable, std::move(accept));
  }

  asio::io_context& io_;
  TcpListener listener_;
  const std::unique_ptr<ssl::context> tls_;  // none: without TLS
  const std::optional<std::string> token_;
  const Source source_;
};

base::Status Server::check(const Settings& settings) {
  const auto plan = plan_of(settings);
  return plan ? base::Status() : tl::unexpected(plan.error());
}

base::Result<std::unique_ptr<Server>> Server::open(asio::io_context& io, const Settings& settings, Source source) {
  auto plan = plan_of(settings);
  if (!plan) return tl::unexpected(plan.error());
  auto impl = std::make_shared<Impl>(io, std::move(plan->tls), std::move(plan->token), std::move(source));
  if (const auto listening = impl->listen(plan->endpoint); !listening) return tl::unexpected(listening.error());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { impl_->close(); }

std::string Server::address() const {
  const tcp::endpoint at = impl_->endpoint();
  const std::string host = at.address().to_string();
  return (at.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(at.port());
}

}  // namespace gpumux::exporter
