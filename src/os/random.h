// SPDX-License-Identifier: Apache-2.0
// Names that nobody else has.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"

namespace gpumux::os {

// So many random bytes (at most 256), two hexadecimal digits each.
base::Result<std::string> random_hex(std::size_t bytes);

}  // namespace gpumux::os
