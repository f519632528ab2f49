// SPDX-License-Identifier: Apache-2.0
#include "gate/work_times.h"

#include <algorithm>

namespace gpumux::gate {
namespace {

// All four are guesses.

// If a group took this many times more or less than expected, it was disturbed, or a member is another one now. It
// counts as no more than that.
constexpr double kMostChange = 16;
// An unknown member gets at least this part of an equal share of the time, even if the known ones leave less.
constexpr double kLeastPart = 0.25;
// A time moves by this part of the difference towards what was measured last. The time of a kind in any context is a
// mean.
constexpr double kFollows = 0.5;
constexpr double kMeanFollows = 0.125;

}  // namespace

std::size_t WorkTimes::place_of(WorkKind kind) {
  constexpr std::uint64_t kSpread = 0x9E37'79B9'7F4A'7C15;  // 2^64 by the golden ratio (Knuth, vol. 3, 6.4)
  static_assert((kEntries & (kEntries - 1)) == 0);
  return static_cast<std::size_t>((kind * kSpread) >> 32) & (kEntries - 1);
}

double WorkTimes::look_up(WorkKind kind) const {
  if (entries_.empty()) return 0;
  const Entry& entry = entries_[place_of(kind)];
  return entry.kind == kind ? entry.ns : 0;
}

double WorkTimes::of(const Work& work) const {
  const double here = look_up(work.in_context);
  return here != 0 ? here : look_up(work.kind);
}

double WorkTimes::known_ns(std::span<const Work> group) const {
  double ns = 0;
  for (const Work& work : group) ns += of(work);
  return ns;
}

// False: there is none.
bool WorkTimes::learn_unknown(std::span<const Work> group, double elapsed_ns, double most_ns) {
  const auto unknown = std::count_if(group.begin(), group.end(), [&](const Work& work) { return of(work) == 0; });
  if (unknown == 0) return false;
  if (entries_.empty()) entries_.resize(kEntries);
  const double least = kLeastPart * elapsed_ns / static_cast<double>(group.size());
  const double left = (elapsed_ns - known_ns(group)) / static_cast<double>(unknown);
  for (const Work& work : group) {
    if (of(work) != 0) continue;
    const double ns = std::min(std::max(left, least), most_ns);
    store(work.kind, ns);
    store(work.in_context, ns);
  }
  return true;
}

void WorkTimes::change(std::span<const Work> group, double ratio) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    const Work& work = group[i];
    const auto is_same = [&](const Work& other) { return other.in_context == work.in_context; };
    if (std::any_of(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(i), is_same)) continue;
    const double here = look_up(work.in_context);
    const double mean = look_up(work.kind);
    // Seen for the first time after what came before it: that is all that is known of it there.
    const double now = here == 0 ? mean * ratio : here * (1 + (ratio - 1) * kFollows);
    store(work.in_context, now);
    store(work.kind, mean == 0 ? now : mean + (now - mean) * kMeanFollows);
  }
}

void WorkTimes::learn(std::span<const Work> group, double elapsed_ns) {
  elapsed_ns = std::max(elapsed_ns, 1.0);
  if (group.empty() || learn_unknown(group, elapsed_ns, elapsed_ns)) return;
  change(group, std::clamp(elapsed_ns / known_ns(group), 1 / kMostChange, kMostChange));
}

void WorkTimes::learn_at_most(std::span<const Work> group, double elapsed_ns, double most_ns) {
  elapsed_ns = std::max(elapsed_ns, 1.0);
  if (group.empty() || learn_unknown(group, elapsed_ns, most_ns)) return;
  const double known = known_ns(group);
  if (elapsed_ns < known) change(group, std::max(elapsed_ns / known, 1 / kMostChange));
}

}  // namespace gpumux::gate
