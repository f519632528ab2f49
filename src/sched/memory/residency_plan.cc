// SPDX-License-Identifier: Apache-2.0
// How much memory each seat should have, and how to get there.
//
// A plan is made from scratch each time, in three steps.
//
// Aim. Each seat has a floor below which it cannot go. If it holds a lease or cannot give anything up, that is all that
// it has; otherwise its unpageable memory. The room above all floors is given away in the order of the turns, nearest
// first. Each seat gets what it needs, as far as there is room. A holder and the next seat need all that they have,
// evicted or not, and what they wait to allocate. The others need what they have on the GPU. A member of a gang that is
// being revoked is as good as a holder until all have drained. It may have to be let through, and without its memory
// the gang would not drain. So the seats that lose something are the ones whose turn is furthest away. They lose what
// is lacking and no more, and no seat gets anything back before it is next.
//
// A suspended seat that has drained needs nothing. It is told only what it has to give up: its process may be frozen.
//
// Share. Room that no seat needs is dealt out ahead, so that allocating seldom has to ask. A seat with less to spare
// than half an even share gets a share. A seat with more keeps it, until all of it together is more than there is.
// Without that stickiness, each change of hands would cost messages between programs whose memory fits together.
//
// Go there. A lower bound is sent at once, to any seat. A seat that holds a lease keeps what it has, and a draining one
// evicts as soon as it has drained. The planner need not know in which of these states a seat is. A higher bound is
// sent as far as what all seats *count* for leaves room. It goes out in the order of the turns, and to seats that need
// it before seats to which it is spare. When a report makes a seat count for less, the next plan raises another seat.
// So a switch moves both ways at once.
//
// Commitments are shared out in the same way (residency_commitments.cc).
#include <algorithm>
#include <limits>
#include <utility>

#include "sched/memory/residency.h"

namespace gpumux::sched {
namespace {

// Room that is dealt out ahead comes in whole blocks of the driver's.
constexpr std::uint64_t kGrain = std::uint64_t{2} << 20;
// A bound is raised by less than this only if it is then where it belongs. The pager moves chunks of 64 MiB and more,
// so smaller raises would be messages of no use.
constexpr std::uint64_t kLeastRaise = std::uint64_t{32} << 20;
// This part of the spare memory is dealt out. The rest keeps small changes from taking something back from every seat.
constexpr std::uint64_t kDealtNumerator = 7;
constexpr std::uint64_t kDealtDenominator = 8;

}  // namespace

bool Residency::answers(const Seat& seat) const {
  return seat.bounds.size() < 2 || now_ - seat.bounds[1].told_at < kAnswerPatience;
}

std::uint64_t Residency::charge(const Seat& seat) const {
  std::uint64_t most = seat.has();
  if (!answers(seat)) return std::max(most, seat.told_room());
  for (const Bound& bound : seat.bounds) most = std::max(most, bound.room);
  return most;
}

std::uint64_t Residency::eventual(const Gpu& gpu) { return minus(gpu.capacity, gpu.reserve + gpu.foreign.bytes); }

std::uint64_t Residency::available(const Gpu& gpu) { return minus(eventual(gpu), gpu.returning); }

std::uint64_t Residency::charged(const Gpu& gpu) const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : gpu.seats) sum += counts(seat) ? charge(seat) : 0;
  return sum;
}

// The memory that cannot be taken from the seat for another one.
std::uint64_t Residency::kept_by(const Gpu& gpu, const Seat& seat) {
  if (gpu.free_only && !seat.suspended) return seat.all();
  // Memory of a stuck seat is not kept: mostly it waits for host memory, which comes. If it does not come, nothing
  // moves, and every wait for it has a limit.
  return seat.report.unpageable;
}
std::uint64_t Residency::kept(const Gpu& gpu) const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : gpu.seats) sum += counts(seat) ? kept_by(gpu, seat) : 0;
  return sum;
}

