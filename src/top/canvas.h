// SPDX-License-Identifier: Apache-2.0
// A screen of cells that the layout draws on, and that the terminal shows or a test reads.
//
// Every text that is put on it is made printable here, so that no name or reason of another program can be shown
// otherwise. A character that takes two columns takes two cells, and is left out where only one is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::top {

enum class Hue : std::uint8_t { kNone, kRed, kGreen, kYellow, kBlue, kMagenta, kCyan, kWhite };

struct Style {
  Hue hue = Hue::kNone;
  bool bold = false;
  bool dim = false;
  bool reversed = false;  // the hue is the ground's

  bool operator==(const Style&) const = default;
};

// The characters that the terminal can show.
enum class Letters : std::uint8_t { kAscii, kUnicode };

struct Cell {
  std::string text = " ";  // one character with its marks; empty: the second half of the one before
  Style style;
};

class Canvas {
 public:
  Canvas(std::size_t rows, std::size_t columns, Letters letters);

  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  const Cell& at(std::size_t row, std::size_t column) const { return cells_[row * columns_ + column]; }

  // Writes `text` into at most `width` cells from (row, column) on. A text that is cut off ends in '~'. Cells outside
  // of the screen are not drawn. Gives the column after the text.
  std::size_t put(std::size_t row, std::size_t column, std::string_view text, Style style = {},
                  std::size_t width = SIZE_MAX);
  // The same, but the text ends before column `end`.
  void put_right(std::size_t row, std::size_t end, std::string_view text, Style style = {});
  // Blanks `width` cells.
  void fill(std::size_t row, std::size_t column, std::size_t width, Style style);

  // A row's characters, without spaces at its end.
  std::string line(std::size_t row) const;

 private:
  Cell& cell(std::size_t row, std::size_t column) { return cells_[row * columns_ + column]; }
  void blank(std::size_t row, std::size_t column);

  std::size_t rows_;
  std::size_t columns_;
  Letters letters_;
  std::vector<Cell> cells_;
};

}  // namespace gpumux::top
