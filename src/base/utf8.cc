// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

namespace gpumux::base {

Utf8Character decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  std::size_t length = 0;
  std::uint32_t point = 0;
  std::uint32_t smallest = 0;
  if ((first & 0xe0) == 0xc0) {
    length = 2, point = first & 0x1fu, smallest = 0x80;
  } else if ((first & 0xf0) == 0xe0) {
    length = 3, point = first & 0x0fu, smallest = 0x800;
  } else if ((first & 0xf8) == 0xf0) {
    length = 4, point = first & 0x07u, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() < length) return {};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    point = point << 6 | (byte(i) & 0x3fu);
  }
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  if (point < smallest || surrogate || point > 0x10ffff) return {};
  return {point, length, true};
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Character character = decode_utf8(bytes);
    if (!character.valid) return false;
    bytes.remove_prefix(character.bytes);
  }
  return true;
}

bool is_control(std::uint32_t point) {
  return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x061c || (point >= 0x200e && point <= 0x200f) ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) || point == 0xfeff;
}

std::string escaped(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = decode_utf8(text);
    const std::string_view bytes = text.substr(0, character.bytes);
    text.remove_prefix(character.bytes);
    if (character.valid && !is_control(character.point)) {
      result += bytes;
      continue;
    }
    for (const char c : bytes) {
      const auto byte = static_cast<std::uint8_t>(c);
      result += "\\x";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result;
}

}  // namespace gpumux::base