// The most that the seat can ever have of `on_gpu` while the others keep what they cannot give up.
std::uint64_t Residency::most_room(std::uint64_t on_gpu, const Gpu& gpu, const Seat& seat,
                                   std::uint64_t kept_by_all) const {
  const std::uint64_t own = counts(seat) ? kept_by(gpu, seat) : 0;
  const std::uint64_t most = minus(on_gpu, kept_by_all - own);
  // A quota bounds what is allocated. Memory beyond it that the seat had before the quota was known has its place, too.
  return seat.quota.group != 0 ? std::min(most, std::max(seat.quota.bytes, seat.all())) : most;
}

std::uint64_t Residency::left_of_quota(const Gpu& gpu, const Seat& seat) {
  if (seat.quota.group == 0) return std::numeric_limits<std::uint64_t>::max();
  std::uint64_t others = 0;
  for (const auto& [id, other] : gpu.seats) {
    if (&other != &seat && other.quota.group == seat.quota.group) others += other.report.allocated;
  }
  return minus(seat.quota.bytes, others);
}

std::uint64_t Residency::most_commitment(std::uint64_t on_gpu, const Gpu& gpu, const Seat& seat,
                                         std::uint64_t kept_by_all) const {
  return std::min(most_room(on_gpu, gpu, seat, kept_by_all) + seat.managed(), left_of_quota(gpu, seat));
}

// Why the seat can no longer be given what it waits for. Memory that dead tenants have left comes back.
Refusal Residency::refusal_of(const Gpu& gpu, const Seat& seat, std::uint64_t foreign) const {
  const std::uint64_t on_gpu = minus(gpu.capacity, gpu.reserve + foreign);
  const std::uint64_t kept_by_all = kept(gpu);
  const std::uint64_t wanted = seat.wish->commitment;
  const Refusal too_much = wanted > left_of_quota(gpu, seat) ? Refusal::kQuota : Refusal::kGpuMemory;
  if (seat.wish->room > std::max(most_room(on_gpu, gpu, seat, kept_by_all), seat.told_room())) return too_much;
  if (wanted <= seat.told_commitment()) return Refusal::kNone;
  if (wanted > most_commitment(on_gpu, gpu, seat, kept_by_all)) return too_much;
  std::uint64_t others = 0;
  for (const auto& [id, other] : gpu.seats) {
    if (&other != &seat && counts(other)) others += other.allocated();
  }
  const For whom = begins_with(seat, wanted, Needs::kAllocated);
  const bool fits = wanted <= minus(commitment_capacity(gpu, on_gpu, Needs::kAllocated, whom), others);
  return fits ? Refusal::kNone : Refusal::kHostMemory;
}

bool Residency::may_have_left(const Gpu& gpu, const Seat& seat) const {
  const TimePoint since = looked_for_since(seat);
  const bool was_seen = gpu.foreign.seen_at && *gpu.foreign.seen_at > since;
  return !was_seen && now_ - since < kForeignPatience && is_possible(gpu, seat, 0);
}

bool Residency::may_not_come(const Gpu& gpu, const Seat& seat) const {
  const auto& unseen = gpu.foreign.unseen;
  return unseen && now_ < unseen->until && is_possible(gpu, seat, minus(gpu.foreign.bytes, unseen->bytes));
}

// Its seats, nearest turn first.
std::vector<Residency::Seat*> Residency::in_order(Gpu& gpu, std::span<const Turn> turns) const {
  std::vector<Seat*> order;
  order.reserve(gpu.seats.size());
  for (auto& [id, seat] : gpu.seats) seat.need = std::numeric_limits<std::uint64_t>::max();  // not in the order yet
  for (const Turn& turn : turns) {
    const auto found = gpu.seats.find(turn.seat);
    if (found == gpu.seats.end() || found->second.need == 0) continue;
    Seat& seat = found->second;
    seat.need = 0;
    seat.turn = turn.kind;
    seat.ends = turn.ends;
    order.push_back(&seat);
  }
  for (auto& [id, seat] : gpu.seats) {
    if (seat.need == 0) continue;
    seat.need = 0;
    seat.turn = TurnKind::kIdle;
    order.push_back(&seat);
  }
  return order;
}

