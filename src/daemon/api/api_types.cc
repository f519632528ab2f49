// SPDX-License-Identifier: Apache-2.0
#include "daemon/api/api_types.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace gpumux::daemon {
namespace {

using Json = nlohmann::ordered_json;

unsigned http_status(base::Code code) {
  switch (code) {
    case base::Code::kInvalid: return 400;
    case base::Code::kProtocol: return 400;
    case base::Code::kNotFound: return 404;
    case base::Code::kExists: return 409;
    case base::Code::kDenied: return 403;
    case base::Code::kExhausted: return 503;
    case base::Code::kUnavailable: return 503;
    case base::Code::kTimeout: return 504;
    case base::Code::kUnsupported: return 501;
    case base::Code::kInternal: return 500;
  }
  return 500;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

ApiResponse error_response(unsigned status, const base::Error& error) {
  return {status, Json{{"error", {{"code", api_code(error.code)}, {"message", error.message()}}}}.dump(
                      -1, ' ', false, Json::error_handler_t::replace) +
                      "\n"};
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
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
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
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
    const std::size_t equals = part.find('=');
    if (equals != std::string_view::npos && part.substr(0, equals) == name) return part.substr(equals + 1);
  }
  return std::nullopt;
}

std::string decode_percent(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_value(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

}  // namespace gpumux::daemon
