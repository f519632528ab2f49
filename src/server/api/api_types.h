// SPDX-License-Identifier: Apache-2.0
// Requests and answers of the API, without HTTP.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"
#include "server/peers/access.h"

namespace gpumux::server {

// In the place of a program's name that the reader may not see.
inline constexpr std::string_view kHiddenName = "(hidden)";

struct ApiRequest {
  std::string method;
  std::string target;
  std::string body;
  Peer peer;
  std::string accept = {};  // the header
};

struct ApiResponse {
  unsigned status = 200;
  std::string body;
  std::string_view content_type = "application/json";  // a literal
  std::string allow = {};                              // the header; empty: none
};

// The client is sent the trace from `since` on, of that the newest `limit`, and with `follow` all later entries.
struct ApiTrace {
  std::uint64_t since = 0;
  std::uint64_t limit = UINT64_MAX;
  bool follow = false;
  std::optional<uid_t> names_of = {};  // the only user whose programs' names are in it; none: those of all users
};

// For another thread, with everything it needs copied.
using ApiWork = std::function<ApiResponse()>;

// An answer that comes when something has happened: called once on the loop's thread, and calls the reply once, there.
using ApiReply = std::function<void(ApiResponse)>;
using ApiLater = std::function<void(ApiReply)>;

using ApiAnswer = std::variant<ApiResponse, ApiWork, ApiTrace, ApiLater>;

// `text` as a JSON string, with quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// As one line. Bytes that are not UTF-8 become U+FFFD.
std::string text_of(const nlohmann::ordered_json& json);
ApiResponse json_response(const nlohmann::ordered_json& json, unsigned status = 200);
ApiResponse error_response(unsigned status, const base::Error& error);
// With the status that the error's code has in HTTP.
ApiResponse error_response(const base::Error& error);
// `allowed`: the methods of the address, with commas between them.
ApiResponse wrong_method(std::string allowed);
// The error's code as the API has it: "not_found".
std::string api_code(base::Code code);

// kInvalid names the first part of "a=1&b=2" that is none of `known` with a value, or comes twice.
base::Status check_query(std::string_view query, std::span<const std::string_view> known);
// The value of `name` in "a=1&b=2". As it stands there: see decode_percent.
std::optional<std::string_view> query_value(std::string_view query, std::string_view name);
// Puts its number into `target`, if the query has it. kInvalid: it is none from `least` to `most`.
base::Status read_number(std::string_view query, std::string_view name, std::uint64_t least, std::uint64_t most,
                         std::uint64_t& target);
template <std::integral Number>
base::Status read_number(std::string_view query, std::string_view name, std::uint64_t least, std::uint64_t most,
                         Number& target) {
  auto value = static_cast<std::uint64_t>(target);
  auto read = read_number(query, name, least, most, value);
  target = static_cast<Number>(value);
  return read;
}
// "a%20b" as "a b". Characters that form no such code stay as they are.
std::string decode_percent(std::string_view text);

}  // namespace gpumux::server
