// SPDX-License-Identifier: Apache-2.0
// The version of tests, benchmarks and fuzzers. It never changes, so they are not linked again after each commit.
#include "base/version.h"

namespace gpumux::base {

const char* version() { return "0.0.0+test"; }
const char* commit() { return "unknown"; }

}  // namespace gpumux::base
