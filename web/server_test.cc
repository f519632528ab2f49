// SPDX-License-Identifier: Apache-2.0
// Goal: the server answers only a browser that has used a link, at the page's own address. No other client can keep
// that browser out. The server asks the daemon once for all views. Method: the server in this process, clients with
// plain sockets, and a daemon that counts its requests.
#include "web/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/unit/tcp_client.h"
#include "tests/unit/temporary_directory.h"
#include "web/limits.h"

namespace gpumux::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using asio::local::stream_protocol;
using Response = http::response<http::string_body>;

// Answers {"asked": "METHOD TARGET BODY", "count": how often it was asked that before}, and its trace.
class CountingDaemon {
 public:
  explicit CountingDaemon(const std::string& path) : acceptor_(io_, stream_protocol::endpoint(path)) {
    accept();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~CountingDaemon() {
    asio::post(io_, [this] { io_.stop(); });
    thread_.join();
  }

  int asked(const std::string& what) {
    const std::lock_guard lock(mutex_);
    return asked_[what];
  }
  void wait_for(const std::string& what, int times) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return asked_[what] >= times; });
  }
  void wait_for_connections(int connections) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return connections_ == connections; });
  }
  // A new event of the trace.
  void say(const std::string& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(R"({"sequence": )" + std::to_string(events_.size() + 1) + R"(, "event": ")" + event + "\"}\n");
  }

 private:
  struct Connection {
    explicit Connection(stream_protocol::socket s) : socket(std::move(s)) {}
    stream_protocol::socket socket;
    beast::flat_buffer buffer;
    http::request<http::string_body> request;
    Response response;
  };
  using Shared = std::shared_ptr<Connection>;

  void accept() {
    acceptor_.async_accept([this](boost::system::error_code error, stream_protocol::socket socket) {
      if (error) return;
      count_connections(1);
      read(std::make_shared<Connection>(std::move(socket)));
      accept();
    });
  }
  void read(const Shared& connection) {
    connection->request = {};
    http::async_read(connection->socket, connection->buffer, connection->request,
                     [this, connection](boost::system::error_code error, std::size_t) {
                       if (error) return count_connections(-1);
                       answer(connection);
                     });
  }
  void answer(const Shared& connection) {
    const auto& request = connection->request;
    const std::string what = std::string(request.method_string()) + " " + std::string(request.target());
    const std::string body = request.body().empty() ? "" : " " + request.body();
    connection->response = Response(http::status::ok, 11);
    connection->response.set(http::field::content_type, "application/json");
    connection->response.body() = what.find("/v1/trace?") != std::string::npos
                                      ? trace(std::string(request.target()))
                                      : nlohmann::json{{"asked", what + body}, {"count", asked(what)}}.dump();
    connection->response.prepare_payload();
    count(what);
    http::async_write(connection->socket, connection->response,
                      [this, connection](boost::system::error_code error, std::size_t) {
                        if (!error) read(connection);
                      });
  }
  // "since=N": from event N on; without it the last one.
  std::string trace(const std::string& target) {
    const std::lock_guard lock(mutex_);
    const std::size_t since = target.find("since=");
    std::size_t first = events_.empty() ? 0 : events_.size() - 1;
    if (since != std::string::npos) first = std::stoul(target.substr(since + 6)) - 1;
    std::string lines;
    for (std::size_t i = first; i < events_.size(); ++i) lines += events_[i];
    return lines;
  }
  void count(const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++asked_[what];
    came_.notify_all();
  }
  void count_connections(int more) {
    const std::lock_guard lock(mutex_);
    connections_ += more;
    came_.notify_all();
  }

  asio::io_context io_;
  stream_protocol::acceptor acceptor_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::map<std::string, int> asked_;
  std::vector<std::string> events_;
  int connections_ = 0;
  std::thread thread_;
};

class Client : public TcpClient {
 public:
  explicit Client(std::uint16_t port) : TcpClient(port), host_("127.0.0.1:" + std::to_string(port)) {}

  http::request<http::string_body> request(http::verb method, const std::string& target, std::string body = "") const {
    http::request<http::string_body> made(method, target, 11);
    made.set(http::field::host, host_);
    made.set(http::field::origin, "http://" + host_);
    if (!cookie.empty()) made.set(http::field::cookie, cookie);
    if (!key.empty()) made.set("X-Gpumux-Key", key);
    made.body() = std::move(body);
    made.prepare_payload();
    return made;
  }
  Response get(const std::string& target) { return ask(request(http::verb::get, target)); }
  unsigned status(const http::request<http::string_body>& wanted) { return ask(wanted).result_int(); }

