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

// Every duration that people write, in configuration, on command lines and in environment variables:
//   with units       "250us", "1.5s", "10m", "1h30m", "2d12h", "4w"; also in words: "1hour", "90minutes"
//   as a clock       "90:00" (minutes and seconds), "1:30:00", "2-12", "2-12:30", "2-12:30:00" (days first)
//   a bare number    in `bare_unit`
// Negative, empty and overflowing values are kInvalid.
Result<Duration> parse_duration(std::string_view text, Duration bare_unit);

// As parse_duration reads it back: "5ms", "1.25s", "90s", "1h30m", "2d12h30m". Below 100 s to within three digits,
// above in whole seconds.
std::string format_duration(Duration duration);

// "512", "20G", "1.5GiB", "8000M": K, M, G, T are powers of 1024, with or without "i" and "B"; bare numbers are bytes.
Result<std::uint64_t> parse_bytes(std::string_view text);

// "1.5 GiB".
std::string format_bytes(std::uint64_t bytes);

// A job's time limit: a duration above zero; a bare number is seconds. kInvalid says what is allowed.
Result<Duration> parse_time_limit(std::string_view text);

// Of a limit, in whole seconds: a part of one counts as one.
std::string format_time_limit(Duration limit);

// GPU memory that a program or a job asks for: "20G", "8000M". More than zero. A bare number is refused: two people may
// take it for two units.
Result<std::uint64_t> parse_memory(std::string_view text);

// Decimal digits only, all of `text`, within the limits; otherwise kInvalid.
Result<std::uint64_t> parse_integer(std::string_view text, std::uint64_t minimum, std::uint64_t maximum);

}  // namespace gpumux::base
