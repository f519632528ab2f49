// SPDX-License-Identifier: Apache-2.0
#include "web/reply.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace gpumux::web {
namespace {

namespace http = boost::beast::http;
using base::Code;

// Nothing comes from elsewhere, nothing is inline, no text becomes markup (trusted types), and no page frames this one.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kHeaders{
    {{"Content-Security-Policy", kContentSecurityPolicy},
     {"X-Content-Type-Options", "nosniff"},
     {"X-Frame-Options", "DENY"},
     {"Referrer-Policy", "no-referrer"},
     {"Cross-Origin-Opener-Policy", "same-origin"},
     {"Cross-Origin-Resource-Policy", "same-origin"},
     {"Cache-Control", "no-store"},
     {"Server", "gpumux"}}};

http::status status_of(Code code) {
  switch (code) {
    case Code::kInvalid: return http::status::bad_request;
    case Code::kNotFound: return http::status::not_found;
    case Code::kDenied: return http::status::forbidden;
    case Code::kUnsupported: return http::status::not_implemented;
    case Code::kExhausted:
    case Code::kUnavailable: return http::status::service_unavailable;
    case Code::kTimeout: return http::status::gateway_timeout;
    default: return http::status::internal_server_error;
  }
}

}  // namespace

Reply json_reply(std::string body) { return {http::status::ok, "application/json", std::move(body)}; }

Reply refusal(http::status status, Code code, const std::string& message) {
  const nlohmann::json said{{"error", {{"code", std::string(base::to_string(code))}, {"message", message}}}};
  Reply reply = json_reply(said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  reply.status = status;
  return reply;
}

Reply reply_of(const base::Error& error) { return refusal(status_of(error.code), error.code, error.message()); }

Reply reply_of(const PageFile& file) {
  return {http::status::ok, std::string(file.content_type), std::string(file.content)};
}

Reply reply_of(const Answer& answer) {
  return {http::int_to_status(answer.http_status), answer.content_type, answer.body};
}

Reply reply_of(const LogTail& tail) {
  Reply reply{http::status::ok, "text/plain; charset=utf-8", tail.text};
  reply.log_bytes = tail.bytes;
  return reply;
}

http::response<http::string_body> response_of(Reply reply, unsigned version, bool keep) {
  http::response<http::string_body> response(reply.status, version);
  for (const auto& [name, value] : kHeaders)
    response.set(boost::beast::string_view(name.data(), name.size()),
                 boost::beast::string_view(value.data(), value.size()));
  response.set(http::field::content_type, reply.content_type);
  if (!reply.set_cookie.empty()) response.set(http::field::set_cookie, reply.set_cookie);
  if (reply.log_bytes) response.set("X-Gpumux-Log-Bytes", std::to_string(*reply.log_bytes));
  response.keep_alive(keep);
  response.body() = std::move(reply.body);
  response.prepare_payload();
  return response;
}

}  // namespace gpumux::web
