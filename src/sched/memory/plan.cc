// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/plan.h"

#include <algorithm>
#include <limits>

#include "sched/memory/commitments.h"
#include "sched/memory/wishes.h"

namespace gpumux::sched {
namespace {

using For = Commitments::For;
using Needs = Commitments::Needs;

// Room that is dealt out ahead comes in whole blocks of the driver's.
constexpr std::uint64_t kGrain = std::uint64_t{2} << 20;
// This part of the spare memory is dealt out. The rest keeps small changes from taking something back from every seat.
constexpr std::uint64_t kDealtNumerator = 7;
constexpr std::uint64_t kDealtDenominator = 8;

// One seat's part of something that is dealt out: what it must have, and what it is told that it may have.
struct Share {
  std::size_t place = 0;  // of the seat, in the order
  const SeatAccount* seat = nullptr;
  std::uint64_t base = 0;
  std::uint64_t told = 0;
  std::uint64_t most = 0;
  std::uint64_t target = 0;
};

// Sets each target to its base and a spare part, out of `left`.
void deal(std::vector<Share>& shares, std::uint64_t left) {
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

// Seats of accounts that have less than an even part of `capacity` come first.
std::vector<Share*> fairest_first(std::vector<Share>& shares, std::uint64_t capacity) {
  std::map<std::uint64_t, std::uint64_t> bytes;  // by account
  for (const Share& share : shares) bytes[share.seat->account] += share.base;
  std::vector<Share*> order;
  order.reserve(shares.size());
  for (Share& share : shares) order.push_back(&share);
  std::stable_partition(order.begin(), order.end(),
                        [&](const Share* share) { return bytes[share->seat->account] < capacity / bytes.size(); });
  return order;
}

class Planner {
 public:
  Planner(const Accounts& accounts, const GpuAccount& gpu, InTurn order)
      : accounts_(accounts), gpu_(gpu), order_(order), kept_(gpu.kept()), plans_(order.size()) {}

  std::vector<SeatPlan> make() {
    share_commitments();
    share_rooms(aim());
    return std::move(plans_);
  }

 private:
  std::uint64_t floor_of(const SeatAccount& seat) const;
  std::uint64_t aim();
  void share_rooms(std::uint64_t left);
  void share_commitments();

  const Accounts& accounts_;
  const GpuAccount& gpu_;
  const InTurn order_;
  const std::uint64_t kept_;
  std::vector<SeatPlan> plans_;
};

std::uint64_t Planner::floor_of(const SeatAccount& seat) const {
  if (seat.turn == TurnKind::kHolding) {
    // It takes what it was given in a moment, and does not report that before.
    const std::uint64_t most = Commitments::most_room(gpu_.eventual(), gpu_, seat, kept_);
    return std::max(seat.has(), std::min(accounts_.taken(seat.given_room), most));
  }
  return seat.turn == TurnKind::kHeldBack || seat.report.stuck ? seat.has() : seat.report.unpageable;
}

// Sets `need` and `fair`. Returns what is left when every seat has that.
std::uint64_t Planner::aim() {
  std::uint64_t floors = 0;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const SeatAccount& seat = *order_[i];
    if (!seat.counts()) continue;
    std::uint64_t need = seat.is_out() ? floor_of(seat) : seat.has();
    if (seat.turn <= TurnKind::kNext) {
      need = seat.all() + seat.report.managed;
      if (seat.wish) need = std::max(need, seat.wish->room);
      need = std::max(need, accounts_.taken(seat.given_room));
      need = std::max(seat.has(), std::min(need, Commitments::most_room(gpu_.eventual(), gpu_, seat, kept_)));
    }
    plans_[i].need = need;
    floors += floor_of(seat);
  }
  std::uint64_t left = minus(gpu_.available(), floors);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const SeatAccount& seat = *order_[i];
    if (!seat.counts()) continue;
    const std::uint64_t floor = floor_of(seat);
    const std::uint64_t more = std::min(minus(plans_[i].need, floor), left);
    plans_[i].fair = floor + more;
    left -= more;
    // If it is stuck, it goes on trying, and the plan does not count on that.
    if (seat.is_out()) plans_[i].fair = seat.report.unpageable;
  }
  return left;
}

// Sets `room`. `left`: what is to spare.
void Planner::share_rooms(std::uint64_t left) {
  std::vector<Share> shares;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const SeatAccount& seat = *order_[i];
    if (!seat.counts()) continue;
    const std::uint64_t fair = plans_[i].fair;
    if (seat.is_out()) {
      plans_[i].room = std::min(seat.told_room(), fair);
      continue;
    }
    // A seat that does not answer gets nothing to spare.
    const std::uint64_t most = accounts_.answers(seat) ? std::numeric_limits<std::uint64_t>::max() : fair;
    shares.push_back({i, &seat, fair, seat.told_room(), most, 0});
  }
  deal(shares, left);

