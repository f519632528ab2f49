// SPDX-License-Identifier: Apache-2.0
#include "cli/run/run_arguments.h"

#include <algorithm>
#include <string_view>

namespace gpumux::cli {
std::vector<std::string> options_with_value(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

SplitArguments split_run_arguments(const std::vector<char*>& arguments,
                                   const std::vector<std::string>& options_with_value) {
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
        std::find(options_with_value.begin(), options_with_value.end(), word) != options_with_value.end();
    // A value that is missing is an error; it is never the "--" that begins the program.
    if (takes_value && i + 1 < count && std::string_view(arguments[i + 1]) != "--") ++i;
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
