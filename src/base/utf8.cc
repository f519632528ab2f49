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

}  // namespace gpumux::base