// Sets `need` and `fair`. Returns what is left when every seat has that.
std::uint64_t Residency::aim(const Gpu& gpu, const std::vector<Seat*>& order) const {
  const std::uint64_t kept_by_all = kept(gpu);
  const auto floor_of = [&](const Seat& seat) {
    if (seat.turn == TurnKind::kHolding) {
      // It takes what it was given in a moment, and does not report that before.
      return std::max(seat.has(), std::min(taken(seat.given_room), most_room(eventual(gpu), gpu, seat, kept_by_all)));
    }
    return seat.turn == TurnKind::kHeldBack || seat.report.stuck ? seat.has() : seat.report.unpageable;
  };
  std::uint64_t floors = 0;
  for (Seat* seat : order) {
    seat->need = seat->fair = 0;
    // Without the lease it takes nothing, and asks again when it holds one.
    if (seat->turn != TurnKind::kHolding) {
      seat->given_room.reset();
      seat->grows_until.reset();
    }
    if (!counts(*seat)) continue;
    seat->need = seat->is_out() ? floor_of(*seat) : seat->has();
    if (seat->turn <= TurnKind::kNext) {
      seat->need = seat->all() + seat->report.managed;
      if (seat->wish) seat->need = std::max(seat->need, seat->wish->room);
      seat->need = std::max(seat->need, taken(seat->given_room));
      seat->need = std::max(seat->has(), std::min(seat->need, most_room(eventual(gpu), gpu, *seat, kept_by_all)));
    }
    floors += floor_of(*seat);
  }
  std::uint64_t left = minus(available(gpu), floors);
  for (Seat* seat : order) {
    if (!counts(*seat)) continue;
    const std::uint64_t floor = floor_of(*seat);
    const std::uint64_t more = std::min(minus(seat->need, floor), left);
    seat->fair = floor + more;
    left -= more;
    // If it is stuck, it goes on trying, and the plan does not count on that.
    if (seat->is_out()) seat->fair = seat->report.unpageable;
  }
  return left;
}

// Sets each target to its base and a spare part, out of `left`.
void Residency::deal(std::vector<Share>& shares, std::uint64_t left) {
  if (shares.empty()) return;
  const std::uint64_t dealt = shares.size() == 1 ? left : left / kDealtDenominator * kDealtNumerator;
  const std::uint64_t even = dealt / shares.size() / kGrain * kGrain;
  std::uint64_t sum = 0;
  for (Share& share : shares) {
    const std::uint64_t spare = minus(share.told, share.base);
    // Alone it gets all; otherwise it is worth a message only if it has much less than it could have.
    const std::uint64_t enough = shares.size() == 1 ? even - even / 16 : even / 2;
    const std::uint64_t target = spare < enough ? even : spare;
    share.target = std::max(share.base, std::min(share.base + target, share.most));
    sum += share.target - share.base;
  }
  if (sum <= left) return;
  for (Share& share : shares) {
    share.target = std::max(share.base, std::min({share.base + even, share.target}));
  }
}

std::vector<Residency::Share> Residency::plan_rooms(Gpu& gpu, const std::vector<Seat*>& order) const {
  const std::uint64_t left = aim(gpu, order);
  std::vector<Share> shares;
  std::vector<Share> out;
  for (Seat* seat : order) {
    if (!counts(*seat)) continue;
    // A seat that does not answer gets nothing to spare.
    const std::uint64_t most = answers(*seat) ? std::numeric_limits<std::uint64_t>::max() : seat->fair;
    const std::uint64_t told = seat->told_room();
    if (seat->is_out()) {
      out.push_back({seat, seat->fair, std::min(told, seat->fair), told, told});
    } else {
      shares.push_back({seat, seat->fair, told, most, 0});
    }
  }
  deal(shares, left);

  // No raise takes the sum of all counts above what is available. If a seat has reported more than there is, nothing is
  // raised, not even to what it reports.
  const std::uint64_t counted_in_all = charged(gpu);
  const bool is_over = counted_in_all > available(gpu);
  std::uint64_t free = minus(available(gpu), counted_in_all);
  const auto raise = [this, &free, is_over](Share& share, std::uint64_t goal) {
    if (goal <= share.told || is_over) return;
    const std::uint64_t counted = std::max(charge(*share.seat), share.told);
    const std::uint64_t room = std::min(goal, counted + free);
    if (room <= share.told || (room != goal && room - share.told < kLeastRaise)) return;
    free -= minus(room, counted);
    share.told = room;
  };
  bool all_fair = true;
  for (Share& share : shares) {
    // A seat that has come back after a restart counts for what it has, even if other seats have been told too much
    // since. It must not evict anything before they have confirmed less.
    if (share.seat->bounds.empty()) share.told = std::min(share.base, share.seat->has());
    if (share.target < share.told) share.told = share.target;
    raise(share, share.base);
    all_fair = all_fair && share.told >= share.base;
  }
  // A seat that lacks its fair part may need the spare room in a moment.
  for (Share& share : shares) {
    if (all_fair) raise(share, share.target);
  }
  shares.insert(shares.end(), out.begin(), out.end());
  return shares;
}

