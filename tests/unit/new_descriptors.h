// SPDX-License-Identifier: Apache-2.0
// The numbers of descriptors that code under test has opened.
#pragma once

#include <fcntl.h>

#include <functional>
#include <vector>

namespace gpumux {

// Numbers below 4096 that are open after `call` and were not before, in order.
inline std::vector<int> new_descriptors(const std::function<void()>& call) {
  constexpr int kNumbers = 4096;
  std::vector<bool> before;
  for (int number = 0; number < kNumbers; ++number) before.push_back(::fcntl(number, F_GETFD) >= 0);
  call();
  std::vector<int> opened;
  for (int number = 0; number < kNumbers; ++number) {
    if (!before[static_cast<std::size_t>(number)] && ::fcntl(number, F_GETFD) >= 0) opened.push_back(number);
  }
  return opened;
}

}  // namespace gpumux
