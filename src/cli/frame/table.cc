// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/table.h"

#include <algorithm>
#include <cassert>

namespace gpumux::cli {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kIndentBelow = 4;

std::size_t total_width(const std::vector<std::size_t>& widths) {
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width == 0 ? 0 : width + (total == 0 ? 0 : kGap);
  return total;
}

// Takes `excess` from the columns that may shrink, always from the widest of them; gives what is still too much.
std::size_t shrink(const std::vector<Column>& columns, std::vector<std::size_t>& widths, std::size_t excess) {
  while (excess > 0) {
    std::size_t widest = columns.size();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const bool can = columns[i].minimum > 0 && widths[i] > columns[i].minimum;
      if (can && (widest == columns.size() || widths[i] > widths[widest])) widest = i;
    }
    if (widest == columns.size()) return excess;
    --widths[widest];
    --excess;
  }
  return 0;
}

}  // namespace

std::vector<std::size_t> lay_out(const std::vector<Column>& columns, const std::vector<std::size_t>& natural,
                                 std::size_t room) {
  assert(columns.size() == natural.size());
  std::vector<std::size_t> wanted = natural;
  for (;;) {
    std::vector<std::size_t> widths = wanted;
    const std::size_t total = total_width(widths);
    if (room == 0 || total <= room) return widths;
    const std::size_t excess = shrink(columns, widths, total - room);
    if (excess == 0) return widths;
    std::size_t least = columns.size();
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const bool can = wanted[i] > 0 && columns[i].leave_out > 0;
      if (can && (least == columns.size() || columns[i].leave_out > columns[least].leave_out)) least = i;
    }
    if (least != columns.size()) {
      wanted[least] = 0;
      continue;
    }
    // Nothing can go any more: the last columns are cut.
    std::size_t over = excess;
    for (std::size_t i = columns.size(); i-- > 0 && over > 0;) {
      if (widths[i] == 0) continue;
      const std::size_t cut = over >= widths[i] ? widths[i] + kGap : over;
      widths[i] = over >= widths[i] ? 0 : widths[i] - over;
      over -= std::min(over, cut);
    }
    return widths;
  }
}

void Table::add_row(std::vector<Cell> cells) {
  assert(cells.size() == columns_.size());
  for (Cell& cell : cells) cell.text = printable(cell.text);
  rows_.push_back(std::move(cells));
}

std::vector<std::string> Table::lines(const Output& output) const {
  std::vector<std::size_t> natural;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t widest = 0;
    for (const auto& row : rows_) widest = std::max(widest, display_width(row[i].text));
    natural.push_back(widest == 0 && columns_[i].hide_if_empty ? 0
                                                               : std::max(widest, display_width(columns_[i].title)));
  }
  const std::size_t room = output.columns == 0 ? 0 : output.columns - std::min(output.columns - 1, indent_);
  const bool fits = room == 0 || total_width(natural) <= room;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].below && !fits) natural[i] = 0;
  }
  const std::vector<std::size_t> widths = lay_out(columns_, natural, room);

  std::size_t last = 0;
  for (std::size_t i = 0; i < widths.size(); ++i) last = widths[i] > 0 ? i : last;
  const auto make_line = [&](auto&& cell_at) {
    std::string line(indent_, ' ');
    std::string spaces;  // owed: written before the next text, so that a line has none at its end
    bool first = true;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] == 0) continue;
      if (!first) spaces.append(kGap, ' ');
      first = false;
      const Cell cell = cell_at(i);
      const std::string text = fit(cell.text, widths[i]);
      const std::size_t padding = widths[i] - display_width(text);
      if (columns_[i].align == Align::kRight) spaces.append(padding, ' ');
      if (!text.empty()) {
        line += spaces + paint(output, cell.colour, text);
        spaces.clear();
      }
      if (columns_[i].align == Align::kLeft && i != last) spaces.append(padding, ' ');
    }
    return line;
  };

  std::vector<std::string> result;
  result.push_back(make_line([&](std::size_t i) { return Cell{std::string(columns_[i].title), Colour::kDim}; }));
  const std::string margin(indent_ + kIndentBelow, ' ');
  for (const auto& row : rows_) {
    result.push_back(make_line([&](std::size_t i) { return row[i]; }));
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (fits || !columns_[i].below || row[i].text.empty()) continue;
      for (const std::string& part : wrap(row[i].text, room - std::min(room - 1, kIndentBelow)))
        result.push_back(margin + paint(output, row[i].colour, part));
    }
  }
  return result;
}

}  // namespace gpumux::cli
