// SPDX-License-Identifier: Apache-2.0
// Goal: scrapers get the page, strangers get no names, and no client keeps others out. Method: a server in this process
// and clients with plain sockets. TLS and a real scraper are tests/e2e/metrics_test.py's.
#include "exporter/server.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <thread>

#include "tests/unit/tcp_client.h"

namespace gpumux::exporter {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

class Client : public TcpClient {
 public:
  explicit Client(const std::string& address) : TcpClient(port_of(address)) {}

  Response get(const std::string& target, const std::string& authorization = "") {
    http::request<http::empty_body> request(http::verb::get, target, 11);
    request.set(http::field::accept, "text/test");
    if (!authorization.empty()) request.set(http::field::authorization, authorization);
    return ask(request);
  }
};

class ExporterTest : public ::testing::Test {
 protected:
  void open(Settings settings = {}) {
    settings.address = "127.0.0.1:0";
    auto server = Server::open(io_, settings, [](Names names, const std::string& accept, const auto& reply) {
      reply({200, "text/test", (names == Names::kShown ? "with names " : "without names ") + accept});
    });
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    asio::post(io_, [this] {
      server_.reset();
      io_.stop();
    });
    if (thread_.joinable()) thread_.join();
    if (!token_file_.empty()) std::remove(token_file_.c_str());
  }
  std::string file_with(const std::string& text) {
    token_file_ = ::testing::TempDir() + "exporter_test." + std::to_string(::getpid());
    std::ofstream(token_file_) << text;
    return token_file_;
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::unique_ptr<Server> server_;
  std::thread thread_;
  std::string token_file_;
};

TEST_F(ExporterTest, ServesThePageAgainAndAgainOnOneConnection) {
  open();
  Client client(server_->address());
  for (int i = 0; i < 3; ++i) {
    const auto response = client.get("/metrics");
    EXPECT_EQ(response.result_int(), 200u);
    EXPECT_EQ(response.body(), "without names text/test");
    EXPECT_EQ(response[http::field::content_type], "text/test");
  }
  EXPECT_EQ(client.get("/metrics?x=1").result_int(), 200u);
  EXPECT_EQ(client.get("/v1/status").result_int(), 404u);
  http::request<http::empty_body> post(http::verb::post, "/metrics", 11);
  post.prepare_payload();
  EXPECT_EQ(client.ask(post).result_int(), 405u);
}

TEST_F(ExporterTest, ShowsNamesToWhoeverHasTheToken) {
  open({.address = "", .token_file = file_with("s3cret\nmore\n"), .certificate_file = "", .key_file = ""});
  Client client(server_->address());
  EXPECT_EQ(client.get("/metrics", "Bearer s3cret").body(), "with names text/test");
  EXPECT_EQ(client.get("/metrics", "bearer s3cret").result_int(), 200u);
  for (const char* wrong : {"", "Bearer s3cre", "Bearer s3crets", "Bearer S3cret", "Basic s3cret", "s3cret"}) {
    const auto response = client.get("/metrics", wrong);
    EXPECT_EQ(response.result_int(), 401u) << wrong;
    EXPECT_EQ(response[http::field::www_authenticate], "Bearer");
    EXPECT_EQ(response.body().find("names"), std::string::npos);
  }
}

TEST_F(ExporterTest, AConnectionThatIsIdleMakesRoomForANewOne) {
  open();
  std::deque<Client> clients;
  const auto add = [&] {
    clients.emplace_back(server_->address());
    EXPECT_EQ(clients.back().get("/metrics").result_int(), 200u);
  };
  while (clients.size() < kMaxConnections) add();
  // The first one asks again, so the second one is idle longest.
  EXPECT_EQ(clients[0].get("/metrics").result_int(), 200u);
  add();
  EXPECT_TRUE(clients[1].is_closed());
  EXPECT_EQ(clients[0].get("/metrics").result_int(), 200u);
}

TEST_F(ExporterTest, EndsConnectionsThatSpeakSomethingElse) {
  open();
  for (const std::string& text :
       {std::string("hello\r\n\r\n"), "GET /metrics HTTP/1.1\r\nX: " + std::string(9000, 'x')}) {
    Client client(server_->address());
    client.write(text);
    EXPECT_TRUE(client.is_closed()) << text.substr(0, 20);
  }
}

TEST(Exporter, RefusesSettingsThatAreWrong) {
  asio::io_context io;
  const auto why = [&](const Settings& settings) {
    const auto server = Server::open(io, settings, [](Names, const std::string&, const auto&) {});
    return server ? std::string() : server.error().message();
  };
  for (const char* address : {"", "9840", ":9840", "localhost:9840", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999",
                              "::1:9840", "127.0.0.1:98 40"}) {
    EXPECT_NE(why({address, "", "", ""}).find("is no address of metrics"), std::string::npos) << address;
  }
  EXPECT_NE(why({"127.0.0.1:0", "/nowhere/token", "", ""}), "");
  EXPECT_NE(why({"127.0.0.1:0", "", "/nowhere/cert", ""}).find("one of them is not set"), std::string::npos);
  EXPECT_NE(why({"127.0.0.1:0", "", "/nowhere/cert", "/nowhere/key"}).find("/nowhere/cert"), std::string::npos);
  EXPECT_EQ(why({"[::1]:0", "", "", ""}), "");
}

}  // namespace
}  // namespace gpumux::exporter
