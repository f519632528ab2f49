// SPDX-License-Identifier: Apache-2.0
// A table that fits the terminal.
//
// In a table that is too wide, columns that may shrink give up room first, the widest first, down to their minimum.
// Then whole columns are left out, the one with the highest `leave_out` first. A text that is cut off ends in '~'. The
// texts of a column `below` are never cut. Unless the whole table fits as it is, each stands in lines of its own below
// its row. Without a terminal nothing is cut: scripts and files get everything.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame/terminal.h"

namespace gpumux::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string_view title;
  Align align = Align::kLeft;
  int leave_out = 0;           // 0: never
  std::size_t minimum = 0;     // columns that it may shrink to; 0: it does not shrink
  bool hide_if_empty = false;  // left out when no row has anything in it
  bool below = false;
};

struct Cell {
  std::string text;  // made printable by the table
  Colour colour = Colour::kNone;
};

// How wide each column becomes; 0: left out. `natural`: the widths that would show everything. `room`: 0: no limit.
std::vector<std::size_t> lay_out(const std::vector<Column>& columns, const std::vector<std::size_t>& natural,
                                 std::size_t room);

class Table {
 public:
  explicit Table(std::vector<Column> columns, std::size_t indent = 0) : columns_(std::move(columns)), indent_(indent) {}

  // As many cells as there are columns.
  void add_row(std::vector<Cell> cells);

  // Its lines, the titles first, without trailing spaces.
  std::vector<std::string> lines(const Output& output) const;

 private:
  std::vector<Column> columns_;
  std::size_t indent_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace gpumux::cli
