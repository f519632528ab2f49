// SPDX-License-Identifier: Apache-2.0
// Goal: connections are bounded, and an idle one makes room for a new one. Method: a server that echoes single bytes.
#include "listener/listener.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <deque>
#include <memory>
#include <thread>

#include "tests/unit/tcp_client.h"

namespace gpumux::listener {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::size_t kPlaces = 4;
constexpr char kWait = 'w';  // the server answers, and then waits until it is closed

class EchoServer : public std::enable_shared_from_this<EchoServer> {
 public:
  explicit EchoServer(asio::io_context& io)
      : listener(io, kPlaces), closed_(io, asio::steady_timer::time_point::max()) {}

  base::Status listen(std::uint16_t port) {
    return listener.listen(
        {tcp::endpoint(asio::ip::address_v4::loopback(), port)},
        [self = shared_from_this()](TcpListener::Place place) { return serve(self, std::move(place)); });
  }

  void close() {
    listener.close();
    closed_.cancel();
  }

  TcpListener listener;

 private:
  static asio::awaitable<void> serve(std::shared_ptr<EchoServer> self, TcpListener::Place place) {
    constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
    boost::beast::tcp_stream& stream = place.stream();
    std::array<char, 1> byte{};
    for (;;) {
      auto [ended, read] = co_await stream.async_read_some(asio::buffer(byte), kAwait);
      if (ended) co_return;
      place.move_back();
      auto [gone, written] = co_await stream.async_write_some(asio::buffer(byte), kAwait);
      if (gone) co_return;
      if (byte[0] == kWait) co_await self->closed_.async_wait(kAwait);
    }
  }

  asio::steady_timer closed_;
};

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(server_->listen(0));
    port_ = server_->listener.endpoint().port();
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    close();
    if (thread_.joinable()) thread_.join();
  }
  void close() {
    asio::post(io_, [server = server_] { server->close(); });
  }
  static bool answers(TcpClient& client) {
    client.write("x");
    return !client.is_closed();
  }

  asio::io_context io_{1};
  std::shared_ptr<EchoServer> server_ = std::make_shared<EchoServer>(io_);
  std::uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(ListenerTest, OneTooManyTakesThePlaceOfTheOneThatIsIdleLongest) {
  std::deque<TcpClient> clients;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    clients.emplace_back(port_);
    if (i == 1) continue;
    EXPECT_TRUE(answers(clients.back()));
  }
  // The first one speaks again, so the second one, which never spoke, goes.
  EXPECT_TRUE(answers(clients[0]));
  TcpClient one_more(port_);
  EXPECT_TRUE(answers(one_more));
  EXPECT_TRUE(clients[1].is_closed());
  for (const std::size_t kept : {0U, 2U, 3U}) EXPECT_TRUE(answers(clients[kept])) << kept;
}

// A server that makes an answer does not notice that its connection was closed.
TEST_F(ListenerTest, ConnectionsThatAreClosedHaveNoPlace) {
  const auto begin_waiting = [this](std::deque<TcpClient>& clients) {
    clients.emplace_back(port_).write(std::string(1, kWait));
    return !clients.back().is_closed();
  };
  std::deque<TcpClient> waiting;
  for (std::size_t i = 0; i + 1 < kPlaces; ++i) EXPECT_TRUE(begin_waiting(waiting));
  std::deque<TcpClient> clients;
  for (std::size_t i = 0; i < 5 * kPlaces; ++i) EXPECT_TRUE(answers(clients.emplace_back(port_)));
  EXPECT_EQ(std::count_if(clients.begin(), clients.end(), answers), kPlaces);
  for (TcpClient& client : waiting) EXPECT_TRUE(client.is_closed());
  // Nor do answers for which no place is left become ever more.
  std::size_t begun = 0;
  for (std::size_t i = 0; i < 5 * kPlaces; ++i) begun += begin_waiting(waiting) ? 1U : 0U;
  EXPECT_LE(begun, kPlaces + 1);
  EXPECT_FALSE(answers(clients.emplace_back(port_)));
}

TEST_F(ListenerTest, AConnectionThatEndsFreesItsPlace) {
  TcpClient kept(port_);
  EXPECT_TRUE(answers(kept));
  for (std::size_t i = 0; i < 3 * kPlaces; ++i) {
    TcpClient passing(port_);
    EXPECT_TRUE(answers(passing));
    passing.say_no_more();
    EXPECT_TRUE(passing.is_closed());
  }
  EXPECT_TRUE(answers(kept));  // though it is idle longest
}

TEST_F(ListenerTest, ClosingEndsEveryConnection) {
  std::deque<TcpClient> clients;
  for (std::size_t i = 0; i < kPlaces; ++i) {
    clients.emplace_back(port_);
    EXPECT_TRUE(answers(clients.back()));
  }
  close();
  for (TcpClient& client : clients) EXPECT_TRUE(client.is_closed());
  thread_.join();  // nothing is left to run
  EXPECT_EQ(server_.use_count(), 1);
}

TEST_F(ListenerTest, AnAddressThatIsTakenIsRefused) {
  const auto second = std::make_shared<EchoServer>(io_);
  const base::Status listening = second->listen(port_);
  ASSERT_FALSE(listening);
  EXPECT_EQ(listening.error().message(), "127.0.0.1:" + std::to_string(port_) + ": Address already in use");
}

}  // namespace
}  // namespace gpumux::listener