void Residency::tell(Gpu& gpu, Seat& seat, std::uint64_t room, std::uint64_t commitment, ResidencyCommands& commands) {
  const bool is_full = seat.bounds.size() > kMaxBoundsUnderWay;
  if (is_full) {  // the bound that it was told last is what it has
    room = seat.told_room();
    commitment = seat.told_commitment();
  }
  bool answer = false;
  Refusal refusal = Refusal::kNone;
  if (seat.asks()) {
    const Wish& wish = *seat.wish;
    const bool has_commitment = commitment >= wish.commitment;
    const bool has_all = has_commitment && room >= wish.room;
    const bool is_hopeless =
        !awaits_tenants() && !is_possible(gpu, seat) && !may_have_left(gpu, seat) && !may_not_come(gpu, seat);
    const bool refused = !has_all && (is_hopeless || now_ >= refused_at(gpu, seat));
    if (refused) refusal = is_hopeless ? refusal_of(gpu, seat, gpu.foreign.bytes) : Refusal::kNothingMoves;
    // Without a lease its turn may never come: it asks again when it holds one.
    const bool holds = seat.turn == TurnKind::kHolding;
    if (has_all && holds) {
      seat.given_room = also_given(seat.given_room, wish.room);
      if (wish.room > seat.most_had) seat.grows_until = seat.given_room->until;
      seat.most_had = std::max(seat.most_had, wish.room);  // asking for it again is no growth
    }
    if (has_commitment && !refused) seat.given_commitment = also_given(seat.given_commitment, wish.commitment);
    answer = has_all || refused || (has_commitment && !holds);
    if (answer && !has_all && !refused) seat.wants_more = true;
  }
  // The most that it could have changes with each allocation of others. A message is worth it if it changes by much,
  // and if its process is not meant to be frozen.
  const std::uint64_t most = std::max(seat.most, commitment);
  const bool is_most_far_off =
      !seat.is_out() && std::max(most, seat.told_most()) - std::min(most, seat.told_most()) >= kLeastRaise;
  const bool changes =
      seat.bounds.empty() || room != seat.told_room() || commitment != seat.told_commitment() || is_most_far_off;
  if (room >= seat.told_room() + kLeastRaise && seat.lacking_since)
    seat.lacking_since = now_;  // something comes, and more than crumbs
  const bool tells_stranded = seat.is_stranded != seat.told_stranded();
  if (!answer && !tells_stranded && (!changes || is_full)) return;
  const std::uint32_t last = seat.bounds.empty() ? 0 : seat.bounds.back().sequence;
  const std::uint32_t sequence = last + 1 == 0 ? 1 : last + 1;
  if (!seat.bounds.empty() && room == seat.told_room() && commitment == seat.told_commitment()) {
    seat.bounds.back().sequence = sequence;
  } else {
    seat.bounds.push_back({.sequence = sequence, .room = room, .commitment = commitment, .told_at = now_});
  }
  seat.bounds.back().most = most;
  seat.bounds.back().is_stranded = seat.is_stranded;
  if (answer) {
    seat.answered = seat.wish->ticket;
    seat.wish.reset();
  }
  const bool is_limited = seat.quota.group != 0;
  commands.bounds.push_back({.seat = seat.id,
                             .sequence = sequence,
                             .room = room,
                             .commitment = commitment,
                             .total = is_limited ? std::min(seat.quota.bytes, gpu.capacity) : gpu.capacity,
                             .most = most,
                             .is_limited = is_limited,
                             .is_stranded = seat.is_stranded,
                             .ticket = seat.answered,
                             .refusal = refusal});
}

