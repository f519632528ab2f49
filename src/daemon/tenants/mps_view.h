// SPDX-License-Identifier: Apache-2.0
// An MPS server that this daemon has started, as others see it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace gpumux::daemon {

struct MpsServerView {
  std::uint32_t number = 0;
  uid_t uid = 0;
  std::string_view state;       // a literal: "serving"
  pid_t pid = 0;                // of its control daemon; 0: not known yet
  std::vector<pid_t> programs;  // its clients
};

}  // namespace gpumux::daemon
