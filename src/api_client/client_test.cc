// SPDX-License-Identifier: Apache-2.0
// Goal: a user of the API gets the right result when the daemon answers well, badly, late or not at all. Method: a
// scripted server on a unix socket in a temporary directory; nothing waits longer than the time limits given here.
#include "api_client/client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "api_client/connection.h"
#include "api_client/scripted_server.h"
#include "os/installation.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::api_client {
namespace {

using base::Code;
using namespace std::chrono_literals;

class ClientTest : public ::testing::Test {
 protected:
  std::string socket_path() const { return dir_ + "/api.sock"; }
  // Long, so that a slow machine does not matter; a test of the limit itself names a short one.
  Options options(base::Duration timeout = 30s) const { return {.runtime_dir = dir_, .timeout = timeout}; }

  static ScriptedServer::Answer always(const std::string& bytes) {
    return [bytes](const ScriptedRequest&, int connection) { ScriptedServer::send_all(connection, bytes); };
  }

  const TemporaryDirectory folder_;
  const std::string& dir_ = folder_.path();
};

TEST_F(ClientTest, NoDaemonSaysWhereItLookedAndWhatToDo) {
  const auto client = Client::connect(options());
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kUnavailable);
  EXPECT_NE(client.error().what.find(socket_path()), std::string::npos) << client.error().what;
  // `run` does not look in this folder.
  EXPECT_NE(client.error().what.find("start gpumuxd, or name the folder of one that runs"), std::string::npos);
  EXPECT_EQ(client.error().what.find("`run`"), std::string::npos);
}

TEST_F(ClientTest, WhereRunLooksItStartsADaemon) {
  ::setenv("GPUMUX_RUNTIME_DIR", dir_.c_str(), 1);
  const auto client = Client::connect(options());
  ::unsetenv("GPUMUX_RUNTIME_DIR");
  ASSERT_FALSE(client);
  EXPECT_NE(client.error().what.find("the commands `run` and `submit` start one"), std::string::npos);
  // Only where that can work.
  EXPECT_EQ(client.error().what.find("systemctl start gpumuxd") != std::string::npos, os::has_system_unit());
}

TEST_F(ClientTest, SocketOfADeadDaemonIsNoDaemon) {
  { const ScriptedServer server(socket_path(), always("")); }
  ASSERT_TRUE(std::filesystem::exists(socket_path()));
  const auto client = Client::connect(options());
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kUnavailable);
  EXPECT_NE(client.error().what.find("no daemon answers"), std::string::npos);
}

TEST_F(ClientTest, AContainerIsToldThatTheApiIsTheHosts) {
  std::filesystem::create_directory(dir_ + "/" + os::kTenantDir);
  const auto tenants = os::listen_seqpacket(dir_ + "/" + os::kTenantSocket, 0600, 1);
  ASSERT_TRUE(tenants);
  const auto client = Client::connect(options());
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kUnavailable);
  EXPECT_NE(client.error().what.find("in this container"), std::string::npos) << client.error().what;
}

TEST_F(ClientTest, RootUsesItsOwnSocketWhereThereIsOne) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  std::filesystem::create_directory(dir_ + "/" + os::kRootDir);
  const ScriptedServer server(dir_ + "/" + os::kRootApiSocket, always(ScriptedServer::response(200, "{}")));
  EXPECT_TRUE(Client::connect(options()));
}

// A full daemon does not wait for what it is asked.
TEST_F(ClientTest, ARefusalBeforeTheRequestIsRead) {
  const os::FileDescriptor listener = os::listen_stream(socket_path(), 0600, 4).value();
  std::thread daemon([&] {
    for (int i = 0; i < 2; ++i) {
      pollfd poller{listener.get(), POLLIN, 0};
      ::poll(&poller, 1, 30'000);
      const os::FileDescriptor client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      ScriptedServer::send_all(
          client.get(), ScriptedServer::response(503, R"({"error": {"code": "unavailable", "message": "all taken"}})"));
      ::shutdown(client.get(), SHUT_RDWR);
    }
  });
  const auto client = Client::connect(options());  // a connection of its own
  ASSERT_TRUE(client);
  const auto info = client->daemon_info();
  daemon.join();
  ASSERT_FALSE(info);
  EXPECT_EQ(info.error().what, "all taken");
}

TEST_F(ClientTest, TooLongAPathIsSaid) {
  const auto client = Client::connect({.runtime_dir = "/tmp/" + std::string(120, 'x')});
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kInvalid);
  EXPECT_NE(client.error().what.find("107"), std::string::npos);
}

