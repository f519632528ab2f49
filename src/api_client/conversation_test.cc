// SPDX-License-Identifier: Apache-2.0
// Goal: requests over one connection are answered in order, and a daemon that hangs, refuses or goes fails them all and
// is found again.
// Method: a scripted server on a unix socket; the test runs the event loop.
#include "api_client/conversation.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <vector>

#include "api_client/scripted_server.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::api_client {
namespace {

using base::Code;
using namespace std::chrono_literals;

class ConversationTest : public ::testing::Test {
 protected:
  std::string socket_path() const { return folder_.path() + "/api.sock"; }
  // Long, so that a slow machine does not matter.
  Conversation talk(base::Duration patience = 30s) { return {context_, folder_.path(), patience}; }
  Conversation::OnAnswer note() {
    return [this](base::Result<std::string> body) {
      answers_.push_back(body ? *body : "error: " + body.error().what);
      if (!body) codes_.push_back(body.error().code);
    };
  }
  void run() {
    context_.restart();
    context_.run();
  }

  const TemporaryDirectory folder_;
  boost::asio::io_context context_;
  std::vector<std::string> answers_;
  std::vector<Code> codes_;
};

// Answers `count` requests on each connection, then closes it.
ScriptedServer::Answer answering(int count) {
  return [count](const ScriptedRequest&, int connection) {
    std::string received;
    for (int i = 0; i < count; ++i) {
      ScriptedServer::send_all(connection, ScriptedServer::response(200, "answer " + std::to_string(i)));
      if (i + 1 == count) break;
      char byte = 0;
      // The next request ends with an empty line: these have no body.
      for (received.clear(); !received.ends_with("\r\n\r\n"); received += byte) {
        if (::recv(connection, &byte, 1, 0) <= 0) return;
      }
    }
  };
}

TEST_F(ConversationTest, OneConnectionForSeveralRequests) {
  const ScriptedServer server(socket_path(), answering(3));
  Conversation conversation = talk();
  for (int i = 0; i < 3; ++i) conversation.ask({"GET", "/v1/status"}, note());
  EXPECT_FALSE(conversation.is_idle());
  EXPECT_TRUE(answers_.empty());
  run();
  EXPECT_EQ(answers_, (std::vector<std::string>{"answer 0", "answer 1", "answer 2"}));
  EXPECT_EQ(conversation.connections(), 1u);
  EXPECT_TRUE(conversation.is_idle());
}

// The rest of the trace is not taken for the answer to the next request.
TEST_F(ConversationTest, ATraceThatIsNotReadToItsEndEndsItsConnection) {
  const ScriptedServer server(socket_path(), [](const ScriptedRequest& request, int connection) {
    ScriptedServer::send_all(connection, ScriptedServer::response(200, request.target + "\nanother line\n"));
  });
  Connection connection(context_, folder_.path());
  const auto first = boost::asio::co_spawn(
      context_, connection.read_trace({"GET", "/v1/trace"}, 30s, false, [](std::string_view) { return false; }),
      boost::asio::use_future);
  run();
  auto next = boost::asio::co_spawn(context_, connection.ask({"GET", "/v1/status"}, 30s), boost::asio::use_future);
  run();
  const auto answer = next.get();
  ASSERT_TRUE(answer.has_value()) << answer.error().what;
  EXPECT_EQ(answer->body, "/v1/status\nanother line\n");
  EXPECT_EQ(connection.connections(), 2u);
}

TEST_F(ConversationTest, AnAnswersHandlerMayAskAgain) {
  const ScriptedServer server(socket_path(), answering(2));
  Conversation conversation = talk();
  conversation.ask({"GET", "/v1/status"}, [&](const base::Result<std::string>& body) {
    note()(body);
    conversation.ask({"GET", "/v1/trace"}, note());
  });
  run();
  EXPECT_EQ(answers_, (std::vector<std::string>{"answer 0", "answer 1"}));
}

TEST_F(ConversationTest, ADaemonThatWasRestartedIsAnotherConnection) {
  const ScriptedServer server(socket_path(), answering(1));
  Conversation conversation = talk();
  conversation.ask({"GET", "/v1/status"}, note());
  run();
  // The server has closed the connection, which only the next request finds out.
  conversation.ask({"GET", "/v1/status"}, note());
  run();
  ASSERT_EQ(codes_, (std::vector<Code>{Code::kUnavailable}));
  conversation.ask({"GET", "/v1/status"}, note());
  run();
  EXPECT_EQ(answers_.back(), "answer 0");
  EXPECT_EQ(conversation.connections(), 2u);
}

TEST_F(ConversationTest, WithoutADaemonEveryRequestFails) {
  Conversation conversation = talk();
  conversation.ask({"GET", "/v1/status"}, note());
  conversation.ask({"GET", "/v1/jobs"}, note());
  run();
  EXPECT_EQ(codes_, (std::vector<Code>{Code::kUnavailable, Code::kUnavailable}));
  EXPECT_EQ(conversation.connections(), 0u);
  const ScriptedServer server(socket_path(), answering(1));
  conversation.ask({"GET", "/v1/status"}, note());
  run();
  EXPECT_EQ(answers_.back(), "answer 0");
}

TEST_F(ConversationTest, ARefusalIsAnErrorOfItsRequestOnly) {
  const ScriptedServer server(socket_path(), [](const ScriptedRequest& request, int connection) {
    const bool is_change = request.method == "PATCH";
    ScriptedServer::send_all(
        connection, is_change
                        ? ScriptedServer::response(403, R"({"error":{"code":"denied","message":"it is eva's job"}})")
                        : ScriptedServer::response(200, "fine"));
  });
  Conversation conversation = talk();
  conversation.ask({"PATCH", "/v1/jobs/1", "{}"}, note());
  run();
  EXPECT_EQ(answers_, (std::vector<std::string>{"error: it is eva's job"}));
  EXPECT_EQ(codes_, (std::vector<Code>{Code::kDenied}));
  EXPECT_EQ(server.requests().at(0).body, "{}");
}

TEST_F(ConversationTest, ADaemonThatHangsIsLeftInTime) {
  ScriptedServer* running = nullptr;
  ScriptedServer server(socket_path(),
                        [&](const ScriptedRequest&, int connection) { running->wait_for_the_end(connection); });
  running = &server;
  Conversation conversation = talk(20ms);
  conversation.ask({"GET", "/v1/status"}, note());
  conversation.ask({"GET", "/v1/jobs"}, note());
  run();
  EXPECT_EQ(codes_, (std::vector<Code>{Code::kTimeout, Code::kTimeout}));
}

TEST_F(ConversationTest, WhatIsNoHttpIsSaidSo) {
  const ScriptedServer server(socket_path(), [](const ScriptedRequest&, int connection) {
    ScriptedServer::send_all(connection, "hello, world\r\n\r\n");
  });
  Conversation conversation = talk();
  conversation.ask({"GET", "/v1/status"}, note());
  run();
  EXPECT_EQ(codes_, (std::vector<Code>{Code::kProtocol}));
}

}  // namespace
}  // namespace gpumux::api_client
