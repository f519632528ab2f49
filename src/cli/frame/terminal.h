// SPDX-License-Identifier: Apache-2.0
// The output, and the form that text must have there.
//
// Names of programs, users and GPUs, notes and log lines come from other people's processes. An escape sequence in one
// could move the reader's cursor, change the window's title or worse. So every text from outside is made printable
// before it is shown.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::cli {

enum class Colour { kNone, kBold, kDim, kRed, kGreen, kYellow, kCyan };

struct Output {
  bool terminal = false;
  bool moves = false;  // the cursor can be moved
  bool colours = false;
  std::size_t columns = 0;  // 0: not a terminal, no limit
  std::size_t rows = 0;
};

// Describes stdout as it is now: a terminal's size may change at any time. Colours: on a terminal that can, unless
// NO_COLOR is set (not empty).
Output look_at_stdout();

// The rule by itself. `columns_variable` (COLUMNS) counts where the terminal does not say its size.
Output describe_output(bool is_terminal, unsigned terminal_columns, unsigned terminal_rows, const char* no_color,
                       const char* term, const char* columns_variable);

// `text` in a colour, where there are colours.
std::string paint(const Output& output, Colour colour, std::string_view text);

// Control characters and bytes that are not UTF-8 become '?'; tab and newline become a space.
std::string printable(std::string_view text);
// The same, but newlines stay: for text of several lines of our own making.
std::string printable_lines(std::string_view text);

// JSON in its printed form, with a newline at its end. On a terminal what printable() replaces is written as \u001b and
// so on, which is the same JSON.
std::string json_for(const Output& output, std::string_view json);

// To stdout, at once.
void print_lines(const std::vector<std::string>& lines);
void print_json(std::string_view json);

// Columns that `text` (printable UTF-8) takes on a terminal.
std::size_t display_width(std::string_view text);

// The first character of `text` (printable UTF-8, not empty), and the columns that it takes. 0: it is a mark over the
// character before it.
struct Character {
  std::string_view bytes;
  std::size_t width = 1;
};
Character first_character(std::string_view text);

// `text` with spaces behind it, so that it takes at least `columns`.
std::string pad(std::string_view text, std::size_t columns);

// The longest beginning of `text` that takes at most `columns`, its last character '~' where something was cut off.
std::string fit(std::string_view text, std::size_t columns);

// `text` in lines of at most `columns`, broken at spaces; a word that is longer than a line is broken anywhere. Lines
// after the first begin with `indent` spaces. `columns` of 0: no limit, one line.
std::vector<std::string> wrap(std::string_view text, std::size_t columns, std::size_t indent = 0);

}  // namespace gpumux::cli
