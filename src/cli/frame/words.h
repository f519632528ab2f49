// SPDX-License-Identifier: Apache-2.0
// Words for numbers and times. Pure but for the local time zone; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpumux::cli {

// "1 GPU", "2 GPUs"; with `many`, "2 switches".
std::string plural(std::uint64_t count, std::string_view one, std::string_view many = "");

// A moment (nanoseconds since 1970) in local time; `format` is strftime's.
std::string local_time_text(std::int64_t unix_ns, const char* format);
inline constexpr char kTimeOfDay[] = "%H:%M:%S";

}  // namespace gpumux::cli
