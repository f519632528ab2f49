// SPDX-License-Identifier: Apache-2.0
#include "web/server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "api_client/jobs.h"
#include "base/version.h"
#include "listener/requests.h"
#include "web/feed.h"
#include "web/limits.h"
#include "web/log_tail.h"
#include "web/page_files.h"
#include "web/reply.h"
#include "web/request_rules.h"
#include "web/secrets.h"
#include "web/upstream.h"
#include "web/view.h"

namespace gpumux::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using base::Code;
using listener::TcpListener;
using Request = listener::HttpRequest;

// The page's word for the WebSocket's protocol; the session's key comes behind it.
constexpr std::string_view kProtocol = "gpumux";

constexpr std::string_view kTrace = "/v1/trace?";

std::string_view view_of(beast::string_view text) { return {text.data(), text.size()}; }

// "gpumux, KEY": the key; empty: it is something else.
std::string_view key_in_protocols(std::string_view protocols) {
  if (protocols.substr(0, kProtocol.size()) != kProtocol) return {};
  protocols.remove_prefix(kProtocol.size());
  const std::size_t begin = protocols.find_first_not_of(", ");
  return begin == std::string_view::npos ? std::string_view() : protocols.substr(begin);
}

}  // namespace

class Server::Impl : public std::enable_shared_from_this<Server::Impl> {
 public:
  Impl(asio::io_context& io, Settings settings)
      : listener_(io, kMaxConnections),
        settings_(std::move(settings)),
        upstream_(std::make_shared<Upstream>(io, settings_.runtime_dir)),
        feed_(std::make_shared<Feed>(io, upstream_)) {}

  base::Status listen() {
    // Both that "localhost" may mean: another user's server at one of them would get the tokens of links to it.
    const std::vector<tcp::endpoint> endpoints{{asio::ip::address_v4::loopback(), settings_.port},
                                               {asio::ip::address_v6::loopback(), settings_.port}};
    const base::Status listening = listener_.listen(
        endpoints, [self = shared_from_this()](TcpListener::Place place) { return serve(self, std::move(place)); });
    if (!listening)
      return base::fail(Code::kExists, "cannot listen on port " + std::to_string(settings_.port) + ": " +
                                           listening.error().message() + "; choose another with --port");
    settings_.port = listener_.endpoint().port();
    cookie_name_ = "gpumux-" + std::to_string(settings_.port);
    feed_->start();
    return {};
  }

  void close() {
    listener_.close();
    feed_->close();
    for (View* view : views_) view->close();
  }

  std::uint16_t port() const { return settings_.port; }

  base::Result<std::string> new_link() {
    return secrets_.new_token().map(
        [&](const std::string& token) { return "http://127.0.0.1:" + std::to_string(settings_.port) + "/#" + token; });
  }

 private:
  static asio::awaitable<void> serve(std::shared_ptr<Impl> self, TcpListener::Place place) {
    auto upgrade = co_await self->answer_all(place);
    if (!upgrade) co_return;
    // Views have places of their own.
    beast::tcp_stream stream = std::move(place.stream());
    { const TcpListener::Place free = std::move(place); }
    co_await self->show(std::move(stream), std::move(*upgrade));
  }

  // Answers requests until the connection ends, or one wants to become a view: that one.
  asio::awaitable<std::optional<Request>> answer_all(TcpListener::Place& place) {
    const listener::RequestLimits limits{
        .header_bytes = kMaxHeaderBytes, .body_bytes = kMaxBodyBytes, .idle = kIdleTimeout, .move = kMoveTimeout};
    return listener::answer_requests(
        place.stream(), place, listener_, limits,
        [this](const Request& request) -> asio::awaitable<std::optional<listener::HttpResponse>> {
          const bool is_upgrade = beast::websocket::is_upgrade(request);
          Reply reply = co_await answer(request, is_upgrade);
          if (is_upgrade && reply.status == http::status::switching_protocols) co_return std::nullopt;
          co_return response_of(std::move(reply), request.version(), request.keep_alive() && !is_upgrade);
        });
  }

  asio::awaitable<Reply> answer(const Request& request, bool is_upgrade) {
    const std::string_view host = view_of(request[http::field::host]);
    if (!is_own_host(host, settings_.port))
      co_return refusal(http::status::misdirected_request, Code::kDenied, "this is not the name of this page");
    const std::string_view target = view_of(request.target());
    const bool is_get = request.method() == http::verb::get;
    if (is_get && !is_upgrade) {
      if (const PageFile* file = find_page_file(target)) co_return reply_of(*file);
    }
    // The other requests say or change something. They are for this page alone.
    const std::string_view origin = view_of(request[http::field::origin]);
    const bool has_origin = request.find(http::field::origin) != request.end();
    if (((!is_get || is_upgrade) && !has_origin) || (has_origin && !is_own_origin(origin, host)) ||
        !is_own_site(view_of(request["Sec-Fetch-Site"])))
      co_return refusal(http::status::forbidden, Code::kDenied, "another page may not ask this one");
    if (target == "/session" && request.method() == http::verb::post) co_return open_session(request);
    if (!has_session(request, is_upgrade))
      co_return refusal(http::status::unauthorized, Code::kDenied, "this browser has no session: open a new link");
    if (is_upgrade) co_return may_view(target);
    if (request.method() == http::verb::patch) co_return co_await change(target, request.body());
    if (!is_get) co_return refusal(http::status::method_not_allowed, Code::kUnsupported, "this is only read");
    if (target == "/session") co_return session_reply();
    if (target.substr(0, 5) == "/log/") co_return co_await log(target);
    co_return co_await forward(target);
  }

