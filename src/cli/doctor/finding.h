// SPDX-License-Identifier: Apache-2.0
// What `gpumux doctor` says about one thing.
#pragma once

#include <string>
#include <vector>

namespace gpumux::cli {

enum class Level {
  kOk,
  kWarning,  // works, but not as somebody may expect
  kProblem,  // does not work until something is done
};

struct Finding {
  std::string check;  // "driver", "library", ...: stable names, for scripts
  Level level = Level::kOk;
  std::string title;      // what was seen
  std::string meaning{};  // what follows from it; empty where the title says it all
  std::string advice{};   // what to do; never empty for a problem
};

using Findings = std::vector<Finding>;

}  // namespace gpumux::cli
