// SPDX-License-Identifier: Apache-2.0
// JSON of strangers. Its size is bounded while it is parsed, and a key that stands twice in an object is an error.
// Readers differ in which of two values counts, so a check before us and we might read two different requests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::server {

struct JsonBounds {
  int depth = 4;
  std::size_t values = SIZE_MAX;  // with keys, and ends of lists and objects
};

// Discarded if it is no JSON, or deeper than the bounds. kInvalid: a key stands twice, or there are too many values.
template <class Json>
base::Result<Json> parse_strict_json(std::string_view text, const JsonBounds& bounds) {
  using Event = typename Json::parse_event_t;
  std::vector<std::set<std::string, std::less<>>> objects;  // that are open, with the keys that they have so far
  std::string doubled;
  std::size_t values = 0;
  bool is_too_deep = false;
  Json json = Json::parse(
      text,
      [&](int depth, Event event, Json& parsed) {
        if (event == Event::object_start) objects.emplace_back();
        if (event == Event::object_end && !objects.empty()) objects.pop_back();
        if (event == Event::key && !objects.empty()) {
          const auto& key = parsed.template get_ref<const std::string&>();
          if (doubled.empty() && !objects.back().insert(key).second) doubled = "'" + key.substr(0, 64) + "'";
        }
        if (event != Event::object_start && event != Event::array_start) ++values;
        is_too_deep = is_too_deep || depth > bounds.depth;
        return !is_too_deep && values <= bounds.values && doubled.empty();
      },
      false);
  if (!doubled.empty())
    return base::fail(base::Code::kInvalid,
                      "the field " + doubled + " is given twice in one object: remove one of them");
  if (values > bounds.values) {
    return base::fail(base::Code::kInvalid,
                      "there are more than " + std::to_string(bounds.values) + " values in the body");
  }
  if (is_too_deep) return Json(Json::value_t::discarded);
  return json;
}

}  // namespace gpumux::server
