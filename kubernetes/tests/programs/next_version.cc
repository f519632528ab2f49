// SPDX-License-Identifier: Apache-2.0
// The version of a release that is newer than all others.
#include "base/version.h"

namespace gpumux::base {

const char* version() { return "999.0"; }
const char* commit() { return "unknown"; }

}  // namespace gpumux::base
