// SPDX-License-Identifier: Apache-2.0
#include "command_line/fold.h"

#include <algorithm>

#include "base/split.h"

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

// Where the second column of a line begins: of options at kHelpSentence, of lists behind two spaces. 0: there is none.
// A remark behind a command is no column.
std::size_t second_column(std::string_view line) {
  const std::size_t word = std::min(line.find_first_not_of(' '), line.size());
  if (word == kHelpSentence || line.substr(word).starts_with("-")) return kHelpSentence;
  const std::size_t gap = std::min(line.find("  ", word), line.size());
  const std::size_t second = std::min(line.find_first_not_of(' ', gap), line.size());
  return line.substr(second).empty() || line[second] == '#' ? 0 : second;
}

// Adds words to `row`, which ends where a word may begin, and begins further rows with `indent` spaces.
void fill_words(std::string& filled, std::string row, std::string_view words, std::size_t indent, std::size_t columns) {
  bool has_word = false;
  while (!words.empty()) {
    words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));
    const std::size_t end = end_of_word(words, 0);
    if (end == 0) break;
    if (has_word && row.size() + 1 + end > columns) {
      filled += row + "\n";
      row.assign(indent, ' ');
      has_word = false;
    }
    row += (has_word ? " " : "") + std::string(words.substr(0, end));
    has_word = true;
    words.remove_prefix(end);
  }
  filled += row + "\n";
}

}  // namespace

std::string fill_help(std::string_view help, std::size_t columns) {
  std::string filled;
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) fill_words(filled, "", paragraph, 0, columns);
    paragraph.clear();
  };
  while (!help.empty()) {
    const std::size_t end = std::min(help.find('\n'), help.size());
    const std::string_view line = help.substr(0, end);
    help.remove_prefix(std::min(end + 1, help.size()));
    const bool is_usage = line.starts_with("Usage: ");
    if (!line.empty() && line.front() != ' ' && !is_usage) {
      paragraph += (paragraph.empty() ? "" : " ") + std::string(line);
      continue;
    }
    end_paragraph();
    const std::size_t second = second_column(line);
    if (is_usage || line.size() <= columns || second == 0) {
      filled += std::string(line) + "\n";
    } else {
      fill_words(filled, std::string(line.substr(0, second)), line.substr(second), second, columns);
    }
  }
  end_paragraph();
  return filled;
}

std::string fold(std::string_view text, std::size_t columns) {
  std::string folded;
  for (const std::string_view line : base::split(text, '\n')) {
    fold_line(folded, line, columns);
    folded += '\n';
  }
  folded.pop_back();
  return folded;
}

}  // namespace gpumux::command_line