  // The link's token, or another text.
  Response log_in(const std::string& token) {
    Response response = ask(request(http::verb::post, "/session", token));
    if (response.result() != http::status::ok) return response;
    cookie = std::string(response[http::field::set_cookie]);
    cookie = cookie.substr(0, cookie.find(';'));
    key = nlohmann::json::parse(response.body())["key"];
    return response;
  }
  const std::string& host() const { return host_; }

  std::string cookie;
  std::string key;

 private:
  std::string host_;
};

std::string text_of(const http::request<http::string_body>& request) {
  std::ostringstream text;
  text << request;
  return text.str();
}

// A page that is open. `change` changes its request before it is sent.
class Page {
 public:
  using Change = std::function<void(beast::websocket::request_type&)>;
  Page(const Client& client, std::uint16_t port, const Change& change = {}) : socket_(io_) {
    socket_.next_layer().connect({asio::ip::make_address("127.0.0.1"), port});
    socket_.set_option(beast::websocket::stream_base::decorator([&](beast::websocket::request_type& request) {
      request.set(http::field::origin, "http://" + client.host());
      request.set(http::field::cookie, client.cookie);
      request.set(http::field::sec_websocket_protocol, "gpumux, " + client.key);
      if (change) change(request);
    }));
    socket_.handshake(response_, client.host(), "/live", error_);
  }
  unsigned status() const { return response_.result_int(); }
  const beast::websocket::response_type& response() const { return response_; }
  nlohmann::json next() {
    beast::flat_buffer buffer;
    socket_.read(buffer);
    return nlohmann::json::parse(beast::buffers_to_string(buffer.data()));
  }
  void say(const std::string& text) { socket_.write(asio::buffer(text)); }
  bool is_closed() {
    beast::flat_buffer buffer;
    boost::system::error_code error;
    while (!error) socket_.read(buffer, error);
    return true;
  }

 private:
  asio::io_context io_;
  beast::websocket::stream<tcp::socket> socket_;
  beast::websocket::response_type response_;
  boost::system::error_code error_;
};

class WebServerTest : public ::testing::Test {
 protected:
  void open(bool read_only = false) {
    Settings settings;
    settings.read_only = read_only;
    settings.runtime_dir = directory_.path();
    settings.user = "eva <b>";
    settings.host = "node\"1";
    auto server = Server::open(io_, settings);
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    port_ = server_->port();
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    asio::post(io_, [this] {
      server_.reset();
      io_.stop();
    });
    if (thread_.joinable()) thread_.join();
  }
  std::string token() {
    std::promise<std::string> made;
    asio::post(io_, [&] { made.set_value(*server_->new_link()); });
    const std::string link = made.get_future().get();
    const std::string begin = "http://127.0.0.1:" + std::to_string(port_) + "/#";
    EXPECT_EQ(link.substr(0, begin.size()), begin);
    return link.substr(begin.size());
  }
  Client client() { return Client(port_); }
  Client member() {
    Client made(port_);
    EXPECT_EQ(made.log_in(token()).result_int(), 200U);
    return made;
  }

