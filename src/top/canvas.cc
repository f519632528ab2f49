// SPDX-License-Identifier: Apache-2.0
#include "top/canvas.h"

#include <algorithm>

#include "cli/frame/terminal.h"

namespace gpumux::top {
namespace {

// A text may put any number of marks over one character. A terminal, and ncurses, show few.
constexpr std::size_t kMostMarks = 3;

bool is_ascii(std::string_view bytes) { return bytes.size() == 1 && static_cast<unsigned char>(bytes[0]) < 0x80; }

}  // namespace

Canvas::Canvas(std::size_t rows, std::size_t columns, Letters letters)
    : rows_(rows), columns_(columns), letters_(letters), cells_(rows * columns) {}

// A wide character of which half was there is gone, too.
void Canvas::blank(std::size_t row, std::size_t column) {
  if (cell(row, column).text.empty() && column > 0) cell(row, column - 1).text = " ";
  if (column + 1 < columns_ && cell(row, column + 1).text.empty()) cell(row, column + 1).text = " ";
}

std::size_t Canvas::put(std::size_t row, std::size_t column, std::string_view text, Style style, std::size_t width) {
  if (row >= rows_ || column >= columns_) return column;
  const std::string shown = cli::fit(cli::printable(text), std::min(width, columns_ - column));
  const std::size_t end = column + std::min(width, columns_ - column);
  std::size_t marks = 0;
  bool has_character = false;
  for (std::string_view rest = shown; !rest.empty();) {
    const cli::Character character = cli::first_character(rest);
    rest.remove_prefix(character.bytes.size());
    if (character.width == 0) {
      if (has_character && letters_ == Letters::kUnicode && marks++ < kMostMarks) {
        std::size_t base = column - 1;
        if (cell(row, base).text.empty()) --base;
        cell(row, base).text += character.bytes;
      }
      continue;
    }
    if (column + character.width > end) break;
    marks = 0;
    has_character = true;
    const bool can = letters_ == Letters::kUnicode || is_ascii(character.bytes);
    for (std::size_t i = 0; i < character.width; ++i) {
      blank(row, column + i);
      cell(row, column + i) = {can ? std::string() : "?", style};
    }
    if (can) cell(row, column).text = character.bytes;
    column += character.width;
  }
  return column;
}

void Canvas::put_right(std::size_t row, std::size_t end, std::string_view text, Style style) {
  const std::size_t width = cli::display_width(cli::printable(text));
  if (width <= end) put(row, end - width, text, style, width);
}

void Canvas::fill(std::size_t row, std::size_t column, std::size_t width, Style style) {
  if (row >= rows_) return;
  for (std::size_t end = column + std::min(width, columns_ - std::min(columns_, column)); column < end; ++column) {
    blank(row, column);
    cell(row, column) = {" ", style};
  }
}

std::string Canvas::line(std::size_t row) const {
  std::string text;
  for (std::size_t column = 0; column < columns_; ++column) text += at(row, column).text;
  text.erase(std::min(text.size(), text.find_last_not_of(' ') + 1));
  return text;
}

}  // namespace gpumux::top
