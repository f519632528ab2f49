// SPDX-License-Identifier: Apache-2.0
#include "api_client/http.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/error.hpp>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "api_client/connection.h"
#include "os/installation.h"
#include "os/runtime_dir.h"

namespace gpumux::api_client {
namespace {

namespace http = boost::beast::http;
using base::Code;
using base::Result;

base::Error no_daemon(const std::string& runtime_dir, const std::string& path, int system_errno) {
  if (os::is_containers_view(runtime_dir)) {
    return {Code::kUnavailable, 0,
            "the gpumux daemon is the host's, and its API is not in this container (" + runtime_dir +
                " has the tenants' socket alone): programs here use GPUs; ask for status and jobs on the host"};
  }
  const char* seen =
      system_errno == ENOENT || system_errno == ENOTDIR ? "there is no socket " : "no daemon answers at ";
  std::string text = "no gpumux daemon is running (" + std::string(seen) + path + "): ";
  // `run` and `submit` start a daemon there, and nowhere else.
  const auto usual = os::find_runtime_dir();
  if (usual && *usual == runtime_dir) {
    text += "the commands `run` and `submit` start one for you";
    if (os::has_system_unit()) text += ", `systemctl start gpumuxd` one for this machine";
  } else {
    text += "start gpumuxd, or name the folder of one that runs";
  }
  return {Code::kUnavailable, 0, std::move(text)};
}

base::Error not_allowed(const std::string& path) {
  return {Code::kDenied, 0,
          "you (user " + std::to_string(::geteuid()) + ") may not connect to the gpumux daemon at " + path +
              ": ask its owner to let you in (allow_users or allow_groups in its configuration)"};
}

Code code_of_status(unsigned http_status) {
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

}  // namespace

Result<os::FileDescriptor> connect_stream(const std::string& runtime_dir, base::Duration timeout) {
  const std::string path = os::api_socket(runtime_dir);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return base::fail(Code::kInvalid, "the path of the daemon's socket is longer than 107 bytes: " + path +
                                          "; name a shorter directory in GPUMUX_RUNTIME_DIR");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int waits = timeout > base::Duration::zero() ? 0 : SOCK_NONBLOCK;
  os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | waits, 0));
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

std::optional<Code> code_named(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  for (const Code code : {Code::kInvalid, Code::kNotFound, Code::kExists, Code::kDenied, Code::kExhausted,
                          Code::kUnavailable, Code::kTimeout, Code::kUnsupported, Code::kInternal}) {
    if (name == base::to_string(code)) return code;
  }
  return std::nullopt;
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
  if (message.empty())
    message = "the daemon answered with HTTP status " + std::to_string(http_status) + " and no explanation";
  return {code_named(name).value_or(code_of_status(http_status)), 0, std::move(message)};
}

Result<std::string> body_of(Result<Answer> answer) {
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status >= 300) return tl::unexpected(read_error(answer->http_status, answer->body));
  return std::move(answer->body);
}

base::Error connection_error(const boost::system::error_code& error, const std::string& path, const char* doing) {
  if (error == boost::beast::error::timeout) {
    return {Code::kTimeout, 0,
            "the gpumux daemon at " + path + " did not answer in time (" + doing +
                "): it hangs or is overloaded; see its log"};
  }
  if (error == http::error::body_limit || error == http::error::buffer_overflow) {
    return {Code::kProtocol, 0, "the daemon's answer is larger than " + std::to_string(kMaxAnswerBytes >> 20) + " MiB"};
  }
  if (error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return {Code::kProtocol, 0, "what listens on " + path + " does not speak HTTP (" + error.message() + ")"};
  }
  return {Code::kUnavailable, 0,
          "the gpumux daemon at " + path + " closed the connection (" + doing +
              "): it was stopped or restarted; try again"};
}

}  // namespace gpumux::api_client