TEST_F(ClientTest, ReadsTheDaemonAndTheStatus) {
  const ScriptedServer server(socket_path(), [](const ScriptedRequest& request, int connection) {
    const bool daemon = request.target == "/v1/daemon";
    ScriptedServer::send_all(connection,
                             ScriptedServer::response(200, daemon ? R"({"version": "1.2", "pid": 9})"
                                                                  : R"({"gpus": [{"index": 0, "mode": "serial"}]})"));
  });
  const auto client = Client::connect(options());
  ASSERT_TRUE(client) << client.error().message();
  const auto info = client->daemon_info();
  ASSERT_TRUE(info) << info.error().message();
  EXPECT_EQ(info->version, "1.2");
  EXPECT_EQ(info->pid, 9);
  const auto snapshot = client->snapshot();
  ASSERT_TRUE(snapshot) << snapshot.error().message();
  ASSERT_EQ(snapshot->gpus.size(), 1u);
  EXPECT_EQ(snapshot->gpus[0].mode, "serial");
  ASSERT_EQ(server.requests().size(), 2u);
  EXPECT_EQ(server.requests()[0].method, "GET");
}

TEST_F(ClientTest, ChangesAreSentAndTheSettingsComeBack) {
  const ScriptedServer server(socket_path(),
                              always(ScriptedServer::response(200, R"({"gpus": [{"index": 1, "quantum": "50ms"}]})")));
  const auto client = Client::connect(options());
  ASSERT_TRUE(client);
  const auto settings = client->change_settings("GPU-01ab", R"({"quantum":"50ms"})");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->at(0).quantum, "50ms");
  const auto requests = server.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].method, "PATCH");
  EXPECT_EQ(requests[0].target, "/v1/gpus/GPU-01ab");
  EXPECT_EQ(requests[0].body, R"({"quantum":"50ms"})");
}

TEST_F(ClientTest, NamesThatAreNotNamesNeverReachTheDaemon) {
  const ScriptedServer server(socket_path(), always(ScriptedServer::response(200, "{}")));
  const auto client = Client::connect(options());
  ASSERT_TRUE(client);
  for (const char* name : {"../daemon", "0?x=1", "0 HTTP/1.1\r\nX: y", "a b"}) {
    const auto settings = client->change_settings(name, "{}");
    ASSERT_FALSE(settings) << name;
    EXPECT_EQ(settings.error().code, Code::kInvalid);
  }
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(ClientTest, TheDaemonsOwnErrorsComeThrough) {
  struct Case {
    int status;
    std::string body;
    Code code;
    std::string message;
  };
  const std::vector<Case> cases{
      {403, R"({"error": {"code": "denied", "message": "ask root"}})", Code::kDenied, "ask root"},
      {404, R"({"error": {"code": "not_found", "message": "no GPU 7"}})", Code::kNotFound, "no GPU 7"},
      {400, R"({"error": {"code": "invalid", "message": "bad quantum"}})", Code::kInvalid, "bad quantum"},
      {503, "<html>", Code::kUnavailable, "HTTP status 503"},
      {500, R"({"error": "?"})", Code::kInternal, "HTTP status 500"},
      {404, R"({"error": {"code": 5, "message": []}})", Code::kNotFound, "HTTP status 404"},
  };
  for (const Case& item : cases) {
    const ScriptedServer server(socket_path(), always(ScriptedServer::response(item.status, item.body)));
    const auto client = Client::connect(options());
    ASSERT_TRUE(client);
    const auto text = client->snapshot_text();
    ASSERT_FALSE(text) << item.body;
    EXPECT_EQ(text.error().code, item.code) << item.body;
    EXPECT_NE(text.error().what.find(item.message), std::string::npos) << text.error().what;
  }
}

TEST_F(ClientTest, AnswersThatAreNotHttpOrNotJsonAreErrors) {
  const std::vector<std::pair<std::string, Code>> cases{
      {"SSH-2.0-OpenSSH\r\n\r\n", Code::kProtocol},
      {"", Code::kUnavailable},                                                         // closed without a word
      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"gpus\"", Code::kUnavailable},  // closed in the middle
      {ScriptedServer::response(200, "{\"gpus\": ["), Code::kProtocol},
      {ScriptedServer::response(200, "[]"), Code::kProtocol},
      {ScriptedServer::response(200, R"({"gpus": 3})"), Code::kProtocol},
  };
  for (const auto& [bytes, code] : cases) {
    const ScriptedServer server(socket_path(), always(bytes));
    const auto client = Client::connect(options());
    ASSERT_TRUE(client);
    const auto snapshot = client->snapshot();
    ASSERT_FALSE(snapshot) << bytes;
    EXPECT_EQ(snapshot.error().code, code) << bytes << "\n" << snapshot.error().what;
  }
}

TEST_F(ClientTest, AnEndlessAnswerIsCutOff) {
  const ScriptedServer server(socket_path(), [](const ScriptedRequest&, int connection) {
    ScriptedServer::send_all(connection, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n");
  });
  const auto client = Client::connect(options());
  ASSERT_TRUE(client);
  const auto text = client->snapshot_text();
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kProtocol);
  EXPECT_NE(text.error().what.find("larger than"), std::string::npos);
}

