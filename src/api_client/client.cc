// SPDX-License-Identifier: Apache-2.0
#include "api_client/client.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "os/file_descriptor.h"
#include "os/installation.h"
#include "os/runtime_dir.h"

namespace gpumux::api_client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using base::Code;
using base::Result;
using base::Status;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;

base::Error no_daemon(const std::string& runtime_dir, const std::string& path, int system_errno) {
  if (os::is_containers_view(runtime_dir)) {
    return {Code::kUnavailable, 0,
            "the gpumux daemon is the host's, and its API is not in this container (" + runtime_dir +
                " has the tenants' socket alone): programs here use GPUs; ask for status and jobs on the host"};
  }
  const char* seen =
      system_errno == ENOENT || system_errno == ENOTDIR ? "there is no socket " : "no daemon answers at ";
  std::string text = "no gpumux daemon is running (" + std::string(seen) + path +
                     "): the commands `run` and `submit` start one for you";
  if (os::has_system_unit()) text += ", `systemctl start gpumuxd` one for this machine";
  return {Code::kUnavailable, 0, std::move(text)};
}

base::Error not_allowed(const std::string& path) {
  return {Code::kDenied, 0,
          "you (user " + std::to_string(::geteuid()) + ") may not connect to the gpumux daemon at " + path +
              ": ask its owner to let you in (allow_users or allow_groups in its configuration)"};
}

// A connected blocking socket. A full backlog makes connect wait, at most the socket's send timeout.
Result<os::FileDescriptor> connect_stream(const std::string& runtime_dir, base::Duration timeout) {
  const std::string path = os::api_socket(runtime_dir);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return base::fail(Code::kInvalid, "the path of the daemon's socket is longer than 107 bytes: " + path +
                                          "; name a shorter directory in GPUMUX_RUNTIME_DIR");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return base::fail_errno(errno, "cannot create a unix socket");
  timeval limit{};
  limit.tv_sec = timeout.count() / 1'000'000'000;
  limit.tv_usec = timeout.count() % 1'000'000'000 / 1000;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  int result;
  do {
    result = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return socket;
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED: return tl::unexpected(no_daemon(runtime_dir, path, errno));
    case EACCES:
    case EPERM: return tl::unexpected(not_allowed(path));
    case EAGAIN:
      return base::fail(Code::kTimeout,
                        "the gpumux daemon at " + path + " accepts no connections: it hangs or is overloaded");
    default: return base::fail_errno(errno, "cannot connect to the gpumux daemon at " + path);
  }
}

// The code of a daemon's error: by the name in its body, otherwise by the HTTP status.
Code code_of(unsigned http_status, std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Code>, 9> kNames{{{"invalid", Code::kInvalid},
                                                                            {"not found", Code::kNotFound},
                                                                            {"exists", Code::kExists},
                                                                            {"denied", Code::kDenied},
                                                                            {"exhausted", Code::kExhausted},
                                                                            {"unavailable", Code::kUnavailable},
                                                                            {"timeout", Code::kTimeout},
                                                                            {"unsupported", Code::kUnsupported},
                                                                            {"internal", Code::kInternal}}};
  for (const auto& [text, code] : kNames) {
    if (text == name) return code;
  }
  switch (http_status) {
    case 400:
    case 422: return Code::kInvalid;
    case 401:
    case 403: return Code::kDenied;
    case 404: return Code::kNotFound;
    case 405:
    case 501: return Code::kUnsupported;
    case 429: return Code::kExhausted;
    case 503: return Code::kUnavailable;
    default: return Code::kInternal;
  }
}

base::Error read_error(unsigned http_status, const std::string& body) {
  const auto parsed = nlohmann::json::parse(body, nullptr, false);
  std::string name;
  std::string message;
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object()) {
    const auto& error = parsed["error"];
    if (error.contains("code") && error["code"].is_string()) name = error["code"].get<std::string>();
    if (error.contains("message") && error["message"].is_string()) message = error["message"].get<std::string>();
  }
  for (char& c : name) c = c == '_' ? ' ' : c;
  if (message.empty())
    message = "the daemon answered with HTTP status " + std::to_string(http_status) + " and no explanation";
  return {code_of(http_status, name), 0, std::move(message)};
}

