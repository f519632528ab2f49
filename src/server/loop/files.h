// SPDX-License-Identifier: Apache-2.0
// Small whole files.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::server {

// All of a file; kExhausted if it is longer than `maximum`, kInvalid if it is a pipe. Never waits.
base::Result<std::string> read_file(const std::string& path, std::size_t maximum);

// A written file outlives the daemon that is killed, or the machine that crashes, too.
enum class Outlives { kDaemon, kMachine };

// Puts `text` at `path` so that a reader sees the old file or the new one, never a part. kMachine waits for the disk.
base::Status replace_file(const std::string& path, std::string_view text, mode_t mode, Outlives outlives);

}  // namespace gpumux::server