// When its wish for room is refused, if nothing moves until then.
TimePoint Residency::refused_at(const Gpu& gpu, const Seat& seat) const {
  const TimePoint since = looked_for_since(seat);
  return std::min(latest(since, gpu.moved_at) + kRoomPatience, since + kLongestRoomWait);
}

// A holder whose work cannot run. Memory is still on its way out, the driver refuses the holder's own, or the holder is
// stopped and does not fetch it.
bool Residency::is_lacking(const Seat& seat) { return seat.turn == TurnKind::kHolding && seat.report.evicted > 0; }

// When its patience is over, if nothing moves until then.
std::optional<TimePoint> Residency::impatient_at(const Gpu& gpu, const Seat& seat) {
  if (!seat.lacking_since) return std::nullopt;  // the next plan notes since when
  return latest(*seat.lacking_since, gpu.moved_at) + kHolderPatience;
}

// When the next seat is stranded if nothing moves until then.
std::optional<TimePoint> Residency::strands_at(const Gpu& gpu) {
  const bool any_left =
      std::any_of(gpu.seats.begin(), gpu.seats.end(), [](const auto& entry) { return !entry.second.is_stranded; });
  if (!gpu.all_blocked_since || !any_left) return std::nullopt;
  const TimePoint at = latest(*gpu.all_blocked_since, gpu.moved_at) + kRoomPatience;
  return gpu.stranded_at ? std::max(at, *gpu.stranded_at + kStrandedPatience) : at;
}

// Seats that block each other would wait for ever. They do block each other if no seat is left whose work can run and
// end, and nothing in their way has moved for kRoomPatience. (By then looks have shown what programs that have ended
// gave back.) Then the newest seat is stranded: its program gets CUDA_ERROR_OUT_OF_MEMORY for its work. When the
// program ends, or destroys its contexts, the others go on. If it does neither within kStrandedPatience, the next
// newest seat is stranded, too. Programs outside gpumux may end at any time: they are waited for.
void Residency::find_stranded(Gpu& gpu, ResidencyCommands& commands) const {
  Seat* newest = nullptr;  // that is not stranded yet
  bool all_blocked = !gpu.seats.empty() && !gpu.has_other_programs;
  for (auto& [id, seat] : gpu.seats) {
    all_blocked = all_blocked && counts(seat) && seat.is_blocked();
    if (!seat.is_stranded && (newest == nullptr || seat.opened_at >= newest->opened_at)) newest = &seat;
  }
  if (!all_blocked) {
    gpu.all_blocked_since.reset();
    gpu.stranded_at.reset();
  } else if (!gpu.all_blocked_since) {
    gpu.all_blocked_since = now_;
  }
  const std::optional<TimePoint> next = strands_at(gpu);
  const bool strands = next && now_ >= *next;
  for (auto& [id, seat] : gpu.seats) {
    // It stays stranded until it could have its memory, or has none any more.
    const bool is_stranded = seat.is_blocked() && (seat.is_stranded || (strands && &seat == newest));
    if (std::exchange(seat.is_stranded, is_stranded) == is_stranded) continue;
    if (is_stranded) gpu.stranded_at = now_;
    commands.expected.push_back({seat.id, seat.outlook});  // the next plan tells it
  }
}

// Until when what the seat lacks, or waits to allocate, is likely to come, if nothing moves until then. A program that
// fills its memory asks for it piece by piece: as long as one piece follows another, more comes.
std::optional<TimePoint> Residency::comes_until(const Gpu& gpu, const Seat& seat) {
  if (seat.report.evicted == 0 && !seat.asks()) return seat.grows_until;
  std::optional<TimePoint> since = gpu.moved_at;
  if (seat.turn == TurnKind::kNext) since = std::max(since, seat.next_since);
  if (is_lacking(seat)) since = std::max(since, seat.lacking_since);
  if (seat.turn == TurnKind::kHolding && seat.asks()) since = latest(seat.wish->since, since);
  return since ? std::optional(*since + kHolderPatience) : std::nullopt;
}