// One connection: Asio's asynchronous calls, each run to its end or to the deadline, which is the way to give them a
// time limit.
class Connection {
 public:
  Connection(os::FileDescriptor socket, std::string path) : socket_(context_), path_(std::move(path)) {
    socket_.assign(asio::local::stream_protocol(), socket.release());
  }

  // `start` is handed a completion handler and starts one operation. No deadline: waits for ever.
  template <class Start>
  Status run(std::optional<SteadyTime> deadline, const char* doing, Start&& start) {
    std::optional<error_code> result;
    start([&result](error_code error, std::size_t) { result = error; });
    context_.restart();
    if (deadline) {
      context_.run_until(*deadline);
    } else {
      context_.run();
    }
    if (!result) {
      error_code ignored;
      socket_.close(ignored);
      context_.restart();
      context_.run();  // the cancelled operation's handler refers to this frame
      return base::fail(Code::kTimeout, "the gpumux daemon at " + path_ + " did not answer in time (" + doing +
                                            "): it hangs or is overloaded; see its log");
    }
    if (!*result || *result == http::error::need_buffer) return {};
    if (*result == http::error::body_limit || *result == http::error::buffer_overflow) {
      return base::fail(Code::kProtocol,
                        "the daemon's answer is larger than " + std::to_string(kMaxAnswerBytes >> 20) + " MiB");
    }
    if (result->category() == http::make_error_code(http::error::bad_method).category() &&
        *result != http::error::end_of_stream && *result != http::error::partial_message) {
      return base::fail(Code::kProtocol,
                        "what listens on " + path_ + " does not speak HTTP (" + result->message() + ")");
    }
    return base::fail(Code::kUnavailable, "the gpumux daemon at " + path_ + " closed the connection (" + doing +
                                              "): it was stopped or restarted; try again");
  }

  asio::local::stream_protocol::socket& socket() { return socket_; }

 private:
  asio::io_context context_;
  asio::local::stream_protocol::socket socket_;
  std::string path_;
};

http::request<http::string_body> make_request(std::string_view method, const std::string& target,
                                              const std::string& body) {
  http::request<http::string_body> request;
  request.method_string(beast::string_view(method.data(), method.size()));
  request.target(target);
  request.version(11);
  request.set(http::field::host, "gpumux");
  request.set(http::field::user_agent, "gpumux/" GPUMUX_VERSION);
  request.keep_alive(false);
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
  }
  request.prepare_payload();
  return request;
}

// A daemon that turns a client away answers before it is asked, and closes: what cannot be written is no failure yet.
template <class Request>
Status send_request(Connection& connection, std::optional<SteadyTime> deadline, const Request& request) {
  Status sent = connection.run(deadline, "while it was asked",
                               [&](auto handler) { http::async_write(connection.socket(), request, handler); });
  if (!sent && sent.error().code == Code::kUnavailable) return {};
  return sent;
}

}  // namespace

Result<Client> Client::connect(const Options& options) {
  std::string dir = options.runtime_dir;
  if (dir.empty()) {
    auto found = os::find_runtime_dir();
    if (!found) return tl::unexpected(std::move(found).error());
    dir = std::move(*found);
  }
  auto socket = connect_stream(dir, options.timeout);
  if (!socket) return tl::unexpected(std::move(socket).error());
  return Client(std::move(dir), options.timeout);
}

Result<Client::Answer> Client::exchange(std::string_view method, const std::string& target, const std::string& body,
                                        base::Duration patience, const std::string& accept) const {
  const std::string path = os::api_socket(runtime_dir_);
  auto socket = connect_stream(runtime_dir_, timeout_);
  if (!socket) return tl::unexpected(std::move(socket).error());
  Connection connection(std::move(*socket), path);
  const SteadyTime deadline = std::chrono::steady_clock::now() + timeout_ + patience;
  auto request = make_request(method, target, body);
  if (!accept.empty()) request.set(http::field::accept, accept);
  GPUMUX_TRY(send_request(connection, deadline, request));
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  GPUMUX_TRY(connection.run(deadline, "before its answer was complete",
                            [&](auto handler) { http::async_read(connection.socket(), buffer, parser, handler); }));
  auto& response = parser.get();
  return Answer{response.result_int(), std::string(response[http::field::content_type]), std::move(response.body())};
}

base::Error Client::error_of(const Answer& answer) { return read_error(answer.http_status, answer.body); }

