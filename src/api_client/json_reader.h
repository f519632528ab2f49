// SPDX-License-Identifier: Apache-2.0
// How the daemon's JSON becomes our types. Within api_client only.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

// 2^62 ns are 146 years: nothing has lasted or will last that long, so such a number can only stand for "never".
inline constexpr std::int64_t kNeverNs = std::int64_t{1} << 62;

// take() reads a value of one type, and says what it should be if it is something else. Empty: it has been read.

// Text is bytes: a string, or {"base64": "..."} where it is no UTF-8.
inline std::string take(const nlohmann::json& value, std::string& target) {
  if (value.is_string()) {
    target = value.get<std::string>();
    return {};
  }
  const auto found = value.find("base64");
  if (found == value.end() || !found->is_string()) return "a string";
  auto bytes = base::decode_base64(found->get_ref<const std::string&>());
  if (!bytes) return "a string";
  target = std::move(*bytes);
  return {};
}

inline std::string take(const nlohmann::json& value, bool& target) {
  if (!value.is_boolean()) return "true or false";
  target = value.get<bool>();
  return {};
}

template <std::integral T>
std::string take(const nlohmann::json& value, T& target) {
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  if (!fits) return "a whole number";
  target = value.get<T>();
  return {};
}

inline std::string take(const nlohmann::json& value, double& target) {
  if (!value.is_number()) return "a number";
  target = value.get<double>();
  return {};
}

inline std::string take(const nlohmann::json& value, base::Duration& target) {
  if (!value.is_number()) return "a number of nanoseconds";
  const bool never = value.is_number_unsigned() ? value.get<std::uint64_t>() >= static_cast<std::uint64_t>(kNeverNs)
                                                : value.get<double>() >= static_cast<double>(kNeverNs);
  target = never ? base::Duration::max() : base::Duration(value.get<std::int64_t>());
  return {};
}

inline std::string take(const nlohmann::json& value, base::TimePoint& target) {
  base::Duration since_start{};
  std::string expected = take(value, since_start);
  target = base::TimePoint(since_start);
  return expected;
}

// Values that are no text as JSON writes them.
inline std::string take(const nlohmann::json& value, std::map<std::string, std::string>& target) {
  if (!value.is_object()) return "an object";
  for (const auto& [key, item] : value.items()) {
    target[key] = item.is_string() ? item.get<std::string>()
                                   : item.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  return {};
}

template <class T>
std::string take(const nlohmann::json& value, std::optional<T>& target) {
  return take(value, target.emplace());
}

// "a string": "an array of strings"
inline std::string of_many(const char* container, const std::string& one) {
  return container + (" of " + one.substr(2) + "s");
}

template <class T>
std::string take(const nlohmann::json& value, std::vector<T>& target) {
  if (!value.is_array()) return "an array";
  for (const nlohmann::json& item : value) {
    if (const std::string one = take(item, target.emplace_back()); !one.empty()) return of_many("an array", one);
  }
  return {};
}

template <std::integral T>
std::string take(const nlohmann::json& value, std::map<std::string, T>& target) {
  if (!value.is_object()) return "an object";
  for (const auto& [key, item] : value.items()) {
    if (const std::string one = take(item, target[key]); !one.empty()) return of_many("an object", one);
  }
  return {};
}

// Reads the fields of one object. The first wrong type is remembered, and everything after it is skipped. So the fields
// of a struct are a plain list, with one check at the end of all.
class Reader {
 public:
  // The list of the fields of T.
  template <class T>
  using Fields = void (*)(Reader& reader, T& target);

  // `where` names the object for people.
  Reader(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) problem_ = where_ + " is not an object";
  }

  // A field that is missing or null leaves `target` alone.
  template <class T>
  void read(const char* name, T& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (const std::string expected = take(*value, target); !expected.empty()) wrong(name, expected);
  }

  // An object within this one, or several.
  template <class T>
  void read(const char* name, T& target, const char* where, Fields<std::type_identity_t<T>> fields) {
    if (const nlohmann::json* value = find(name)) take_object(*value, target, where, fields);
  }
  template <class T>
  void read(const char* name, std::optional<T>& target, const char* where, Fields<std::type_identity_t<T>> fields) {
    if (const nlohmann::json* value = find(name)) take_object(*value, target.emplace(), where, fields);
  }
  template <class T>
  void read(const char* name, std::vector<T>& target, const char* where, Fields<std::type_identity_t<T>> fields) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array()) return wrong(name, "an array");
    for (const nlohmann::json& item : *value) take_object(item, target.emplace_back(), where, fields);
  }

  // Null: there is no such field, or a wrong type was found before.
  const nlohmann::json* find(const char* name) const {
    if (!problem_.empty()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  const nlohmann::json& object() const { return object_; }

  void wrong(const std::string& name, const std::string& expected) {
    if (problem_.empty()) problem_ = "'" + name + "' in " + where_ + " is not " + expected;
  }

  const std::string& problem() const { return problem_; }

 private:
  template <class T>
  void take_object(const nlohmann::json& value, T& target, const char* where, Fields<T> fields) {
    Reader reader(value, where);
    fields(reader, target);
    if (problem_.empty()) problem_ = reader.problem_;
  }

  const nlohmann::json& object_;
  std::string where_;
  std::string problem_;
};

template <class T>
base::Result<T> read_object(const nlohmann::json& object, const char* where, Reader::Fields<T> fields) {
  Reader reader(object, where);
  T target;
  fields(reader, target);
  if (!reader.problem().empty()) return base::fail(base::Code::kProtocol, reader.problem());
  return target;
}

template <class T>
base::Result<T> parse(std::string_view text, Reader::Fields<T> fields, const char* where = "the daemon's answer") {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (object.is_discarded()) return base::fail(base::Code::kProtocol, "the daemon's answer is not JSON");
  return read_object(object, where, fields);
}

}  // namespace gpumux::api_client
