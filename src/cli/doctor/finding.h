// SPDX-License-Identifier: Apache-2.0
// One finding of `gpumux doctor`.
#pragma once

#include <string>
#include <vector>

namespace gpumux::cli {

enum class Level {
  kOk,
  kWarning,  // works, but not as a user may expect
  kProblem,  // does not work until something is done
};

struct Finding {
  std::string check;  // "driver", "library", ...: stable names, for scripts
  Level level = Level::kOk;
  std::string title;      // the observation
  std::string meaning{};  // its consequence; empty where the title says it all
  std::string advice{};   // the remedy; never empty for a problem
};

using Findings = std::vector<Finding>;

}  // namespace gpumux::cli
