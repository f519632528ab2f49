// SPDX-License-Identifier: Apache-2.0
// Kubernetes' quantities: "20Gi", "1500M", "0.5", "1e3".
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::kubernetes {

// Fractions are rounded down. kInvalid: it is no quantity, is negative, or has no place in 64 bits.
base::Result<std::uint64_t> parse_quantity(std::string_view text);

// With the largest binary suffix that is exact: "80Gi". It is the form that the API server gives back.
std::string format_quantity(std::uint64_t bytes);

}  // namespace gpumux::kubernetes
