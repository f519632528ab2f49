// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::os {

// Opens /dev/null for those of the descriptors 0 to 2 that a process was started without. A file that the process opens
// later would otherwise become one of them, and get what is written for people. Close-on-exec: a program that was to
// find a descriptor closed does. Call it first in main().
void fill_standard_descriptors();

}  // namespace gpumux::os
