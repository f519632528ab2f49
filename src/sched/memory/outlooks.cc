// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/outlooks.h"

#include <algorithm>
#include <utility>

namespace gpumux::sched {
namespace {

// When the patience with a seat that lacks memory is over, if nothing moves until then.
std::optional<TimePoint> impatient_at(const GpuAccount& gpu, const SeatAccount& seat) {
  if (!seat.lacking_since) return std::nullopt;  // the next plan notes since when
  return latest(*seat.lacking_since, gpu.moved_at) + kHolderPatience;
}

// Until when what the seat lacks, or waits to allocate, is likely to come, if nothing moves until then. A program that
// fills its memory asks for it piece by piece: as long as one piece follows another, more comes.
std::optional<TimePoint> comes_until(const GpuAccount& gpu, const SeatAccount& seat) {
  if (seat.report.evicted == 0 && !seat.asks()) return seat.grows_until;
  std::optional<TimePoint> since = gpu.moved_at;
  if (seat.turn == TurnKind::kNext) since = std::max(since, seat.next_since);
  if (seat.is_lacking()) since = std::max(since, seat.lacking_since);
  if (seat.turn == TurnKind::kHolding && seat.asks()) since = latest(seat.wish->since, since);
  return since ? std::optional(*since + kHolderPatience) : std::nullopt;
}

void note_since(TimePoint now, std::optional<TimePoint>& since, bool is_so) {
  if (!is_so) since.reset();
  if (is_so && !since) since = now;
}

}  // namespace

Together together(const GpuAccount& gpu, InTurn order, std::span<const SeatPlan> plans) {
  Together all{.kept = gpu.kept()};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const SeatAccount& seat = *order[i];
    if (seat.counts()) all.on_gpu += seat.has();
    if (seat.turn != TurnKind::kHolding) continue;
    if (all.holder == nullptr) all.holder = &seat;
    all.held += seat.report.resident;
    all.any_short = all.any_short || (seat.counts() && plans[i].fair < plans[i].need);
  }
  return all;
}

MemoryOutlook obstacle_of(TimePoint now, const GpuAccount& gpu, const SeatAccount& seat, const Together& all) {
  if (seat.report.evicted == 0 || seat.is_out()) return MemoryOutlook::kUnknown;
  const std::uint64_t need = seat.all();
  const bool lacks_for_long = seat.lacking_since && now - *seat.lacking_since >= kHolderPatience;
  // The memory that others keep, and foreign memory, is seen late and goes up and down: it has to last.
  const bool lasts = is_obstacle(seat.outlook) || lacks_for_long;
  const auto lasting = [lasts](MemoryOutlook obstacle) { return lasts ? obstacle : MemoryOutlook::kUnknown; };
  if (need > gpu.eventual())
    return lasting(gpu.has_other_programs ? MemoryOutlook::kOtherPrograms : MemoryOutlook::kContexts);
  if (need > minus(gpu.eventual(), all.kept - gpu.kept_by(seat))) return lasting(MemoryOutlook::kOtherTenants);
  if (seat.is_lacking())
    return is_before(now, impatient_at(gpu, seat)) ? MemoryOutlook::kUnknown : MemoryOutlook::kNothingMoves;
  const bool waits = seat.outlook == MemoryOutlook::kNothingMoves && seat.turn != TurnKind::kHolding && seat.retry &&
                     now < seat.retry->at && need > minus(gpu.available(), all.on_gpu - seat.has());
  return waits ? MemoryOutlook::kNothingMoves : MemoryOutlook::kUnknown;
}

MemoryOutlook outlook_of(TimePoint now, const GpuAccount& gpu, const SeatAccount& seat, const SeatPlan& plan,
                         const Together& all) {
  const bool holds = seat.turn == TurnKind::kHolding;
  if (!seat.counts()) return MemoryOutlook::kUnknown;
  if (const MemoryOutlook obstacle = obstacle_of(now, gpu, seat, all); is_obstacle(obstacle)) return obstacle;
  if (!holds && (seat.wants_more || seat.asks()) && seat.report.evicted == 0) return MemoryOutlook::kWants;
  if (!holds && seat.turn != TurnKind::kNext) return MemoryOutlook::kUnknown;
  const bool has_its_part = plan.fair >= plan.need;
  const bool grows = &seat == all.holder && is_before(now, seat.grows_until);
  if (seat.report.evicted == 0 && !(holds && (seat.asks() || grows))) {
    // If it held, too, its memory would be kept from the holders: then theirs would not come.
    const bool stays = !holds && has_its_part && (!all.any_short || seat.report.resident == 0);
    return stays ? MemoryOutlook::kStays : MemoryOutlook::kUnknown;
  }
  const std::uint64_t held_by_others = all.held - (holds ? seat.report.resident : 0);
  const bool comes = (has_its_part || held_by_others == 0) && is_before(now, comes_until(gpu, seat));
  return comes ? MemoryOutlook::kComes : MemoryOutlook::kUnknown;
}