  bool has_session(const Request& request, bool is_upgrade) const {
    std::vector<std::string_view> cookies;
    const auto [begin, end] = request.equal_range(http::field::cookie);
    for (auto header = begin; header != end; ++header) {
      for (const std::string_view value : cookies_named(view_of(header->value()), cookie_name_))
        cookies.push_back(value);
    }
    return secrets_.is_session(cookies, is_upgrade
                                            ? key_in_protocols(view_of(request[http::field::sec_websocket_protocol]))
                                            : view_of(request["X-Gpumux-Key"]));
  }

  Reply open_session(const Request& request) {
    const auto session = secrets_.open_session(request.body());
    if (!session) return refusal(http::status::unauthorized, Code::kDenied, session.error().message());
    if (settings_.on_session) settings_.on_session();
    Reply reply = json_reply(nlohmann::json{{"key", session->key}}.dump());
    reply.set_cookie = cookie_name_ + "=" + session->cookie + "; HttpOnly; SameSite=Strict; Path=/";
    return reply;
  }

  Reply session_reply() const {
    const nlohmann::json said{{"user", settings_.user},
                              {"host", settings_.host},
                              {"version", base::version()},
                              {"read_only", settings_.read_only}};
    return json_reply(said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  Reply may_view(std::string_view target) const {
    if (target != "/live") return refusal(http::status::not_found, Code::kNotFound, "there is no such stream");
    if (views_.size() >= kMaxViews)
      return refusal(http::status::service_unavailable, Code::kExhausted,
                     "there are " + std::to_string(kMaxViews) + " open pages already");
    Reply reply;
    reply.status = http::status::switching_protocols;
    return reply;
  }

  asio::awaitable<Reply> forward(std::string_view target) {
    const base::Status allowed = check_read(target);
    if (!allowed) co_return reply_of(allowed.error());
    std::string wanted(target);
    if (target.substr(0, kTrace.size()) == kTrace) {
      // Not shared: a view would miss the events between an answer to another view and its own beginning.
      const auto answer = co_await upstream_->read_now(std::move(wanted));
      co_return answer ? reply_of(*answer) : reply_of(answer.error());
    }
    const Upstream::Shared answer = co_await upstream_->read(std::move(wanted));
    if (!*answer) co_return reply_of(answer->error());
    co_return reply_of(**answer);
  }

  asio::awaitable<Reply> change(std::string_view target, const std::string& body) {
    if (settings_.read_only)
      co_return refusal(http::status::forbidden, Code::kDenied, "this view is read-only: it changes nothing");
    const auto job = job_of(target, "/v1/jobs/");
    if (!job) co_return reply_of(job.error());
    const auto wanted = job_change(body);
    if (!wanted) co_return reply_of(wanted.error());
    auto answer = co_await upstream_->change("/v1/jobs/" + *job, *wanted);
    if (!answer) co_return reply_of(answer.error());
    co_return reply_of(*answer);
  }

  // The daemon says where the log is, and only to users who may change the job.
  asio::awaitable<Reply> log(std::string_view target) {
    const auto job = job_of(target, "/log/");
    if (!job) co_return reply_of(job.error());
    const Upstream::Shared answer = co_await upstream_->read("/v1/jobs/" + *job);
    if (!*answer) co_return reply_of(answer->error());
    if ((**answer).http_status != 200) co_return reply_of(**answer);
    const auto known = api_client::parse_job((**answer).body);
    if (!known || known->log.empty())
      co_return refusal(http::status::forbidden, Code::kDenied,
                        "only the job's user and administrators may see its log");
    if (known->started_unix_ns == 0)
      co_return refusal(http::status::not_found, Code::kNotFound, "the job has not started: there is no log yet");
    const auto tail = co_await asio::co_spawn(files_, read_tail(known->log), asio::use_awaitable);
    if (!tail) co_return reply_of(tail.error());
    co_return reply_of(*tail);
  }

  static asio::awaitable<base::Result<LogTail>> read_tail(std::string path) { co_return read_log_tail(path); }

  asio::awaitable<void> show(beast::tcp_stream stream, Request request) {
    const auto view = std::make_shared<View>(std::move(stream), *feed_);
    views_.insert(view.get());
    co_await View::run(view, std::move(request), std::string(kProtocol));
    views_.erase(view.get());
  }

  TcpListener listener_;
  Settings settings_;
  std::string cookie_name_;  // cookies belong to a host, whatever the port
  Secrets secrets_;
  const std::shared_ptr<Upstream> upstream_;
  const std::shared_ptr<Feed> feed_;
  asio::thread_pool files_{1};
  std::set<View*> views_;
};

base::Result<std::unique_ptr<Server>> Server::open(asio::io_context& io, Settings settings) {
  auto impl = std::make_shared<Impl>(io, std::move(settings));
  if (const auto listening = impl->listen(); !listening) return tl::unexpected(listening.error());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { impl_->close(); }
std::uint16_t Server::port() const { return impl_->port(); }
base::Result<std::string> Server::new_link() { return impl_->new_link(); }

}  // namespace gpumux::web
