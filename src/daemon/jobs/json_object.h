// SPDX-License-Identifier: Apache-2.0
// A JSON object that is written field by field, straight into text: a list of jobs has a hundred thousand of them, and
// a tree of values for each takes ten times as long.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

#include "daemon/jobs/json_fields.h"

namespace gpumux::daemon {

class JsonObject {
 public:
  // `text` outlives this; the object ends when this goes.
  explicit JsonObject(std::string& text) : text_(text) { text_ += '{'; }
  ~JsonObject() { text_ += '}'; }
  JsonObject(const JsonObject&) = delete;
  JsonObject& operator=(const JsonObject&) = delete;

  template <std::integral Number>
  void number(std::string_view name, Number value) {
    begin(name);
    append(value);
  }
  void flag(std::string_view name, bool value) {
    begin(name);
    text_ += value ? "true" : "false";
  }
  // One of our own, in which nothing needs to be escaped.
  void word(std::string_view name, std::string_view value) {
    begin(name);
    text_.append(1, '"').append(value).append(1, '"');
  }
  // Anybody's: any bytes.
  void text(std::string_view name, const std::string& value) {
    const auto is_plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
    if (std::all_of(value.begin(), value.end(), is_plain)) return word(name, value);
    begin(name);
    text_ += text_json(value).dump();
  }
  template <class Numbers>
  void numbers(std::string_view name, const Numbers& values) {
    begin(name);
    text_ += '[';
    const std::size_t start = text_.size();
    for (const auto& value : values) {
      if (text_.size() != start) text_ += ',';
      append(value);
    }
    text_ += ']';
  }
  void json(std::string_view name, const nlohmann::json& value) {
    begin(name);
    text_ += value.dump();
  }

 private:
  void begin(std::string_view name) {
    if (text_.back() != '{') text_ += ',';
    text_.append(1, '"').append(name).append("\":");
  }
  template <std::integral Number>
  void append(Number value) {
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  void append(base::GpuIndex gpu) { append(gpu.value); }

  std::string& text_;
};

}  // namespace gpumux::daemon