  TemporaryDirectory directory_;
  CountingDaemon daemon_{directory_.file("api.sock")};
  asio::io_context io_;
  std::unique_ptr<Server> server_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(WebServerTest, ThePageIsForEverybodyAndSaysNothing) {
  open();
  for (const char* path : {"/", "/app.gen.js", "/app.gen.css", "/app.gen.svg"}) {
    const Response file = client().get(path);
    EXPECT_EQ(file.result_int(), 200U) << path;
    EXPECT_FALSE(file.body().empty());
    EXPECT_NE(file["Content-Security-Policy"].find("default-src 'none'; script-src 'self';"), std::string::npos);
    EXPECT_EQ(file["Content-Security-Policy"].find("unsafe"), std::string::npos);
    EXPECT_EQ(file["X-Content-Type-Options"], "nosniff");
    EXPECT_EQ(file["Cache-Control"], "no-store");
    EXPECT_EQ(file.body().find("eva"), std::string::npos);
  }
  for (const char* path : {"/session", "/live", "/v1/status", "/log/1", "/other"})
    EXPECT_EQ(client().get(path).result_int(), 401U) << path;
  EXPECT_EQ(daemon_.asked("GET /v1/status"), 0);
}

// A browser that is sent to localhost tries ::1 first: another user's server there would get the token.
TEST_F(WebServerTest, LocalhostIsOursWhateverAddressItMeans) {
  asio::io_context other;
  const tcp::endpoint loopback(asio::ip::address_v6::loopback(), 0);
  boost::system::error_code error;
  tcp::acceptor taken(other);
  taken.open(tcp::v6(), error);
  if (!error) taken.bind(loopback, error);
  if (error) GTEST_SKIP() << "there is no ::1 here";
  taken.listen();
  Settings settings;
  settings.runtime_dir = directory_.path();
  settings.port = taken.local_endpoint().port();
  const auto refused = Server::open(io_, settings);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kExists);
  EXPECT_NE(refused.error().message().find("[::1]"), std::string::npos) << refused.error().message();

  open();
  tcp::socket socket(other);
  socket.connect({asio::ip::address_v6::loopback(), port_}, error);
  ASSERT_FALSE(error) << error.message();
  http::request<http::empty_body> request(http::verb::get, "/", 11);
  request.set(http::field::host, "localhost:" + std::to_string(port_));
  http::write(socket, request);
  beast::flat_buffer buffer;
  Response page;
  http::read(socket, buffer, page);
  EXPECT_EQ(page.result_int(), 200U);
}

TEST_F(WebServerTest, ALinkOpensOneSession) {
  open();
  const std::string link = token();
  Client first = client();
  const Response opened = first.log_in(link);
  EXPECT_EQ(opened.result_int(), 200U);
  const std::string cookie(opened[http::field::set_cookie]);
  EXPECT_EQ(cookie.substr(0, cookie.find('=')), "gpumux-" + std::to_string(port_));
  EXPECT_EQ(cookie.substr(cookie.find(';')), "; HttpOnly; SameSite=Strict; Path=/");
  EXPECT_EQ(opened.body().find(first.cookie.substr(first.cookie.find('=') + 1)), std::string::npos);
  const auto said = nlohmann::json::parse(first.get("/session").body());
  EXPECT_EQ(said["user"], "eva <b>");
  EXPECT_EQ(said["host"], "node\"1");
  EXPECT_EQ(client().log_in(link).result_int(), 401U);
  EXPECT_EQ(client().log_in("").result_int(), 401U);
  EXPECT_EQ(first.get("/v1/status").result_int(), 200U);
}

TEST_F(WebServerTest, BothSecretsAreNeeded) {
  open();
  const Client whole = member();
  Client without_key = client();
  without_key.cookie = whole.cookie;
  EXPECT_EQ(without_key.get("/v1/status").result_int(), 401U);
  Client without_cookie = client();
  without_cookie.key = whole.key;
  EXPECT_EQ(without_cookie.get("/v1/status").result_int(), 401U);
}

TEST_F(WebServerTest, AnotherNameOfThisAddressIsRefused) {
  open();
  Client rebound = member();
  for (const char* target : {"/", "/app.gen.js", "/session", "/v1/status"}) {
    auto request = rebound.request(http::verb::get, target);
    request.set(http::field::host, "evil.example:" + std::to_string(port_));
    request.set(http::field::origin, "http://evil.example:" + std::to_string(port_));
    EXPECT_EQ(rebound.status(request), 421U) << target;
  }
  auto nameless = rebound.request(http::verb::get, "/");
  nameless.erase(http::field::host);
  EXPECT_EQ(rebound.status(nameless), 421U);
  auto local = rebound.request(http::verb::get, "/v1/status");
  local.set(http::field::host, "localhost:" + std::to_string(port_));
  local.set(http::field::origin, "http://localhost:" + std::to_string(port_));
  EXPECT_EQ(rebound.status(local), 200U);
}

