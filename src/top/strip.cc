// SPDX-License-Identifier: Apache-2.0
#include "top/strip.h"

#include <algorithm>
#include <map>

namespace gpumux::top {
namespace {

using base::Duration;
using base::TimePoint;
using Turn = cli::TraceHistory::Turn;

// Calls `take` with each cell of which the turn has a part, and where in the cell that part begins and ends.
template <class Take>
void for_cells(const Turn& turn, const TimeScale& scale, Take take) {
  if (turn.to <= scale.begin || scale.width == 0) return;
  const auto first = static_cast<std::size_t>(std::max(turn.from - scale.begin, Duration::zero()) / scale.cell);
  for (std::size_t i = first; i < scale.width && scale.border(i) < turn.to; ++i)
    take(i, std::max(turn.from - scale.border(i), Duration::zero()), std::min(turn.to - scale.border(i), scale.cell));
}

struct Held {
  Duration sum{};         // of all programs
  Duration by_any{};      // in which at least one held the GPU
  Duration up_to{};       // the end of the latest turn so far, from the cell's beginning
  std::uint64_t last{};   // the tenant of the turn before
  std::size_t changes{};  // turns of another tenant than the turn before
  std::map<std::uint64_t, Duration> by_tenant{};
};

}  // namespace

TimeScale::TimeScale(TimePoint now, Duration window, std::size_t columns) : width(columns) {
  cell = std::max(window / static_cast<std::int64_t>(std::max<std::size_t>(columns, 1)), Duration(1));
  const std::int64_t end = now.time_since_epoch() / cell + 1;
  begin = TimePoint(cell * (end - static_cast<std::int64_t>(columns)));
}

std::vector<StripCell> strip_of(const std::vector<Turn>& turns, const TimeScale& scale) {
  std::vector<StripCell> cells(scale.width);
  std::vector<Held> held(scale.width);
  std::map<std::uint64_t, const std::string*> names;
  for (const Turn& turn : turns) {
    names[turn.tenant] = &turn.program;
    for_cells(turn, scale, [&](std::size_t i, Duration from, Duration to) {
      Held& cell = held[i];
      cell.sum += to - from;
      cell.by_any += std::max(to - std::max(from, cell.up_to), Duration::zero());
      cell.up_to = std::max(cell.up_to, to);
      if (!cell.by_tenant.empty() && cell.last != turn.tenant) ++cell.changes;
      cell.last = turn.tenant;
      cell.by_tenant[turn.tenant] += to - from;
    });
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto longest = std::max_element(held[i].by_tenant.begin(), held[i].by_tenant.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (longest == held[i].by_tenant.end()) continue;
    StripCell& cell = cells[i];
    cell.tenant = longest->first;
    cell.program = *names[longest->first];
    // At once: for a good part of the time in which any program held it, several did.
    const bool is_together = held[i].sum > held[i].by_any + held[i].by_any / 4;
    cell.kind = is_together           ? StripCell::Kind::kTogether
                : held[i].changes > 1 ? StripCell::Kind::kSeveral
                                      : StripCell::Kind::kOne;
    if (is_together) cell.tenant = 0;
  }
  return cells;
}

std::vector<Duration> lane_of(const std::vector<Turn>& turns, std::uint64_t tenant, const TimeScale& scale) {
  std::vector<Duration> lane(scale.width);
  for (const Turn& turn : turns) {
    if (turn.tenant != tenant) continue;
    for_cells(turn, scale, [&](std::size_t i, Duration from, Duration to) { lane[i] += to - from; });
  }
  return lane;
}

std::vector<std::size_t> share_cells(const std::vector<std::uint64_t>& parts, std::uint64_t whole, std::size_t width) {
  std::vector<std::size_t> cells(parts.size());
  std::size_t used = 0;
  double sum = 0;
  for (std::size_t i = 0; i < parts.size() && whole > 0; ++i) {
    sum += static_cast<double>(parts[i]);
    const double border = sum / static_cast<double>(whole) * static_cast<double>(width) + 0.5;
    const std::size_t end = std::min(width, static_cast<std::size_t>(std::max(border, 0.0)));
    const std::size_t least = parts[i] > 0 ? 1 : 0;
    cells[i] = std::min(width - used, std::max(end - std::min(end, used), least));
    used += cells[i];
  }
  return cells;
}

}  // namespace gpumux::top
