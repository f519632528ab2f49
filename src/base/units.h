// SPDX-License-Identifier: Apache-2.0
// Reading and writing durations and byte counts as people do. Used by configuration, command lines and environment
// variables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace gpumux::base {

// "250us", "5ms", "1.5s", "10m", "2h"; a bare number is in `bare_unit`. Negative, empty and overflowing values are
// kInvalid.
Result<Duration> parse_duration(std::string_view text, Duration bare_unit);

// The shortest form that parse_duration reads back to within three digits: "5 ms" is written "5ms".
std::string format_duration(Duration duration);

// "512", "20G", "1.5GiB", "8000M": K, M, G, T are powers of 1024, with or without "i" and "B"; a bare number is in
// `bare_unit` bytes.
Result<std::uint64_t> parse_bytes(std::string_view text, std::uint64_t bare_unit);

// "1.5 GiB".
std::string format_bytes(std::uint64_t bytes);

// A job's time limit: "600" (seconds), "90:00" (minutes and seconds), "1:30:00" (hours, minutes, seconds), "2-12",
// "2-12:30", "2-12:30:00" (days first), or a duration with its unit ("90m"). More than zero; kInvalid says what is
// allowed.
Result<Duration> parse_time_limit(std::string_view text);

// The same as people write it: "1:30:00", "2-12:30:00", "0:45".
std::string format_time_limit(Duration limit);

// GPU memory that a program or a job asks for: "20G", "8000M". More than zero. A bare number is refused: two people may
// take it for two units.
Result<std::uint64_t> parse_memory(std::string_view text);

// Decimal digits only, all of `text`, within the limits; otherwise kInvalid.
Result<std::uint64_t> parse_integer(std::string_view text, std::uint64_t minimum, std::uint64_t maximum);

}  // namespace gpumux::base