TEST_F(WebServerTest, AnotherPagesRequestsAreRefused) {
  open();
  Client victim = member();
  const auto cancel = victim.request(http::verb::patch, "/v1/jobs/17", R"({"cancel":true})");
  const std::string other_port = "http://127.0.0.1:" + std::to_string(port_ ^ 1);
  for (const std::string& origin : {std::string("http://evil.example"), std::string("null"), other_port}) {
    auto request = cancel;
    request.set(http::field::origin, origin);
    EXPECT_EQ(victim.status(request), 403U) << origin;
    auto read = victim.request(http::verb::get, "/v1/status");
    read.set(http::field::origin, origin);
    EXPECT_EQ(victim.status(read), 403U) << origin;
    auto log_in = victim.request(http::verb::post, "/session", token());
    log_in.set(http::field::origin, origin);
    EXPECT_EQ(victim.status(log_in), 403U) << origin;
    const Page page(victim, port_, [&](auto& wanted) { wanted.set(http::field::origin, origin); });
    EXPECT_EQ(page.status(), 403U) << origin;
  }
  auto nameless = cancel;
  nameless.erase(http::field::origin);
  EXPECT_EQ(victim.status(nameless), 403U);
  auto same_site = victim.request(http::verb::get, "/v1/status");
  same_site.set("Sec-Fetch-Site", "same-site");
  EXPECT_EQ(victim.status(same_site), 403U);
  EXPECT_EQ(daemon_.asked("PATCH /v1/jobs/17"), 0);
  EXPECT_EQ(victim.status(cancel), 200U);
  EXPECT_EQ(daemon_.asked("PATCH /v1/jobs/17"), 1);
}

TEST_F(WebServerTest, AReadOnlyViewChangesNothing) {
  open(true);
  Client viewer = member();
  EXPECT_EQ(viewer.status(viewer.request(http::verb::patch, "/v1/jobs/17", R"({"cancel":true})")), 403U);
  EXPECT_EQ(daemon_.asked("PATCH /v1/jobs/17"), 0);
  EXPECT_EQ(viewer.get("/v1/jobs/17").result_int(), 200U);
}

TEST_F(WebServerTest, OnlyListedRequestsReachTheDaemon) {
  open();
  Client user = member();
  EXPECT_EQ(nlohmann::json::parse(user.get("/v1/jobs?state=done").body())["asked"], "GET /v1/jobs?state=done");
  EXPECT_EQ(user.get("/v1/hold").result_int(), 404U);
  EXPECT_EQ(user.get("/v1/jobs/17?environment=1").result_int(), 404U);
  EXPECT_EQ(user.status(user.request(http::verb::post, "/v1/jobs", "{}")), 405U);
  EXPECT_EQ(user.status(user.request(http::verb::delete_, "/v1/jobs/17")), 405U);
  EXPECT_EQ(user.status(user.request(http::verb::patch, "/v1/gpus/0", R"({"cancel":true})")), 404U);
  EXPECT_EQ(user.status(user.request(http::verb::patch, "/v1/jobs/all", R"({"cancel":true})")), 404U);
  EXPECT_EQ(user.status(user.request(http::verb::patch, "/v1/jobs/17", R"({"signal":"KILL"})")), 400U);
  const auto held = user.ask(user.request(http::verb::patch, "/v1/jobs/17", R"( {"held": true} )"));
  EXPECT_EQ(nlohmann::json::parse(held.body())["asked"], R"(PATCH /v1/jobs/17 {"held":true})");
}

TEST_F(WebServerTest, ALongRequestIsRefused) {
  open();
  Client loud = client();
  auto request = loud.request(http::verb::get, "/");
  request.set("X-Long", std::string(kMaxHeaderBytes, 'x'));
  loud.write(text_of(request));
  EXPECT_TRUE(loud.is_closed());
  Client big = client();
  big.write(text_of(big.request(http::verb::post, "/session", std::string(kMaxBodyBytes + 1, 'x'))));
  EXPECT_TRUE(big.is_closed());
  EXPECT_EQ(client().get("/").result_int(), 200U);
}

TEST_F(WebServerTest, StrangersCannotKeepAViewOut) {
  open();
  const Client owner = member();
  Page page(owner, port_);
  EXPECT_EQ(page.status(), 101U);
  std::vector<std::unique_ptr<Client>> strangers;
  for (std::size_t i = 0; i < kMaxConnections + 1; ++i) {
    strangers.push_back(std::make_unique<Client>(port_));
    // An answer shows that the server has accepted it.
    EXPECT_EQ(strangers.back()->get("/").result_int(), 200U);
  }
  EXPECT_TRUE(strangers.front()->is_closed());
  EXPECT_EQ(page.next()["kind"], "news");
  EXPECT_EQ(client().get("/").result_int(), 200U);
}

