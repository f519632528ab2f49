// SPDX-License-Identifier: Apache-2.0
#include "api_client/client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <utility>

#include "api_client/connection.h"
#include "api_client/http.h"

namespace gpumux::api_client {
namespace {

namespace asio = boost::asio;
using base::Code;
using base::Result;
using base::Status;

// The result of the coroutine that `talk` makes with a connection of its own.
template <class T, class Talk>
Result<T> wait_for(const std::string& runtime_dir, base::Duration timeout, Talk talk) {
  asio::io_context context;
  Connection connection(context, runtime_dir);
  GPUMUX_TRY(connection.connect(timeout));
  auto result = asio::co_spawn(context, talk(connection), asio::use_future);
  context.run();
  return result.get();
}

}  // namespace

Result<Client> Client::connect(const Options& options) {
  asio::io_context context;
  Connection connection(context, options.runtime_dir);
  GPUMUX_TRY(connection.connect(options.timeout));
  return Client(connection.runtime_dir(), options.timeout);
}

Result<Answer> Client::exchange(Request request, base::Duration patience) const {
  return wait_for<Answer>(runtime_dir_, timeout_, [&](Connection& connection) {
    return connection.ask(std::move(request), timeout_ + patience);
  });
}

Result<std::string> Client::call(Request request, base::Duration patience) const {
  return body_of(exchange(std::move(request), patience));
}

Result<std::string> Client::snapshot_text() const { return call({"GET", "/v1/status"}); }

Result<Client::Metrics> Client::metrics(bool with_names, const std::string& accept) const {
  auto answer = exchange(
      {.method = "GET", .target = std::string("/metrics?names=") + (with_names ? "1" : "0"), .accept = accept});
  if (!answer) return tl::unexpected(std::move(answer).error());
  std::string content_type = std::move(answer->content_type);
  return body_of(std::move(answer)).map([&](std::string&& body) {
    return Metrics{std::move(content_type), std::move(body)};
  });
}

Result<DaemonInfo> Client::daemon_info(std::string_view run) const {
  return call({"GET", "/v1/daemon" + (run.empty() ? "" : "?run=" + url_encoded(run))}).and_then(parse_daemon_info);
}

Result<Snapshot> Client::snapshot() const { return snapshot_text().and_then(parse_snapshot); }

Result<std::vector<Gpu>> Client::change_settings(std::string_view gpu, const std::string& changes) const {
  // A GPU's name goes into a URL: nothing but what indices and UUIDs are made of may.
  for (const char c : gpu) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-';
    if (!plain)
      return base::fail(Code::kInvalid, "'" + std::string(gpu) + "' is neither an index, nor a UUID, nor 'all'");
  }
  return call({"PATCH", "/v1/gpus/" + std::string(gpu), changes}).and_then(parse_settings);
}

Result<Seat> Client::change_tenant(std::uint64_t tenant, const std::string& changes) const {
  return call({"PATCH", "/v1/tenants/" + std::to_string(tenant), changes}).and_then(parse_tenant);
}

Status Client::hold() const {
  auto answer = call({"POST", "/v1/hold"});
  if (!answer) return tl::unexpected(std::move(answer).error());
  return {};
}

Status Client::trace(bool follow, std::uint64_t since, const std::function<bool(std::string_view)>& on_line,
                     std::optional<std::uint64_t> last) const {
  const std::string target = "/v1/trace?follow=" + std::string(follow ? "1" : "0") + "&since=" + std::to_string(since) +
                             (last ? "&limit=" + std::to_string(*last) : "");
  return wait_for<void>(runtime_dir_, timeout_, [&](Connection& connection) {
    return connection.read_trace({"GET", target}, timeout_, follow, on_line);
  });
}

}  // namespace gpumux::api_client