  // No raise takes the sum of all counts above what is available. If a seat has reported more than there is, nothing is
  // raised, not even to what it reports.
  const std::uint64_t charged = accounts_.charged(gpu_);
  const bool is_over = charged > gpu_.available();
  std::uint64_t free = minus(gpu_.available(), charged);
  const auto raise = [&](Share& share, std::uint64_t goal) {
    if (goal <= share.told || is_over) return;
    const std::uint64_t counted = std::max(accounts_.charge(*share.seat), share.told);
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
    plans_[share.place].room = share.told;
  }
}

// Sets `commitment`.
void Planner::share_commitments() {
  const Commitments commitments(accounts_);
  const Wishes wishes(accounts_);
  const std::uint64_t capacity = commitments.capacity(gpu_, gpu_.available(), Needs::kCharged, For::kThoseThatBegin);
  // The part of the capacity that is kept for accounts that begin.
  const std::uint64_t reserved = capacity - commitments.capacity(gpu_, gpu_.available(), Needs::kCharged, For::kAll);
  const auto may_take = [&](std::uint64_t more, std::uint64_t all, const SeatAccount& seat, std::uint64_t commitment) {
    if (more <= minus(all, reserved)) return more;
    const bool begins = commitments.begins_with(seat, commitment, Needs::kCharged) == For::kThoseThatBegin;
    return std::min(more, begins ? all : minus(all, reserved));
  };
  std::uint64_t left = capacity;
  std::uint64_t free = commitments.left_of(capacity, gpu_);
  std::uint64_t needed = 0;
  std::vector<Share> shares;
  std::map<std::uint64_t, std::uint64_t> out;  // bytes of suspended seats, by quota group
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const SeatAccount& seat = *order_[i];
    if (!seat.counts()) continue;
    const std::uint64_t given = seat.is_out() ? 0 : accounts_.taken(seat.given_commitment);
    const std::uint64_t base = std::max(seat.allocated(), given);
    left = minus(left, base);
    if (seat.is_out()) {
      plans_[i].commitment = std::min(seat.told_commitment(), base);
      needed += seat.report.unpageable;
      out[seat.quota.group] += base;
      continue;
    }
    const std::uint64_t most = accounts_.answers(seat) ? Commitments::most(gpu_.eventual(), gpu_, seat, kept_) : base;
    shares.push_back({i, &seat, base, seat.told_commitment(), most, 0});
  }
  // A wish comes before spare commitment, and the nearest turn first. If not every seat can have what it wants, one
  // can.
  for (Share* const share : fairest_first(shares, capacity)) {
    const SeatAccount& seat = *share->seat;
    if (!seat.wish || seat.wish->commitment <= share->base || !wishes.is_possible(gpu_, seat)) continue;
    const std::uint64_t wanted = seat.wish->commitment;
    const std::uint64_t more = wanted - share->base;
    if (may_take(more, left, seat, wanted) < more && wanted > share->told) continue;
    left = minus(left, more);
    share->base = wanted;
    share->most = std::max(share->most, share->base);
  }
  for (const Share& share : shares) needed += share.base;
  left = std::min(minus(left, reserved), minus(gpu_.available(), needed));
  // Each seat of a quota may use what the quota's other seats leave, and no more is spared for it.
  for (Share& share : shares) {
    const Quota& quota = share.seat->quota;
    if (quota.group == 0) continue;
    std::uint64_t others = out[quota.group];
    for (const Share& other : shares) {
      if (&other != &share && other.seat->quota.group == quota.group) others += std::max(other.base, other.told);
    }
    share.most = std::min(share.most, std::max(share.base, minus(quota.bytes, others)));
  }
  deal(shares, left);
  for (Share& share : shares) {
    if (share.target < share.told) {
      share.told = share.target;
    } else {
      const std::uint64_t counted = accounts_.commitment_charge(*share.seat);
      const std::uint64_t more = may_take(minus(share.target, counted), free, *share.seat, share.target);
      const std::uint64_t commitment = std::min(share.target, counted + more);
      if (commitment > share.told) {
        free -= minus(commitment, counted);
        share.told = commitment;
      }
    }
    plans_[share.place].commitment = share.told;
  }
}

}  // namespace

std::vector<SeatPlan> make_plan(const Accounts& accounts, const GpuAccount& gpu, InTurn order) {
  return Planner(accounts, gpu, order).make();
}

std::vector<std::uint64_t> most_of(const Accounts& accounts, const GpuAccount& gpu, InTurn order) {
  const std::uint64_t kept = gpu.kept();
  const std::uint64_t capacity = Commitments(accounts).capacity(gpu, gpu.eventual(), Needs::kAllocated);
  std::uint64_t allocated = 0;
  for (const SeatAccount* const seat : order) allocated += seat->counts() ? seat->allocated() : 0;
  std::vector<std::uint64_t> most;
  for (const SeatAccount* const seat : order) {
    // A seat that does not count yet is told so with its first bound.
    const std::uint64_t own = seat->counts() ? seat->allocated() : 0;
    const std::uint64_t beside_others = minus(capacity, allocated - own);
    most.push_back(std::min(Commitments::most(gpu.eventual(), gpu, *seat, kept), beside_others));
  }
  return most;
}

}  // namespace gpumux::sched
