// SPDX-License-Identifier: Apache-2.0
// A list in one word: "a,b,c".
#pragma once

#include <string_view>
#include <vector>

namespace gpumux::base {

// The parts between the separators. A text without any is one part, an empty text one empty part.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace gpumux::base
