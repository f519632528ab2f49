// SPDX-License-Identifier: Apache-2.0
// Every message begins with it.
#pragma once

#include <cstdint>

namespace gpumux::wire {

struct Header {
  std::uint32_t type = 0;
  std::uint32_t bytes = 0;  // of the whole message; must equal the received length
};
static_assert(sizeof(Header) == 8);

}  // namespace gpumux::wire
