// SPDX-License-Identifier: Apache-2.0
// Times that commands take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::cli {

// "7d", "1h30m" (a duration with units: that long ago), "2026-11-18", "2026-11-18T12:30", "2026-11-18T12:30:15" (also
// with a space for the T), "today", "yesterday" (their beginnings), "now"; "12:30", "12:30:15", "12:30:15.25": when the
// clock showed that last. In local time; nanoseconds since 1970. kInvalid says what is allowed.
base::Result<std::int64_t> parse_time(std::string_view text, std::int64_t now_unix_ns);

// When something is to begin: "now+1hour", "now+90m", "now+30" (seconds: a duration), "16:00" (the next one),
// "2026-12-01T08:00", "tomorrow" (its beginning), as Slurm has them. kInvalid says what is allowed.
base::Result<std::int64_t> parse_begin(std::string_view text, std::int64_t now_unix_ns);

// "2026-11-18 12:30", local.
std::string time_text(std::int64_t unix_ns);

}  // namespace gpumux::cli
