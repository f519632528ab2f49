// SPDX-License-Identifier: Apache-2.0
#include "cli/run_arguments.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace gpumux::cli {
namespace {

// The options of `gpumux run` that take the next word as their value.
constexpr std::array<std::string_view, 6> kOptionsWithValue{"--name",     "--gang",  "--mem",
                                                            "--priority", "--share", "--max-share"};

}  // namespace

SplitArguments split_run_arguments(const std::vector<char*>& arguments) {
  std::size_t count = arguments.size();
  if (count > 0 && arguments.back() == nullptr) --count;
  std::size_t end_of_options = 0;
  std::size_t begin_of_program = count;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view word = arguments[i];
    if (word == "--") {
      begin_of_program = i + 1;
      break;
    }
    if (word.size() < 2 || word[0] != '-') {
      begin_of_program = i;
      break;
    }
    const bool takes_value =
        std::find(kOptionsWithValue.begin(), kOptionsWithValue.end(), word) != kOptionsWithValue.end();
    if (takes_value && i + 1 < count) ++i;
    end_of_options = i + 1;
  }
  const auto at = [&](std::size_t index) { return arguments.begin() + static_cast<std::ptrdiff_t>(index); };
  SplitArguments split;
  split.options.assign(at(0), at(end_of_options));
  split.program.assign(at(begin_of_program), at(count));
  split.options.push_back(nullptr);
  split.program.push_back(nullptr);
  return split;
}

}  // namespace gpumux::cli
