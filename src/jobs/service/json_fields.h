// SPDX-License-Identifier: Apache-2.0
// Reading JSON of strangers field by field: bounded, with errors that say which field is wrong and what is allowed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/base64.h"
#include "base/result.h"
#include "base/utf8.h"

namespace gpumux::jobs {

// Linux takes no longer argument or variable (MAX_ARG_STRLEN), and no more of all together (three quarters of 8 MiB).
inline constexpr std::size_t kMaxStringBytes = 131'071;
inline constexpr std::size_t kMaxStringsBytes = 6u << 20;

// An object. Bounded before it is believed: a body of brackets would take fifty times its size in memory.
base::Result<nlohmann::json> parse_bounded_json(std::string_view text);

// One field after the other: a field that has not been asked for in the end is not known.
class JsonFields {
 public:
  explicit JsonFields(const nlohmann::json& json) : json_(json) {}

  // Null: it is not there, or null.
  const nlohmann::json* find(const char* name) {
    known_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  base::Status text(const char* name, std::string& target, std::size_t most) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return {};
    GPUMUX_TRY(read_string(name, *value, target));
    if (target.size() > most) return wrong(std::string(name) + " may have " + std::to_string(most) + " bytes");
    return {};
  }
  base::Status texts(const char* name, std::vector<std::string>& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_array()) return wrong(std::string(name) + " must be a list of strings");
    std::size_t bytes = 0;
    target.reserve(value->size());
    for (const nlohmann::json& element : *value) {
      GPUMUX_TRY(read_string(name, element, target.emplace_back()));
      const std::size_t size = target.back().size();
      if (size > kMaxStringBytes) {
        return wrong(std::string(name) + " has one of " + std::to_string(size) +
                     " bytes: no program can be started with more than " + std::to_string(kMaxStringBytes) +
                     " in one; put it into a file");
      }
      bytes += size + 1;
    }
    if (bytes > kMaxStringsBytes) {
      return wrong(std::string(name) + " has " + std::to_string(bytes) +
                   " bytes: no program can be started with more than " + std::to_string(kMaxStringsBytes) +
                   "; put them into a file");
    }
    return {};
  }
  base::Status flag(const char* name, bool& target) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_boolean()) return wrong(std::string(name) + " must be true or false");
    target = value->get<bool>();
    return {};
  }
  template <class Number>
  base::Status number(const char* name, Number& target, std::int64_t least, std::uint64_t most) {
    const nlohmann::json* value = find(name);
    if (value == nullptr) return {};
    const bool fits = value->is_number_unsigned()
                          ? value->get<std::uint64_t>() <= most &&
                                (least <= 0 || value->get<std::uint64_t>() >= static_cast<std::uint64_t>(least))
                          : value->is_number_integer() && value->get<std::int64_t>() >= least;
    if (!fits)
      return wrong(std::string(name) + " must be a whole number from " + std::to_string(least) + " to " +
                   std::to_string(most));
    target = static_cast<Number>(value->is_number_unsigned() ? static_cast<std::int64_t>(value->get<std::uint64_t>())
                                                             : value->get<std::int64_t>());
    return {};
  }
  base::Status nothing_else() const {
    for (const auto& [key, value] : json_.items()) {
      if (!known_.contains(key))
        return wrong("there is no field '" + key.substr(0, 64) + "' (docs/api.md has those that there are)");
    }
    return {};
  }

 private:
  static base::Status read_string(const char* name, const nlohmann::json& value, std::string& target) {
    if (value.is_string()) {
      target = value.get_ref<const std::string&>();
    } else if (value.is_object() && value.size() == 1 && value.contains("base64") && value["base64"].is_string()) {
      auto bytes = base::decode_base64(value["base64"].get_ref<const std::string&>());
      if (!bytes) return wrong(std::string(name) + ": " + bytes.error().message());
      target = std::move(*bytes);
    } else {
      return wrong(std::string(name) + " must be a string, or {\"base64\": ...}");
    }
    if (target.find('\0') != std::string::npos) return wrong(std::string(name) + " has a zero byte in it");
    return {};
  }

  static tl::unexpected<base::Error> wrong(std::string what) {
    return base::fail(base::Code::kInvalid, std::move(what));
  }

  const nlohmann::json& json_;
  std::set<std::string, std::less<>> known_;
};

// As such fields are written.
inline nlohmann::json text_json(const std::string& text) {
  if (base::is_utf8(text)) return text;
  return {{"base64", base::encode_base64(text)}};
}
inline nlohmann::json texts_json(const std::vector<std::string>& texts) {
  nlohmann::json json = nlohmann::json::array();
  for (const std::string& text : texts) json.push_back(text_json(text));
  return json;
}

}  // namespace gpumux::jobs
