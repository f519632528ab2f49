// SPDX-License-Identifier: Apache-2.0
// Small whole files.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::daemon {

// All of a file; kExhausted if it is longer than `maximum`.
base::Result<std::string> read_file(const std::string& path, std::size_t maximum);

// Puts `text` at `path` so that a reader sees the old file or the new one, never a part, also after a crash.
base::Status replace_file(const std::string& path, std::string_view text, mode_t mode);

}  // namespace gpumux::daemon
