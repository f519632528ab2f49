// SPDX-License-Identifier: Apache-2.0
// UTF-8, as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpumux::base {

struct Utf8Character {
  std::uint32_t point = 0;
  std::size_t bytes = 1;
  bool valid = false;  // false: one byte that begins no character
};

// The first character of `text`. REQUIRES: not empty.
Utf8Character decode_utf8(std::string_view text);

bool is_utf8(std::string_view bytes);

// C0, DEL, C1, and the marks that reorder text, which could make one name look like another.
bool is_control(std::uint32_t point);

// With each byte of a control character, and each that is of no character, as \xNN.
std::string escaped(std::string_view text);

}  // namespace gpumux::base