TEST_F(WebServerTest, AllViewsShareWhatTheDaemonSays) {
  open();
  const Client owner = member();
  EXPECT_EQ(daemon_.asked("GET /v1/status"), 0);  // without a page the server asks nothing
  daemon_.say("old");
  std::vector<std::unique_ptr<Page>> pages;
  for (int i = 0; i < 20; ++i) pages.push_back(std::make_unique<Page>(owner, port_));
  for (const auto& page : pages) {
    const auto news = page->next();
    EXPECT_EQ(news["kind"], "news");
    EXPECT_EQ(news["status"]["asked"], "GET /v1/status");
    EXPECT_EQ(news["queue"]["asked"], "GET /v1/queue");
  }
  // Each page sees every question that the daemon was asked.
  for (const auto& page : {pages.front().get(), pages.back().get()}) {
    std::vector<int> counts;
    while (counts.size() < 3) counts.push_back(page->next()["status"]["count"]);
    EXPECT_EQ(counts[1], counts[0] + 1);
    EXPECT_EQ(counts[2], counts[1] + 1);
  }
  EXPECT_EQ(daemon_.asked("GET /v1/daemon"), 1);
  pages.clear();
  daemon_.wait_for_connections(0);
}

TEST_F(WebServerTest, EveryEventIsToldOnce) {
  open();
  const Client owner = member();
  daemon_.say("first");
  daemon_.say("second");
  Page page(owner, port_);
  // A page asks for what is before the newest event.
  auto news = page.next();
  EXPECT_EQ(news["after"], 1);
  EXPECT_EQ(news["events"].size(), 1U);
  std::uint64_t last = 2;
  const auto expect_next = [&](std::uint64_t up_to) {
    while (last < up_to) {
      news = page.next();
      EXPECT_EQ(news["after"], last);
      for (const auto& event : news["events"]) EXPECT_EQ(event["sequence"], ++last);
    }
  };
  daemon_.say("third");
  expect_next(3);
  daemon_.say("fourth");
  daemon_.say("fifth");
  expect_next(5);
  news = page.next();
  EXPECT_EQ(news["after"], 5);
  EXPECT_TRUE(news["events"].empty());
}

TEST_F(WebServerTest, AJobThatChangesIsAskedForAnew) {
  open();
  Client owner = member();
  Page page(owner, port_);
  page.next();
  // Answers are shared for a second, but not across a change.
  daemon_.say("job");
  while (page.next()["events"].empty()) continue;
  const int before = daemon_.asked("GET /v1/jobs");
  owner.get("/v1/jobs");
  EXPECT_EQ(daemon_.asked("GET /v1/jobs"), before + 1);
  daemon_.say("job");
  while (page.next()["events"].empty()) continue;
  owner.get("/v1/jobs");
  EXPECT_EQ(daemon_.asked("GET /v1/jobs"), before + 2);
}

TEST_F(WebServerTest, ADaemonThatIsGoneIsTold) {
  open();
  const Client owner = member();
  std::remove(directory_.file("api.sock").c_str());
  Page page(owner, port_);
  const auto message = page.next();
  EXPECT_EQ(message["kind"], "gone");
  EXPECT_NE(message["why"].get<std::string>().find("no gpumux daemon is running"), std::string::npos);
  Client reader = client();
  reader.cookie = owner.cookie;
  reader.key = owner.key;
  EXPECT_EQ(reader.get("/v1/jobs").result_int(), 503U);
}

TEST_F(WebServerTest, AViewNeedsASessionAndSaysNothing) {
  open();
  const Client owner = member();
  for (const std::string& protocols : {std::string(), std::string("gpumux"), "gpumux, " + owner.cookie, owner.key}) {
    const Page stranger(owner, port_, [&](auto& request) {
      request.erase(http::field::sec_websocket_protocol);
      if (!protocols.empty()) request.set(http::field::sec_websocket_protocol, protocols);
    });
    EXPECT_EQ(stranger.status(), 401U) << protocols;
  }
  Page page(owner, port_);
  EXPECT_EQ(page.status(), 101U);
  EXPECT_EQ(page.response()[http::field::sec_websocket_protocol], "gpumux");
  page.say("hello");
  EXPECT_TRUE(page.is_closed());
}

}  // namespace
}  // namespace gpumux::web
