// SPDX-License-Identifier: Apache-2.0
// Where gpumux's own options end and the program begins.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace gpumux::cli {

// Both lists end with a null pointer that is counted in their sizes, and point into the given arguments. The program's
// arguments are passed on byte for byte.
struct SplitArguments {
  std::vector<char*> options;
  std::vector<char*> program;
};

// The program begins after "--", or at the first word that is neither an option nor an option's value.
// `options_with_value`: those that take the next word.
SplitArguments split_run_arguments(const std::vector<char*>& arguments,
                                   const std::vector<std::string>& options_with_value);

// The names of all options of `app` that take a value.
std::vector<std::string> options_with_value(const CLI::App& app);

}  // namespace gpumux::cli
