// SPDX-License-Identifier: Apache-2.0
// Names that no other process has.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace gpumux::os {

// `bytes` random bytes (at most 256), two hexadecimal digits each.
base::Result<std::string> random_hex(std::size_t bytes);

}  // namespace gpumux::os
