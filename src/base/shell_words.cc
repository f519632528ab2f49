// SPDX-License-Identifier: Apache-2.0
#include "base/shell_words.h"

namespace gpumux::base {

std::string shell_word(std::string_view word) {
  static constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_words(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

std::string shortened(std::string text, std::size_t most) {
  static constexpr std::string_view kMore = "...";
  if (text.size() <= most) return text;
  std::size_t end = most < kMore.size() ? 0 : most - kMore.size();
  const auto continues = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  while (end > 0 && continues(end)) --end;
  text.resize(end);
  return text.append(kMore);
}

}  // namespace gpumux::base
