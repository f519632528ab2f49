// SPDX-License-Identifier: Apache-2.0
// A library that calls a function of another one, for imported_function_test.cc.
#include <unistd.h>

extern "C" {

__attribute__((visibility("default"))) int gpumux_fixture_parent() { return ::getppid(); }
__attribute__((visibility("default"))) int gpumux_fixture_own() { return -1; }

}  // extern "C"