TEST_F(ClientTest, ADaemonThatHangsIsGivenUp) {
  const ScriptedServer* hanging = nullptr;
  const ScriptedServer server(socket_path(), [&](const ScriptedRequest&, int connection) {
    ScriptedServer::send_all(connection, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{");
    hanging->wait_for_the_end(connection);
  });
  hanging = &server;
  const auto client = Client::connect(options(50ms));
  ASSERT_TRUE(client);
  const auto begin = std::chrono::steady_clock::now();
  const auto text = client->snapshot_text();
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kTimeout);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
}

TEST_F(ClientTest, NoDescriptorStaysOpen) {
  const auto open_descriptors = [] {
    std::size_t count = 0;
    for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1u : 0u;
    return count;
  };
  const ScriptedServer server(socket_path(), always(ScriptedServer::response(200, "{}")));
  const std::size_t before = open_descriptors();
  const auto client = Client::connect(options());
  ASSERT_TRUE(client);
  ASSERT_TRUE(client->snapshot());
  ASSERT_TRUE(client->hold());
  // The server may not have closed its end of the last connection yet, which is one of this process's descriptors too.
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (open_descriptors() > before && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(open_descriptors(), before);
}

std::string chunk(std::string_view text) {
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return size + std::string(text) + "\r\n";
}

constexpr char kTraceHead[] =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST_F(ClientTest, TraceLinesAreWholeHoweverTheyAreCut) {
  const ScriptedServer server(socket_path(), [](const ScriptedRequest&, int connection) {
    ScriptedServer::send_all(
        connection, kTraceHead + chunk("{\"a\":1}\n{\"b\"") + chunk(":2}") + chunk("\n\n{\"c\":3}") + "0\r\n\r\n");
  });
  const auto client = Client::connect(options());
  ASSERT_TRUE(client);
  std::vector<std::string> lines;
  const auto read = client->trace(false, 17, [&](std::string_view line) {
    lines.emplace_back(line);
    return true;
  });
  EXPECT_TRUE(read) << read.error().message();
  EXPECT_EQ(lines, (std::vector<std::string>{"{\"a\":1}", "{\"b\":2}", "{\"c\":3}"}));
  EXPECT_EQ(server.requests().at(0).target, "/v1/trace?follow=0&since=17");
  EXPECT_TRUE(client->trace(
      false, 17, [](std::string_view) { return true; }, 5));
  EXPECT_EQ(server.requests().at(1).target, "/v1/trace?follow=0&since=17&limit=5");
}

TEST_F(ClientTest, FollowingGivesLinesAtOnceAndWaitsBeyondTheTimeLimit) {
  // The server sends its second line only after the first was seen, and after more than the client's limit.
  std::atomic<bool> seen = false;
  const ScriptedServer server(socket_path(), [&](const ScriptedRequest&, int connection) {
    ScriptedServer::send_all(connection, kTraceHead + chunk("{\"a\":1}\n"));
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!seen && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    const auto late = std::chrono::steady_clock::now() + 150ms;
    while (std::chrono::steady_clock::now() < late) std::this_thread::yield();
    ScriptedServer::send_all(connection, chunk("{\"b\":2}\n"));
  });
  const auto client = Client::connect(options(100ms));
  ASSERT_TRUE(client);
  int lines = 0;
  const auto read = client->trace(true, 0, [&](std::string_view) {
    ++lines;
    seen = true;
    return true;
  });
  EXPECT_EQ(lines, 2);
  ASSERT_FALSE(read);  // the daemon went away
  EXPECT_EQ(read.error().code, Code::kUnavailable);
}

TEST_F(ClientTest, TraceEndsWhenTheReaderHasEnough) {
  const ScriptedServer server(socket_path(), always(kTraceHead + chunk("{\"a\":1}\n{\"b\":2}\n")));
  const auto client = Client::connect(options());
  ASSERT_TRUE(client);
  int lines = 0;
  EXPECT_TRUE(client->trace(true, 0, [&](std::string_view) { return ++lines < 1; }));
  EXPECT_EQ(lines, 1);
}

TEST_F(ClientTest, TraceErrorsAreTheDaemonsAndALineHasALimit) {
  {
    const ScriptedServer server(
        socket_path(),
        always(ScriptedServer::response(400, R"({"error": {"code": "invalid", "message": "since is not a number"}})")));
    const auto client = Client::connect(options());
    const auto read = client->trace(true, 0, [](std::string_view) { return true; });
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, Code::kInvalid);
    EXPECT_EQ(read.error().what, "since is not a number");
  }
  const ScriptedServer server(socket_path(),
                              always(kTraceHead + chunk(std::string(kMaxTraceLineBytes + 1, 'x')) + "0\r\n\r\n"));
  const auto client = Client::connect(options());
  const auto read = client->trace(false, 0, [](std::string_view) { return true; });
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kProtocol);
}

}  // namespace
}  // namespace gpumux::api_client
