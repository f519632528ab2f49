// SPDX-License-Identifier: Apache-2.0
// Requests and answers of the API, without HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "daemon/access.h"

namespace gpumux::daemon {

struct ApiRequest {
  std::string method;
  std::string target;
  std::string body;
  Peer peer;
};

// The rest of a body that is made while it is sent, so that nobody ever has all of it in memory: called on the loop's
// thread when the client has taken what came before, never twice at a time, it calls once, there, with what comes next.
// An error ends the connection: the client sees that the body is not whole.
struct ApiPiece {
  std::string text;
  bool is_last = false;
};
using ApiPieces = std::function<void(std::function<void(base::Result<ApiPiece>)>)>;

struct ApiResponse {
  unsigned status = 200;
  std::string body;     // JSON
  ApiPieces rest = {};  // that follows it
};

// The client is sent the trace from `since` on, and with `follow` what comes.
struct ApiTrace {
  std::uint64_t since = 0;
  bool follow = false;
  std::optional<uid_t> names_of = {};  // the only user whose programs' names are in it; none: everybody's
};

// For another thread, with everything it needs copied.
using ApiWork = std::function<ApiResponse()>;

// An answer that comes when something has happened: called once on the loop's thread, and calls the reply once, there.
using ApiReply = std::function<void(ApiResponse)>;
using ApiLater = std::function<void(ApiReply)>;

using ApiAnswer = std::variant<ApiResponse, ApiWork, ApiTrace, ApiLater>;

ApiResponse error_response(unsigned status, const base::Error& error);
// With the status that the error's code has in HTTP.
ApiResponse error_response(const base::Error& error);
ApiResponse wrong_method(std::string_view allowed);

// kInvalid names the first part of "a=1&b=2" that is none of `known` with a value, or comes twice.
base::Status check_query(std::string_view query, std::span<const std::string_view> known);
// The value of `name` in "a=1&b=2". As it stands there: see decode_percent.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);
// "a%20b" as "a b"; what is not such a code stays.
std::string decode_percent(std::string_view text);

}  // namespace gpumux::daemon
