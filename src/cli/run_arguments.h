// SPDX-License-Identifier: Apache-2.0
// Where gpumux's own options end and the program begins.
#pragma once

#include <vector>

namespace gpumux::cli {

// Both lists end with a null pointer that is counted in their sizes, and point into what was split: the program's
// arguments are passed on byte for byte.
struct SplitArguments {
  std::vector<char*> options;
  std::vector<char*> program;
};

// The program begins after "--", or at the first word that is neither an option nor an option's value.
SplitArguments split_run_arguments(const std::vector<char*>& arguments);

}  // namespace gpumux::cli
