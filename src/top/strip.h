// SPDX-License-Identifier: Apache-2.0
// One GPU's last minute, cut into cells of equal length. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/views/trace_history.h"

namespace gpumux::top {

// The cells that `width` columns show of a time. Their borders are whole multiples of their length, so that a cell
// keeps its contents while time passes; the last cell has `now` in it.
struct TimeScale {
  TimeScale(base::TimePoint now, base::Duration window, std::size_t width);

  base::TimePoint border(std::size_t index) const { return begin + cell * static_cast<std::int64_t>(index); }

  base::TimePoint begin{};
  base::Duration cell{};
  std::size_t width = 0;
};

// The use of a GPU in the time of one cell.
struct StripCell {
  enum class Kind : std::uint8_t { kNobody, kOne, kSeveral, kTogether };

  Kind kind = Kind::kNobody;  // kSeveral: one after the other; kTogether: at once, by shared leases
  std::uint64_t tenant = 0;   // that held it longest
  std::string program;        // that tenant's

  // Whether the same goes on.
  bool continues(const StripCell& before) const { return kind == before.kind && tenant == before.tenant; }
};

// REQUIRES: turns are in the order of their beginnings.
std::vector<StripCell> strip_of(const std::vector<cli::TraceHistory::Turn>& turns, const TimeScale& scale);

// How much of each cell one tenant held.
std::vector<base::Duration> lane_of(const std::vector<cli::TraceHistory::Turn>& turns, std::uint64_t tenant,
                                    const TimeScale& scale);

// Shares `width` cells among `parts` of `whole`, each to the nearest border. A part that is not 0 has one cell if there
// is one.
std::vector<std::size_t> share_cells(const std::vector<std::uint64_t>& parts, std::uint64_t whole, std::size_t width);

}  // namespace gpumux::top
