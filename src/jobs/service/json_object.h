// SPDX-License-Identifier: Apache-2.0
// A JSON object that is written field by field, straight into text. A list of jobs has a hundred thousand of them, and
// a tree of values for each takes ten times as long.
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

#include "base/ids.h"
#include "jobs/service/json_fields.h"

namespace gpumux::jobs {

class JsonObject {
 public:
  // `text` outlives this; the object is in it when this has gone.
  explicit JsonObject(std::string& text) : text_(text) { put("{"); }
  ~JsonObject() {
    put("}");
    flush();
  }
  JsonObject(const JsonObject&) = delete;
  JsonObject& operator=(const JsonObject&) = delete;

  template <std::integral Number>
  void number(std::string_view name, Number value) {
    begin(name);
    append(value);
  }
  void flag(std::string_view name, bool value) {
    begin(name);
    put(value ? "true" : "false");
  }
  // One of our own, in which nothing needs to be escaped.
  void word(std::string_view name, std::string_view value) {
    begin(name);
    put("\"");
    put(value);
    put("\"");
  }
  // A text of any origin: any bytes.
  void text(std::string_view name, const std::string& value) {
    const auto is_plain = [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
    if (std::all_of(value.begin(), value.end(), is_plain)) return word(name, value);
    begin(name);
    put(text_json(value).dump());
  }
  template <class Numbers>
  void numbers(std::string_view name, const Numbers& values) {
    begin(name);
    put("[");
    bool is_first = true;
    for (const auto& value : values) {
      if (!std::exchange(is_first, false)) put(",");
      append(value);
    }
    put("]");
  }
  void json(std::string_view name, const nlohmann::json& value) {
    begin(name);
    put(value.dump());
  }

 private:
  void begin(std::string_view name) {
    put(std::exchange(is_empty_, false) ? "\"" : ",\"");
    put(name);
    put("\":");
  }
  template <std::integral Number>
  void append(Number value) {
    char digits[24];
    put({digits, std::to_chars(digits, digits + sizeof digits, value).ptr});
  }
  void append(base::GpuIndex gpu) { append(gpu.value); }

  // Pieces of some bytes each are gathered: telling a string of each costs more than the bytes.
  void put(std::string_view piece) {
    if (piece.size() > sizeof gathered_ - size_) {
      flush();
      if (piece.size() > sizeof gathered_) {
        text_ += piece;
        return;
      }
    }
    std::copy(piece.begin(), piece.end(), gathered_ + size_);
    size_ += piece.size();
  }
  void flush() {
    text_.append(gathered_, size_);
    size_ = 0;
  }

  std::string& text_;
  bool is_empty_ = true;
  std::size_t size_ = 0;
  char gathered_[1024];
};

}  // namespace gpumux::jobs
