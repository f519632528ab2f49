// SPDX-License-Identifier: Apache-2.0
// How our types become the JSON that the daemon takes. Within api_client only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "base/base64.h"
#include "base/clock.h"
#include "base/utf8.h"

namespace gpumux::api_client {

template <class T>
requires std::is_arithmetic_v<T> nlohmann::json as_json(T value) { return value; }

inline nlohmann::json as_json(base::Duration duration) { return duration.count(); }

inline nlohmann::json as_json(const std::string& bytes) {
  if (base::is_utf8(bytes)) return bytes;
  return {{"base64", base::encode_base64(bytes)}};
}

template <class T>
nlohmann::json as_json(const std::vector<T>& list) {
  nlohmann::json array = nlohmann::json::array();
  for (const T& item : list) array.push_back(as_json(item));
  return array;
}

// A field that may be left out. Nothing, an empty text, an empty list and "no" are left out.
template <class T>
void put(nlohmann::json& object, const char* name, const T& value) {
  if constexpr (requires { value.has_value(); }) {
    if (value) object[name] = as_json(*value);
  } else if constexpr (requires { value.empty(); }) {
    if (!value.empty()) object[name] = as_json(value);
  } else if (!std::is_same_v<T, bool> || value != T{}) {
    object[name] = as_json(value);
  }
}

}  // namespace gpumux::api_client
