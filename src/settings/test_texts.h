// SPDX-License-Identifier: Apache-2.0
// Texts on both sides of every limit of a setting, for tests that walk the table.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "settings/setting.h"

namespace gpumux::settings {

// `number` in the unit of the type, as text.
inline std::string text_of(const Type& type, std::int64_t number) {
  if (type.kind == Kind::kTime) return std::to_string(number) + "ns";
  if (type.kind == Kind::kBytes) return std::to_string(number) + "B";
  return format_number(type.kind, number);
}

inline bool is_bounded(const Type& type) {
  return type.kind == Kind::kTime || type.kind == Kind::kBytes || type.kind == Kind::kCount ||
         type.kind == Kind::kFactor || type.kind == Kind::kPermissions;
}

inline std::vector<std::string> words_of(const Type& type) {
  std::vector<std::string> words;
  for (std::size_t i = 0; !word_of(type, i).empty(); ++i) words.emplace_back(word_of(type, i));
  return words;
}

inline std::vector<std::string> good_texts(const Setting& setting) {
  const Type& type = setting.type;
  std::vector<std::string> good = words_of(type);
  if (type.kind != Kind::kNames) good.emplace_back(setting.standard);
  if (is_bounded(type)) {
    good.push_back(text_of(type, type.minimum));
    if (type.maximum < INT64_MAX) good.push_back(text_of(type, type.maximum));
  }
  return good;
}

inline std::vector<std::string> bad_texts(const Setting& setting) {
  const Type& type = setting.type;
  if (type.kind == Kind::kText || type.kind == Kind::kAny) return {};
  std::vector<std::string> bad{"", "x", "-1ms"};
  if (type.kind == Kind::kTime || type.kind == Kind::kBytes || type.kind == Kind::kMemoryPart) bad.emplace_back("50");
  if (is_bounded(type)) {
    if (type.minimum > 0) bad.push_back(text_of(type, type.minimum - 1));
    if (type.maximum < INT64_MAX)
      bad.push_back(text_of(type, type.maximum + std::max<std::int64_t>(type.maximum / 1000, 1)));
  }
  return bad;
}

}  // namespace gpumux::settings