Result<std::string> Client::call(std::string_view method, const std::string& target, const std::string& body,
                                 base::Duration patience) const {
  auto answer = exchange(method, target, body, patience);
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status >= 300) return tl::unexpected(error_of(*answer));
  return std::move(answer->body);
}

Result<std::string> Client::daemon_info_text() const { return call("GET", "/v1/daemon", ""); }
Result<std::string> Client::snapshot_text() const { return call("GET", "/v1/status", ""); }

Result<Client::Metrics> Client::metrics(bool with_names, const std::string& accept) const {
  auto answer = exchange("GET", std::string("/metrics?names=") + (with_names ? "1" : "0"), "", {}, accept);
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status >= 300) return tl::unexpected(error_of(*answer));
  return Metrics{std::move(answer->content_type), std::move(answer->body)};
}

Result<DaemonInfo> Client::daemon_info() const {
  return daemon_info_text().and_then([](const std::string& text) { return parse_daemon_info(text); });
}

Result<Snapshot> Client::snapshot() const {
  return snapshot_text().and_then([](const std::string& text) { return parse_snapshot(text); });
}

Result<std::vector<Gpu>> Client::change_settings(std::string_view gpu, const std::string& changes) const {
  // A GPU's name goes into a URL: nothing but what indices and UUIDs are made of may.
  for (const char c : gpu) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    if (!plain)
      return base::fail(Code::kInvalid, "'" + std::string(gpu) + "' is neither an index, nor a UUID, nor 'all'");
  }
  return call("PATCH", "/v1/gpus/" + std::string(gpu), changes).and_then([](const std::string& text) {
    return parse_settings(text);
  });
}

Result<TenantStanding> Client::change_tenant(std::uint64_t tenant, const std::string& changes) const {
  return call("PATCH", "/v1/tenants/" + std::to_string(tenant), changes).and_then([](const std::string& text) {
    return parse_tenant_standing(text);
  });
}

Status Client::hold() const {
  auto answer = call("POST", "/v1/hold", "");
  if (!answer) return tl::unexpected(std::move(answer).error());
  return {};
}

Status Client::trace(bool follow, std::uint64_t since, const std::function<bool(std::string_view)>& on_line,
                     std::optional<std::uint64_t> last) const {
  const std::string path = os::api_socket(runtime_dir_);
  auto socket = connect_stream(runtime_dir_, timeout_);
  if (!socket) return tl::unexpected(std::move(socket).error());
  Connection connection(std::move(*socket), path);
  const auto deadline = [this] { return std::chrono::steady_clock::now() + timeout_; };
  const auto request =
      make_request("GET",
                   "/v1/trace?follow=" + std::string(follow ? "1" : "0") + "&since=" + std::to_string(since) +
                       (last ? "&limit=" + std::to_string(*last) : ""),
                   "");
  GPUMUX_TRY(send_request(connection, deadline(), request));

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);  // a followed trace has no end
  GPUMUX_TRY(connection.run(deadline(), "before the trace began", [&](auto handler) {
    http::async_read_header(connection.socket(), buffer, parser, handler);
  }));
  const unsigned http_status = parser.get().result_int();
  std::string pending;  // an unfinished line, or an error's body
  std::array<char, 16384> chunk;
  while (!parser.is_done()) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    const std::optional<SteadyTime> limit = follow && http_status < 300 ? std::nullopt : std::optional(deadline());
    GPUMUX_TRY(connection.run(limit, "in the middle of the trace", [&](auto handler) {
      http::async_read_some(connection.socket(), buffer, parser, handler);
    }));
    pending.append(chunk.data(), chunk.size() - parser.get().body().size);
    if (http_status < 300) {
      std::size_t begin = 0;
      for (std::size_t end; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
        if (end > begin && !on_line(std::string_view(pending).substr(begin, end - begin))) return {};
      }
      pending.erase(0, begin);
    }
    if (pending.size() > kMaxTraceLineBytes)
      return base::fail(Code::kProtocol, "a line of the trace is longer than 64 KiB");
  }
  if (http_status >= 300) return tl::unexpected(read_error(http_status, pending));
  if (!pending.empty()) on_line(pending);
  if (follow) {
    return base::fail(Code::kUnavailable,
                      "the gpumux daemon at " + path + " ended the trace: it was stopped or restarted");
  }
  return {};
}

}  // namespace gpumux::api_client
