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

// No line of a program's help is longer.
inline constexpr std::size_t kHelpColumns = 80;
// The sentence about an option begins here.
inline constexpr std::size_t kHelpSentence = 28;

// A program's help in lines of at most `columns` bytes. A paragraph without an indent is filled anew. The second one of
// two columns goes on below itself. Commands and the line of usage stay as they are.
std::string fill_help(std::string_view help, std::size_t columns = kHelpColumns);

}  // namespace gpumux::command_line