Residency::Together Residency::together(const Gpu& gpu, const std::vector<Seat*>& order) const {
  Together all{.kept = kept(gpu)};
  for (const Seat* seat : order) {
    if (counts(*seat)) all.on_gpu += seat->has();
    if (seat->turn != TurnKind::kHolding) continue;
    if (all.holder == nullptr) all.holder = seat;
    all.held += seat->report.resident;
    all.any_short = all.any_short || (counts(*seat) && seat->fair < seat->need);
  }
  return all;
}

// Why the seat cannot have what it lacks, even if the others give up all they can; kUnknown: it can. A holder for which
// nothing moves is tried again later, or as soon as it would fit together with the memory that is there.
MemoryOutlook Residency::obstacle_of(const Gpu& gpu, const Seat& seat, const Together& all) const {
  if (seat.report.evicted == 0 || seat.is_out()) return MemoryOutlook::kUnknown;
  const std::uint64_t need = seat.all();
  const bool lacks_for_long = seat.lacking_since && now_ - *seat.lacking_since >= kHolderPatience;
  // The memory that others keep, and foreign memory, is seen late and goes up and down: it has to last.
  const bool lasts = is_obstacle(seat.outlook) || lacks_for_long;
  const auto lasting = [lasts](MemoryOutlook obstacle) { return lasts ? obstacle : MemoryOutlook::kUnknown; };
  if (need > eventual(gpu))
    return lasting(gpu.has_other_programs ? MemoryOutlook::kOtherPrograms : MemoryOutlook::kContexts);
  if (need > minus(eventual(gpu), all.kept - kept_by(gpu, seat))) return lasting(MemoryOutlook::kOtherTenants);
  if (is_lacking(seat))
    return is_before(now_, impatient_at(gpu, seat)) ? MemoryOutlook::kUnknown : MemoryOutlook::kNothingMoves;
  const bool waits = seat.outlook == MemoryOutlook::kNothingMoves && seat.turn != TurnKind::kHolding && seat.retry &&
                     now_ < seat.retry->at && need > minus(available(gpu), all.on_gpu - seat.has());
  return waits ? MemoryOutlook::kNothingMoves : MemoryOutlook::kUnknown;
}

MemoryOutlook Residency::outlook_of(const Gpu& gpu, const Seat& seat, const Together& all) const {
  const bool holds = seat.turn == TurnKind::kHolding;
  if (!counts(seat)) return MemoryOutlook::kUnknown;
  if (const MemoryOutlook obstacle = obstacle_of(gpu, seat, all); is_obstacle(obstacle)) return obstacle;
  if (!holds && (seat.wants_more || seat.asks()) && seat.report.evicted == 0) return MemoryOutlook::kWants;
  if (!holds && seat.turn != TurnKind::kNext) return MemoryOutlook::kUnknown;
  const bool has_its_part = seat.fair >= seat.need;
  const bool grows = &seat == all.holder && is_before(now_, seat.grows_until);
  if (seat.report.evicted == 0 && !(holds && (seat.asks() || grows))) {
    // If it held, too, its memory would be kept from the holders: then theirs would not come.
    const bool stays = !holds && has_its_part && (!all.any_short || seat.report.resident == 0);
    return stays ? MemoryOutlook::kStays : MemoryOutlook::kUnknown;
  }
  const std::uint64_t held_by_others = all.held - (holds ? seat.report.resident : 0);
  const bool comes = (has_its_part || held_by_others == 0) && is_before(now_, comes_until(gpu, seat));
  return comes ? MemoryOutlook::kComes : MemoryOutlook::kUnknown;
}

