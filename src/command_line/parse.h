// SPDX-License-Identifier: Apache-2.0
// Reads a command line with CLI11. Errors are in our words: no text of the library reaches a user.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::command_line {

// The command is over before it began: help or a version was asked for, or the usage was wrong.
struct EarlyEnd {
  bool is_error = false;
  std::string text;  // whole lines
};

// Fills what `app` has bound. `words`: without the program's name. `usage`: the line of --help that shows the order of
// words, instead of the one that CLI11 makes of the options.
std::optional<EarlyEnd> parse(CLI::App& app, const std::vector<std::string>& words, std::string_view usage = "");

// "NAME: text", folded; one line or more.
std::string error_text(std::string_view name, std::string_view text);

}  // namespace gpumux::command_line