std::optional<TimePoint> outlook_changes_at(const GpuAccount& gpu, const SeatAccount& seat) {
  std::optional<TimePoint> next;
  if (seat.outlook == MemoryOutlook::kComes) next = comes_until(gpu, seat);
  if (!is_obstacle(seat.outlook) && seat.is_lacking()) next = earlier(next, impatient_at(gpu, seat));
  if (seat.outlook == MemoryOutlook::kNothingMoves && seat.turn != TurnKind::kHolding && seat.retry)
    next = earlier(next, seat.retry->at);
  return next;
}

std::optional<TimePoint> strands_at(const GpuAccount& gpu) {
  const bool any_left =
      std::any_of(gpu.seats.begin(), gpu.seats.end(), [](const auto& entry) { return !entry.second.is_stranded; });
  if (!gpu.all_blocked_since || !any_left) return std::nullopt;
  const TimePoint at = latest(*gpu.all_blocked_since, gpu.moved_at) + kRoomPatience;
  return gpu.stranded_at ? std::max(at, *gpu.stranded_at + kStrandedPatience) : at;
}

void note_outlooks(TimePoint now, GpuAccount& gpu, InTurn order, std::span<const SeatPlan> plans,
                   ResidencyCommands& commands) {
  const Together all = together(gpu, order, plans);
  for (std::size_t i = 0; i < order.size(); ++i) {
    SeatAccount& seat = *order[i];
    if (seat.turn == TurnKind::kHolding) seat.wants_more = false;  // it asks now, or has no use for it any more
    note_since(now, seat.next_since, seat.turn == TurnKind::kNext);
    if (seat.counts()) note_since(now, seat.lacking_since, seat.is_lacking());
    if (seat.counts() && seat.report.evicted == 0) seat.retry.reset();
    const MemoryOutlook outlook = outlook_of(now, gpu, seat, plans[i], all);
    if (outlook == seat.outlook) continue;
    if (outlook == MemoryOutlook::kNothingMoves) {
      const Duration after = seat.retry ? std::min(2 * seat.retry->after, kLongestHolderRetry) : kHolderRetry;
      seat.retry = {.after = after, .at = now + after};
    }
    seat.outlook = outlook;
    commands.expected.push_back({seat.id, outlook, seat.report.evicted});
  }
  // An outlook that is over is told first: no turn is lent on what was expected before.
  std::stable_partition(commands.expected.begin(), commands.expected.end(), [](const MemoryExpected& one) {
    return one.outlook != MemoryOutlook::kComes && one.outlook != MemoryOutlook::kStays;
  });
}

void note_stranded(TimePoint now, GpuAccount& gpu, ResidencyCommands& commands) {
  SeatAccount* newest = nullptr;  // that is not stranded yet
  bool all_blocked = !gpu.seats.empty() && !gpu.has_other_programs;
  for (auto& [id, seat] : gpu.seats) {
    all_blocked = all_blocked && seat.counts() && seat.is_blocked();
    if (!seat.is_stranded && (newest == nullptr || seat.opened_at >= newest->opened_at)) newest = &seat;
  }
  note_since(now, gpu.all_blocked_since, all_blocked);
  if (!all_blocked) gpu.stranded_at.reset();
  const std::optional<TimePoint> next = strands_at(gpu);
  const bool strands = next && now >= *next;
  for (auto& [id, seat] : gpu.seats) {
    // It stays stranded until it could have its memory, or has none any more.
    const bool is_stranded = seat.is_blocked() && (seat.is_stranded || (strands && &seat == newest));
    if (std::exchange(seat.is_stranded, is_stranded) == is_stranded) continue;
    if (is_stranded) gpu.stranded_at = now;
    commands.expected.push_back({seat.id, seat.outlook});  // the next plan tells it
  }
}

void note_evictions(TimePoint now, GpuAccount& gpu, InTurn order, std::span<const SeatPlan> plans,
                    ResidencyCommands& commands) {
  gpu.prepare_at.reset();
  std::uint64_t lacking = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i]->turn == TurnKind::kNext) lacking += minus(plans[i].need, plans[i].fair);
  }
  for (SeatAccount* const seat : order) {
    if (seat->turn != TurnKind::kHolding) {
      seat->hold.reset();
      continue;
    }
    if (!seat->hold) seat->hold = {.since = now};
    const std::uint64_t managed = std::min(lacking, seat->report.managed);
    if (managed == 0 || seat->hold->told_to_prepare || seat->ends == TimePoint::max()) continue;
    const TimePoint when =
        seat->ends - std::min(kExpectEvictionAhead, (seat->ends - seat->hold->since) / kManagedAheadPart);
    if (when > now) {
      gpu.prepare_at = std::min(when, gpu.prepare_at.value_or(when));
      continue;
    }
    seat->hold->told_to_prepare = true;
    commands.evictions.push_back({seat->id, managed});
  }
}

}  // namespace gpumux::sched
