// SPDX-License-Identifier: Apache-2.0
#include "command_line/fold.h"

#include <algorithm>

namespace gpumux::command_line {
namespace {

// Words between backticks are a command, and stay in one line.
std::size_t end_of_word(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  for (bool in_command = false; end < text.size() && (text[end] != ' ' || in_command); ++end)
    in_command = in_command != (text[end] == '`');
  return end;
}

void fold_line(std::string& folded, std::string_view line, std::size_t columns) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::string row(line.substr(0, indent));
  bool has_word = false;
  for (std::string_view rest = line.substr(indent); !rest.empty();) {
    const std::size_t gap = std::min(rest.find_first_not_of(' '), rest.size());
    const std::size_t end = end_of_word(rest, gap);
    if (has_word && row.size() + end > columns) {
      folded += row + "\n";
      row.assign(indent + 2, ' ');
      rest.remove_prefix(gap);
      row += rest.substr(0, end - gap);
      rest.remove_prefix(end - gap);
    } else {
      row += rest.substr(0, end);
      rest.remove_prefix(end);
    }
    has_word = true;
  }
  folded += row;
}

}  // namespace

std::string fold(std::string_view text, std::size_t columns) {
  std::string folded;
  for (;;) {
    const std::size_t end = text.find('\n');
    fold_line(folded, text.substr(0, end), columns);
    if (end == std::string_view::npos) return folded;
    folded += '\n';
    text.remove_prefix(end + 1);
  }
}

}  // namespace gpumux::command_line
