// SPDX-License-Identifier: Apache-2.0
// Errors as they were before they were broken into lines (src/command_line/fold.h).
#pragma once

#include <string>

namespace gpumux {

inline std::string unfolded(std::string text) {
  for (std::size_t at = text.find("\n  "); at != std::string::npos; at = text.find("\n  ", at))
    text.replace(at, 3, " ");
  return text;
}

}  // namespace gpumux
