// SPDX-License-Identifier: Apache-2.0
// How a program stands among those that want the same GPU, as people write it: `--priority 5 --share 2 --max-share
// 30%`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::base {

inline constexpr std::int32_t kMostPriority = 1000;  // and as much below 0
inline constexpr std::uint32_t kOneShare = 100;      // shares are counted in hundredths
inline constexpr std::uint32_t kMostShare = 100 * kOneShare;
inline constexpr std::uint32_t kWholeGpu = 1000;  // caps are counted in thousandths of all time

struct Standing {
  std::int32_t priority = 0;            // higher first
  std::uint32_t share = kOneShare;      // of the time among equals: twice as much gets twice as much
  std::uint32_t max_share = kWholeGpu;  // of all time, also of a GPU that no other seat wants
  bool operator==(const Standing&) const = default;
};

// "5", "-2". "2", "0.5": 0.01 to 100. "30%", "2.5%": 0.1% to 100%. kInvalid says what is allowed.
Result<std::int32_t> parse_priority(std::string_view text);
Result<std::uint32_t> parse_share(std::string_view text);
Result<std::uint32_t> parse_max_share(std::string_view text);
// As they are parsed.
std::string format_share(std::uint32_t share);
std::string format_max_share(std::uint32_t max_share);

}  // namespace gpumux::base
