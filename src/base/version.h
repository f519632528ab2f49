// SPDX-License-Identifier: Apache-2.0
// The version of the program or library that this code is linked into, as tools/version.sh tells it.
//
// gpumux_base declares it and does not have it: each program links its own definition (cmake/gpumux.cmake,
// gpumux_versioned). So a commit compiles one small file and links the programs again. Tests link a constant one.
#pragma once

namespace gpumux::base {

// MAJOR.MINOR.PATCH of a release; longer for other builds.
const char* version();
// All of its hexadecimal digits, or `unknown`.
const char* commit();

}  // namespace gpumux::base
