// SPDX-License-Identifier: Apache-2.0
// For tests: a libgpumux.so that does nothing but be there.
int gpumux_fake_library(void);
int gpumux_fake_library(void) { return 1; }