void Residency::find_outlooks(Gpu& gpu, const std::vector<Seat*>& order, ResidencyCommands& commands) {
  const Together all = together(gpu, order);
  const auto set = [this](std::optional<TimePoint>& since, bool is_so) {
    if (!is_so) since.reset();
    if (is_so && !since) since = now_;
  };
  for (Seat* seat : order) {
    if (seat->turn == TurnKind::kHolding) seat->wants_more = false;  // it asks now, or has no use for it any more
    set(seat->next_since, seat->turn == TurnKind::kNext);
    if (counts(*seat)) set(seat->lacking_since, is_lacking(*seat));
    if (counts(*seat) && seat->report.evicted == 0) seat->retry.reset();
    const MemoryOutlook outlook = outlook_of(gpu, *seat, all);
    if (outlook == seat->outlook) continue;
    if (outlook == MemoryOutlook::kNothingMoves) {
      const Duration after = seat->retry ? std::min(2 * seat->retry->after, kLongestHolderRetry) : kHolderRetry;
      seat->retry = {.after = after, .at = now_ + after};
    }
    seat->outlook = outlook;
    commands.expected.push_back({seat->id, outlook, seat->report.evicted});
  }
  // An outlook that is over is told first: no turn is lent on what was expected before.
  std::stable_partition(commands.expected.begin(), commands.expected.end(), [](const MemoryExpected& one) {
    return one.outlook != MemoryOutlook::kComes && one.outlook != MemoryOutlook::kStays;
  });
}

// Managed memory takes long to leave, and no seat counts it as being there. So it begins to leave before the turn ends,
// as far as the next seat will lack room.
void Residency::expect_evictions(Gpu& gpu, const std::vector<Seat*>& order, ResidencyCommands& commands) {
  gpu.prepare_at.reset();
  std::uint64_t lacking = 0;
  for (const Seat* seat : order) {
    if (seat->turn == TurnKind::kNext) lacking += minus(seat->need, seat->fair);
  }
  for (Seat* seat : order) {
    if (seat->turn != TurnKind::kHolding) {
      seat->hold.reset();
      continue;
    }
    if (!seat->hold) seat->hold = {.since = now_};
    const std::uint64_t managed = std::min(lacking, seat->report.managed);
    if (managed == 0 || seat->hold->told_to_prepare || seat->ends == TimePoint::max()) continue;
    const TimePoint when =
        seat->ends - std::min(kExpectEvictionAhead, (seat->ends - seat->hold->since) / kManagedAheadPart);
    if (when > now_) {
      gpu.prepare_at = std::min(when, gpu.prepare_at.value_or(when));
      continue;
    }
    seat->hold->told_to_prepare = true;
    commands.evictions.push_back({seat->id, managed});
  }
}

void Residency::plan(TimePoint now, GpuIndex index, std::span<const Turn> turns, ResidencyCommands& commands) {
  now_ = std::max(now_, now);
  Gpu* const gpu = gpu_of(index);
  if (gpu == nullptr) return;
  if (gpu->returning > 0 && now_ >= gpu->returning_until) {
    gpu->returning = 0;
    gpu->moved_at = now_;
  }
  for (auto& [id, seat] : gpu->seats) {
    if (seat.voice == Voice::kBack && !may_speak_yet(seat)) seat.voice = Voice::kNone;  // it has nothing to say
  }
  const std::vector<Seat*> order = in_order(*gpu, turns);
  const std::uint64_t counted = charged(*gpu);
  find_most(*gpu, order);
  bool is_settled = false;
  while (!is_settled) {
    is_settled = true;
    plan_commitments(*gpu, order);
    for (const Share& share : plan_rooms(*gpu, order)) {
      const std::uint64_t before = charge(*share.seat);
      tell(*gpu, *share.seat, share.told, share.seat->commitment, commands);
      // The plan does not wait for the answer of a seat that does not answer. The bytes by which it counts for less are
      // free for other seats now.
      is_settled = is_settled && charge(*share.seat) >= before;
    }
  }
  for (Seat* seat : order) {
    // The first bound gives nothing: with its answer it counts.
    if (seat->voice == Voice::kNone) tell(*gpu, *seat, 0, 0, commands);
  }
  find_outlooks(*gpu, order, commands);
  find_stranded(*gpu, commands);
  expect_evictions(*gpu, order, commands);
  const std::uint64_t after = charged(*gpu);
  if (broken_.empty() && after > counted && after > available(*gpu))
    broken_ = "GPU " + std::to_string(index.value) + ": bounds were raised beyond what is free";
}

}  // namespace gpumux::sched
