// SPDX-License-Identifier: Apache-2.0
// Text for people in lines that a terminal shows whole.
#pragma once

#include <string>
#include <string_view>

namespace gpumux::command_line {

// No line of an error is longer.
inline constexpr std::size_t kErrorColumns = 100;

// Breaks lines of more than `columns` bytes at spaces. Further lines begin with two spaces more than the first. A word
// that is longer than a line, for example a path, stays whole.
std::string fold(std::string_view text, std::size_t columns = kErrorColumns);

}  // namespace gpumux::command_line
