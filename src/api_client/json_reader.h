// SPDX-License-Identifier: Apache-2.0
// How the daemon's JSON becomes our types. Within api_client only.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/base64.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

// 2^62 ns are 146 years: nothing has lasted or will last that long, so such a number can only stand for "never".
inline constexpr std::int64_t kNeverNs = std::int64_t{1} << 62;

// Reads the fields of one object. The first wrong type is remembered, and everything after it is skipped, so that a
// parser is a plain list of fields with one check at its end.
class Reader {
 public:
  Reader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) problem_ = where_ + " is not an object";
  }

  template <class T>
  void read(const char* name, T& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if constexpr (std::is_same_v<T, std::string>) {
      if (!value->is_string()) return wrong(name, "a string");
      target = value->get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!value->is_boolean()) return wrong(name, "true or false");
      target = value->get<bool>();
    } else if constexpr (std::is_unsigned_v<T>) {
      if (!value->is_number_unsigned() || value->get<std::uint64_t>() > std::numeric_limits<T>::max()) {
        return wrong(name, "a whole number");
      }
      target = value->get<T>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!value->is_number()) return wrong(name, "a number");
      target = value->get<double>();
    } else {
      static_assert(std::is_same_v<T, std::int64_t>);
      if (!value->is_number_integer()) return wrong(name, "a whole number");
      target = value->get<std::int64_t>();
    }
  }

  void read(const char* name, std::int32_t& target) {
    std::int64_t value = 0;
    if (find(name) == nullptr) return;
    read(name, value);
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
      return wrong(name, "a small number");
    target = static_cast<std::int32_t>(value);
  }

  // Sets `target` if the field is there, and leaves it alone otherwise.
  template <class T>
  void read(const char* name, std::optional<T>& target) {
    if (find(name) == nullptr) return;
    T value{};
    read(name, value);
    target = std::move(value);
  }

  // Text that may be bytes: a string, or {"base64": "..."}.
  void read_bytes(const char* name, std::string& target) {
    const nlohmann::json* value = find(name);
    if (value != nullptr && !take_bytes(*value, target)) wrong(name, "a string");
  }
  void read_bytes(const char* name, std::vector<std::string>& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, "an array");
    for (const nlohmann::json& item : *value) {
      if (!take_bytes(item, target.emplace_back())) return wrong(name, "an array of strings");
    }
  }
  template <class T>
  void read_numbers(const char* name, std::vector<T>& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, "an array");
    for (const nlohmann::json& item : *value) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > std::numeric_limits<T>::max())
        return wrong(name, "an array of whole numbers");
      target.push_back(item.get<T>());
    }
  }

  void read_ns(const char* name, base::Duration& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_number()) return wrong(name, "a number of nanoseconds");
    const bool never = value->is_number_unsigned() ? value->get<std::uint64_t>() >= static_cast<std::uint64_t>(kNeverNs)
                                                   : value->get<double>() >= static_cast<double>(kNeverNs);
    target = never ? base::Duration::max() : base::Duration(value->get<std::int64_t>());
  }

  void read_ns(const char* name, std::optional<base::Duration>& target) {
    base::Duration value{};
    if (find(name) == nullptr) return;
    read_ns(name, value);
    target = value;
  }

  void read(const char* name, std::map<std::string, std::string>& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_object()) return wrong(name, "an object");
    for (const auto& [key, item] : value->items()) {
      target[key] = item.is_string() ? item.get<std::string>()
                                     : item.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  }

  void read(const char* name, std::vector<std::string>& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, "an array");
    for (const nlohmann::json& item : *value) {
      if (!item.is_string()) return wrong(name, "an array of strings");
      target.push_back(item.get<std::string>());
    }
  }

  template <class T>
  void read_array(const char* name, std::vector<T>& target, base::Result<T> (*parse)(const nlohmann::json&)) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, "an array");
    for (const nlohmann::json& item : *value) {
      auto parsed = parse(item);
      if (!parsed) {
        problem_ = parsed.error().what;
        return;
      }
      target.push_back(std::move(*parsed));
    }
  }

  const nlohmann::json* find(const char* name) const {
    if (!problem_.empty()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  void wrong(const std::string& name, const char* expected) {
    if (problem_.empty()) problem_ = "'" + name + "' in " + where_ + " is not " + expected;
  }

  // An object within this one.
  template <class T>
  bool read_object(const char* name, T& target, base::Result<T> (*parse)(const nlohmann::json&)) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return false;
    auto parsed = parse(*value);
    if (!parsed) {
      problem_ = parsed.error().what;
      return false;
    }
    target = std::move(*parsed);
    return true;
  }

  template <class T>
  base::Result<T> finish(T value) const {
    if (!problem_.empty()) return base::fail(base::Code::kProtocol, problem_);
    return value;
  }

 private:
  static bool take_bytes(const nlohmann::json& value, std::string& target) {
    if (value.is_string()) {
      target = value.get<std::string>();
      return true;
    }
    const auto found = value.is_object() ? value.find("base64") : value.end();
    if (!value.is_object() || found == value.end() || !found->is_string()) return false;
    auto bytes = base::decode_base64(found->get_ref<const std::string&>());
    if (!bytes) return false;
    target = std::move(*bytes);
    return true;
  }

  const nlohmann::json& object_;
  std::string where_;
  std::string problem_;
};

inline base::Result<nlohmann::json> parse_json(std::string_view text) {
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_discarded()) return base::fail(base::Code::kProtocol, "the daemon's answer is not JSON");
  return parsed;
}

}  // namespace gpumux::api_client
