// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <iostream>

#include "base/utf8.h"

namespace gpumux::cli {
namespace {

using base::is_control;

std::string make_printable(std::string_view text, bool keep_newlines) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const base::Utf8Character character = base::decode_utf8(text);
    if (character.valid && character.point == '\n' && keep_newlines) {
      result += '\n';
    } else if (character.valid && (character.point == '\n' || character.point == '\t')) {
      result += ' ';
    } else if (!character.valid || is_control(character.point)) {
      result += '?';
    } else {
      result += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  return result;
}

std::size_t width_of(const base::Utf8Character& character) {
  if (!character.valid || character.point < 0x80) return 1;
  // main sets a UTF-8 LC_CTYPE where the system has one; without it wcwidth knows nothing beyond ASCII and says -1.
  const int width = ::wcwidth(static_cast<wchar_t>(character.point));
  return width < 0 ? 1 : static_cast<std::size_t>(width);
}

// How many bytes of `text` take at most `columns`.
std::size_t bytes_within(std::string_view text, std::size_t columns) {
  std::string_view rest = text;
  for (std::size_t width = 0; !rest.empty();) {
    const base::Utf8Character character = base::decode_utf8(rest);
    width += width_of(character);
    if (width > columns) break;
    rest.remove_prefix(character.bytes);
  }
  return text.size() - rest.size();
}

}  // namespace

Output describe_output(bool is_terminal, unsigned terminal_columns, unsigned terminal_rows, const char* no_color,
                       const char* term, const char* columns_variable) {
  Output output;
  if (!is_terminal) return output;
  output.terminal = true;
  output.columns = terminal_columns;
  output.rows = terminal_rows == 0 ? 24 : terminal_rows;
  if (output.columns == 0 && columns_variable != nullptr) output.columns = std::strtoul(columns_variable, nullptr, 10);
  if (output.columns == 0 || output.columns > 10000) output.columns = 80;
  const bool wanted = no_color == nullptr || no_color[0] == '\0';
  const bool able = term != nullptr && term[0] != '\0' && std::string_view(term) != "dumb";
  output.moves = able;
  output.colours = wanted && able;
  return output;
}

Output look_at_stdout() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) size = winsize{};
  return describe_output(::isatty(STDOUT_FILENO) == 1, size.ws_col, size.ws_row, std::getenv("NO_COLOR"),
                         std::getenv("TERM"), std::getenv("COLUMNS"));
}

std::string paint(const Output& output, Colour colour, std::string_view text) {
  if (!output.colours || colour == Colour::kNone) return std::string(text);
  static constexpr std::array<std::string_view, 7> kCodes{"0", "1", "2", "31", "32", "33", "36"};  // as Colour has them
  const std::string code(kCodes[static_cast<std::size_t>(colour)]);
  return "\x1b[" + code + "m" + std::string(text) + "\x1b[0m";
}

std::string printable(std::string_view text) { return make_printable(text, false); }
std::string printable_lines(std::string_view text) { return make_printable(text, true); }

std::string json_for(const Output& output, std::string_view json) {
  std::string result(output.terminal ? std::string_view() : json);
  std::string_view rest = output.terminal ? json : std::string_view();
  while (!rest.empty()) {
    const base::Utf8Character character = base::decode_utf8(rest);
    const bool is_layout = character.valid && (character.point == '\n' || character.point == '\t');
    if (!character.valid) {
      result += "\\ufffd";
    } else if (is_control(character.point) && !is_layout) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", character.point);
      result += escaped;
    } else {
      result += rest.substr(0, character.bytes);
    }
    rest.remove_prefix(character.bytes);
  }
  if (!result.ends_with('\n')) result += '\n';
  return result;
}

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::cout << line << "\n";
  std::cout << std::flush;
}

void print_json(std::string_view json) { std::cout << json_for(look_at_stdout(), json) << std::flush; }

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const base::Utf8Character character = base::decode_utf8(text);
    width += width_of(character);
    text.remove_prefix(character.bytes);
  }
  return width;
}

Character first_character(std::string_view text) {
  const base::Utf8Character character = base::decode_utf8(text);
  return {text.substr(0, character.bytes), width_of(character)};
}

std::string pad(std::string_view text, std::size_t columns) {
  return std::string(text) + std::string(columns - std::min(columns, display_width(text)), ' ');
}

std::string fit(std::string_view text, std::size_t columns) {
  if (display_width(text) <= columns) return std::string(text);
  if (columns == 0) return {};
  return std::string(text.substr(0, bytes_within(text, columns - 1))) + "~";
}

std::vector<std::string> wrap(std::string_view text, std::size_t columns, std::size_t indent) {
  std::vector<std::string> lines;
  if (columns == 0 || display_width(text) <= columns) return {std::string(text)};
  indent = std::min(indent, columns - 1);
  for (std::string begin; !text.empty(); begin = std::string(indent, ' ')) {
    const std::size_t room = columns - begin.size();
    std::size_t end = bytes_within(text, room);
    // A character of two columns does not fit in one.
    if (end == 0) end = base::decode_utf8(text).bytes;
    if (end < text.size()) {
      const std::size_t space = text.rfind(' ', end);
      const bool has_word = space != std::string_view::npos && text.find_first_not_of(' ') < space;
      if (has_word) end = space;
    }
    lines.push_back(begin + std::string(text.substr(0, end)));
    text.remove_prefix(std::min(text.find_first_not_of(' ', end), text.size()));
  }
  return lines;
}

}  // namespace gpumux::cli
