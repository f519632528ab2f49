// SPDX-License-Identifier: Apache-2.0
// Slurm's headers, for C++: their functions are C's, and a plugin shows its own to Slurm.
#pragma once

#pragma GCC visibility push(default)
extern "C" {
#include <slurm/slurm.h>
#include <slurm/spank.h>

// SPANK_PLUGIN defines these as constants, which C++ would keep to this file.
extern const char plugin_name[];
extern const char plugin_type[];
extern const unsigned int plugin_version;
extern const unsigned int spank_plugin_version;
}
#pragma GCC visibility pop
