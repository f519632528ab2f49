// SPDX-License-Identifier: Apache-2.0
#include "server/api/api_types.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/split.h"
#include "base/units.h"

namespace gpumux::server {
namespace {

using Json = nlohmann::ordered_json;

unsigned http_status(base::Code code) {
  switch (code) {
    case base::Code::kInvalid:
    case base::Code::kProtocol: return 400;
    case base::Code::kNotFound: return 404;
    case base::Code::kExists: return 409;
    case base::Code::kDenied: return 403;
    case base::Code::kExhausted:
    case base::Code::kUnavailable: return 503;
    case base::Code::kTimeout: return 504;
    case base::Code::kUnsupported: return 501;
    case base::Code::kInternal: return 500;
  }
  return 500;
}

}  // namespace

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

ApiResponse json_response(const Json& json, unsigned status) { return {status, text_of(json)}; }

ApiResponse error_response(unsigned status, const base::Error& error) {
  return json_response({{"error", {{"code", api_code(error.code)}, {"message", error.message()}}}}, status);
}

ApiResponse error_response(const base::Error& error) { return error_response(http_status(error.code), error); }

ApiResponse wrong_method(std::string allowed) {
  ApiResponse response = error_response(405, {base::Code::kUnsupported, 0, "this address takes " + allowed + " only"});
  response.allow = std::move(allowed);
  return response;
}

std::string api_code(base::Code code) {
  // A request that breaks a protocol is wrong.
  std::string name(to_string(code == base::Code::kProtocol ? base::Code::kInvalid : code));
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

base::Status check_query(std::string_view query, std::span<const std::string_view> known) {
  std::vector<std::string_view> seen;
  if (query.ends_with('&')) query.remove_suffix(1);
  if (query.empty()) return {};
  for (const std::string_view part : base::split(query, '&')) {
    const std::string_view name = part.substr(0, part.find('='));
    const std::string shown = "'" + std::string(part.substr(0, 64)) + "'";
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string all;
      for (const std::string_view one : known) all += (all.empty() ? "" : ", ") + std::string(one);
      return base::fail(base::Code::kInvalid, "this address does not take the parameter " + shown +
                                                  (all.empty() ? ": it takes none" : ": it takes " + all));
    }
    if (name.size() == part.size()) return base::fail(base::Code::kInvalid, shown + " needs a value: NAME=VALUE");
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      return base::fail(base::Code::kInvalid, shown + ": this parameter is given twice");
    seen.push_back(name);
  }
  return {};
}

std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  for (const std::string_view part : base::split(query, '&')) {
    const std::size_t equals = part.find('=');
    if (equals != std::string_view::npos && part.substr(0, equals) == name) return part.substr(equals + 1);
  }
  return std::nullopt;
}

base::Status read_number(std::string_view query, std::string_view name, std::uint64_t least, std::uint64_t most,
                         std::uint64_t& target) {
  const auto text = query_value(query, name);
  if (!text) return {};
  const auto number = base::parse_integer(*text, least, most);
  if (!number)
    return base::fail(base::Code::kInvalid,
                      std::string(name) + " must be a number" +
                          (most == UINT64_MAX ? "" : " from " + std::to_string(least) + " to " + std::to_string(most)) +
                          ", and not '" + std::string(text->substr(0, 64)) + "'");
  target = *number;
  return {};
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    decoded += text[i];
    if (text[i] != '%' || i + 2 >= text.size()) continue;
    const char* const end = text.data() + i + 3;
    unsigned char byte = 0;
    if (std::from_chars(end - 2, end, byte, 16).ptr != end) continue;
    decoded.back() = static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

}  // namespace gpumux::server
