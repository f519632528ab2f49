// SPDX-License-Identifier: Apache-2.0
// The units in which content is hashed, copied and kept.
#pragma once

#include "base/block_size.h"

namespace gpumux::mover {

using base::kBlockBytes;
using base::kMebibyte;

}  // namespace gpumux::mover
