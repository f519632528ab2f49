// SPDX-License-Identifier: Apache-2.0
#include "view/top/strip.h"

#include <algorithm>
#include <map>

namespace gpumux::view {
namespace {

using base::Duration;
using base::TimePoint;
using Turn = cli::TraceHistory::Turn;

// Calls `take` with each cell of which the turn has a part, and that part.
template <class Take>
void for_cells(const Turn& turn, const TimeScale& scale, Take take) {
  if (turn.to <= scale.begin || scale.width == 0) return;
  const auto first = static_cast<std::size_t>(std::max(turn.from - scale.begin, Duration::zero()) / scale.cell);
  for (std::size_t i = first; i < scale.width && scale.border(i) < turn.to; ++i)
    take(i, std::min(turn.to, scale.border(i + 1)) - std::max(turn.from, scale.border(i)));
}

struct Held {
  Duration sum{};
  std::map<std::uint64_t, Duration> by_tenant{};
};

}  // namespace

TimeScale::TimeScale(TimePoint now, Duration window, std::size_t columns) : width(columns) {
  cell = std::max(window / static_cast<std::int64_t>(std::max<std::size_t>(columns, 1)), Duration(1));
  const std::int64_t end = now.time_since_epoch() / cell + 1;
  begin = TimePoint(cell * (end - static_cast<std::int64_t>(columns)));
}

std::vector<StripCell> strip_of(const std::vector<Turn>& turns, const std::vector<TimePoint>& switches,
                                const TimeScale& scale) {
  std::vector<StripCell> cells(scale.width);
  std::vector<Held> held(scale.width);
  std::map<std::uint64_t, const std::string*> names;
  for (const Turn& turn : turns) {
    names[turn.tenant] = &turn.program;
    for_cells(turn, scale, [&](std::size_t i, Duration part) {
      held[i].sum += part;
      held[i].by_tenant[turn.tenant] += part;
    });
  }
  for (const TimePoint time : switches) {
    if (time < scale.begin) continue;
    const auto i = static_cast<std::size_t>((time - scale.begin) / scale.cell);
    if (i < cells.size()) ++cells[i].switches;
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto longest = std::max_element(held[i].by_tenant.begin(), held[i].by_tenant.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    if (longest == held[i].by_tenant.end()) continue;
    StripCell& cell = cells[i];
    cell.tenant = longest->first;
    cell.program = *names[longest->first];
    // At once: programs together held it for clearly longer than the cell is, or than any of them was there.
    const bool is_together = held[i].sum > longest->second + longest->second / 4 && held[i].sum > scale.cell;
    cell.kind = is_together         ? StripCell::Kind::kTogether
                : cell.switches > 1 ? StripCell::Kind::kSeveral
                                    : StripCell::Kind::kOne;
    if (is_together) cell.tenant = 0;
  }
  return cells;
}

std::vector<Duration> lane_of(const std::vector<Turn>& turns, std::uint64_t tenant, const TimeScale& scale) {
  std::vector<Duration> lane(scale.width);
  for (const Turn& turn : turns) {
    if (turn.tenant == tenant) for_cells(turn, scale, [&](std::size_t i, Duration part) { lane[i] += part; });
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

}  // namespace gpumux::view
