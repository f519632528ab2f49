// SPDX-License-Identifier: Apache-2.0
// The tables of programs and jobs. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/frame/table.h"
#include "top/look.h"
#include "top/view_state.h"

namespace gpumux::top {

struct TableCell {
  std::string text;
  Style style;
};

// A table that scrolls: only the rows around the selected one are shown if not all fit.
struct ScrolledTable {
  std::vector<cli::Column> columns;
  std::vector<std::vector<TableCell>> rows;
  std::size_t selected = 0;
  bool has_focus = false;
  std::string remark;    // at the right end of the titles
  std::string if_empty;  // instead of rows
};

ScrolledTable programs_table(const Model& model, const View& view);
ScrolledTable jobs_table(const Model& model, const View& view, const Clocks& clocks);

// In `height` rows, the first of which has the titles.
void draw_table(Canvas& canvas, const ScrolledTable& table, std::size_t top, std::size_t height);

}  // namespace gpumux::top
