// SPDX-License-Identifier: Apache-2.0
// The time that counts: a share belongs to a group of seats, and the queue is ordered by the groups' virtual times.
//
// A group's virtual time grows by what its seats hold, divided by its weight. So two seats of one group have together
// what one seat of that weight has. A seat without a claim is a group by itself. All of a group's units that wait on a
// GPU have one rank there, and ties go by time of request: within a group the unit that has waited longest is first.
//
// A unit's time on a GPU counts once for each group: a gang with several seats of one group has the GPU once.
#include <algorithm>

#include "sched/state.h"

namespace gpumux::sched {
namespace {

// However long one seat held, it owes the others at most this much of it: after minutes of an unlimited quantum or of a
// stall, nobody is shut out for minutes in return.
constexpr std::int64_t kMaxDebtQuanta = 8;
constexpr Duration kMinDebt = std::chrono::seconds(10);
// A group that comes back after idling is ahead of the others by at most this much, and at most by one quantum.
constexpr Duration kMaxCredit = std::chrono::seconds(1);

bool is_behind_in_unit(const Seat& seat) {
  if (seat.group->seats.size() == 1) return false;
  const auto& seats = seat.unit->seats;
  return std::any_of(seats.begin(), std::find(seats.begin(), seats.end(), &seat),
                     [&](const Seat* other) { return other->group == seat.group && runs(*other); });
}

}  // namespace

// ---- members ------------------------------------------------------------------------------------

void LeaseCore::State::join_group(Seat& seat, const std::string& name) {
  if (name.empty()) {
    seat.group = std::make_shared<ShareGroup>();
  } else {
    auto& group = seat.gpu->groups[name];
    if (group == nullptr) group = std::make_shared<ShareGroup>(ShareGroup{.name = name, .seats = {}});
    seat.group = group;
  }
  auto& seats = seat.group->seats;
  seats.insert(std::upper_bound(seats.begin(), seats.end(), &seat, BySeat()), &seat);
}

// A group's debt is remembered when its last seat has gone: a claim whose programs end and start again has no more than
// its share. A group that owes nothing stands like a new one, and is forgotten.
void LeaseCore::State::leave_group(Seat& seat) {
  Gpu& gpu = *seat.gpu;
  std::erase(seat.group->seats, &seat);
  if (seat.group->name.empty() || !seat.group->seats.empty()) return;
  std::erase_if(gpu.groups, [&](const auto& entry) {
    return entry.second->seats.empty() && entry.second->virtual_time <= gpu.virtual_now;
  });
  std::size_t remembered = 0;
  auto owes_least = gpu.groups.end();
  for (auto entry = gpu.groups.begin(); entry != gpu.groups.end(); ++entry) {
    const ShareGroup& group = *entry->second;
    if (!group.seats.empty()) continue;
    ++remembered;
    if (owes_least == gpu.groups.end() || group.virtual_time < owes_least->second->virtual_time) owes_least = entry;
  }
  if (remembered > kMostRemembered) gpu.groups.erase(owes_least);
}

void LeaseCore::State::set_weight(ShareGroup& group, std::uint32_t weight) {
  if (group.weight == weight) return;
  for (Seat* seat : group.seats) {
    if (seat->unit != nullptr) charge(*seat);
  }
  group.weight = weight;
}

// ---- time ---------------------------------------------------------------------------------------

std::int64_t LeaseCore::State::virtual_charge(const Seat& seat, std::int64_t* rest) const {
  const Duration quantum = seat.gpu->quantum().at_most(Duration::max());
  const Duration most =
      quantum > Duration::max() / kMaxDebtQuanta ? Duration::max() : std::max(kMinDebt, quantum * kMaxDebtQuanta);
  const std::int64_t charged = std::min(used_until(seat, now) - seat.charged_to, most).count() + *rest;
  const auto weight = static_cast<std::int64_t>(seat.group->weight);
  *rest = charged % weight;
  return charged / weight;
}

// Accounts the time since the grant. Time in which its unit is passed over costs it nothing: others have the GPU.
void LeaseCore::State::charge(Seat& seat) {
  if (!runs(seat)) return;
  ShareGroup& group = *seat.group;
  const std::int64_t before = group.virtual_time;
  if (!is_behind_in_unit(seat)) group.virtual_time += virtual_charge(seat, &group.virtual_rest);
  const TimePoint until = used_until(seat, now);
  seat.held += until - seat.charged_to;
  seat.charged_to = until;
  if (group.virtual_time != before) rerank(group, *seat.unit);
}

void LeaseCore::State::charge(Unit& unit) {
  for (Seat* seat : unit.seats) charge(*seat);
}

// In virtual time.
std::int64_t LeaseCore::State::credit_of(const Seat& seat) const {
  return seat.gpu->quantum().at_most(kMaxCredit).count() / static_cast<std::int64_t>(seat.group->weight);
}

// A new group stands where those that are there stand.
void LeaseCore::State::begin_time(Seat& seat) {
  ShareGroup& group = *seat.group;
  if (group.fresh) group.virtual_time = seat.gpu->virtual_now;
  group.fresh = false;
}

// The seat begins to wait. A group of which a seat runs has not been idle.
void LeaseCore::State::catch_up(Seat& seat) {
  begin_time(seat);
  ShareGroup& group = *seat.group;
  const std::int64_t least = seat.gpu->virtual_now - credit_of(seat);
  const auto is_running = [](const Seat* other) { return other->unit != nullptr && runs(*other); };
  if (group.virtual_time >= least || std::any_of(group.seats.begin(), group.seats.end(), is_running)) return;
  group.virtual_time = least;
  rerank(group, *seat.unit);
}

// The time that a group had at another priority says nothing about its due among its new equals. It owes them no more
// than a group that comes back is owed.
void LeaseCore::State::begin_anew(Seat& seat) {
  ShareGroup& group = *seat.group;
  const std::int64_t most = seat.gpu->virtual_now + credit_of(seat);
  if (group.fresh || group.virtual_time <= most) return;
  group.virtual_time = most;
  rerank(group, *seat.unit);
}

// The group's virtual time has changed: its units that wait, but for this one, have another place in their queues.
void LeaseCore::State::rerank(const ShareGroup& group, const Unit& but) {
  if (group.seats.size() == 1) return;
  for (const Seat* seat : group.seats) {
    Unit* const unit = seat->unit;
    if (unit != nullptr && unit != &but && unit->phase == UnitPhase::kWaiting) requeue(*unit);
  }
}

}  // namespace gpumux::sched
