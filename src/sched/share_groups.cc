// SPDX-License-Identifier: Apache-2.0
// The groups of a GPU, and when their time is charged.
#include "sched/share_groups.h"

#include <algorithm>

#include "sched/state.h"

namespace gpumux::sched {
namespace {

// However long one seat held, it owes the others at most this much of it. So minutes of an unlimited quantum, or of a
// stall, shut no seat out for minutes in return.
constexpr std::int64_t kMaxDebtQuanta = 8;
constexpr Duration kMinDebt = std::chrono::seconds(10);
// A group that comes back after idling is ahead of the others by at most this much, and at most by one quantum.
constexpr Duration kMaxCredit = std::chrono::seconds(1);

bool is_behind_in_unit(const Seat& seat) {
  if (seat.group->seats().size() == 1) return false;
  const auto& seats = seat.unit->seats;
  return std::any_of(seats.begin(), std::find(seats.begin(), seats.end(), &seat),
                     [&](const Seat* other) { return other->group == seat.group && runs(*other); });
}

std::int64_t credit_of(const Seat& seat) {
  return seat.group->in_virtual_time(seat.gpu->quantum().at_most(kMaxCredit));
}

}  // namespace

// ---- members ------------------------------------------------------------------------------------

std::shared_ptr<ShareGroup> ShareGroups::join(Seat& seat, const std::string& name) {
  auto group = std::make_shared<ShareGroup>(name);
  if (!name.empty()) group = named_.try_emplace(name, group).first->second;
  auto& seats = group->seats_;
  seats.insert(std::upper_bound(seats.begin(), seats.end(), &seat, BySeat()), &seat);
  return group;
}

void ShareGroups::leave(Seat& seat, ShareGroup& group) {
  std::erase(group.seats_, &seat);
  if (group.name().empty() || !group.seats_.empty()) return;
  std::erase_if(named_, [&](const auto& entry) {
    return entry.second->seats_.empty() && entry.second->virtual_time() <= present_;
  });
  std::size_t remembered = 0;
  auto owes_least = named_.end();
  for (auto entry = named_.begin(); entry != named_.end(); ++entry) {
    const ShareGroup& other = *entry->second;
    if (!other.seats_.empty()) continue;
    ++remembered;
    if (owes_least == named_.end() || other.virtual_time() < owes_least->second->virtual_time()) owes_least = entry;
  }
  if (remembered > kMostRemembered) named_.erase(owes_least);
}

void LeaseCore::State::set_weight(ShareGroup& group, std::uint32_t weight) {
  if (group.weight() == weight) return;
  for (Seat* seat : group.seats()) {
    if (seat->unit != nullptr) charge(*seat);
  }
  group.set_weight(weight);
}

// ---- time ---------------------------------------------------------------------------------------

Duration uncharged(const Seat& seat, TimePoint now) {
  const Duration quantum = seat.gpu->quantum().at_most(Duration::max());
  const Duration most =
      quantum > Duration::max() / kMaxDebtQuanta ? Duration::max() : std::max(kMinDebt, quantum * kMaxDebtQuanta);
  return std::min(used_until(seat, now) - seat.charged_to, most);
}

// Accounts the time since the grant. Time in which its unit is passed over costs it nothing: others have the GPU.
void LeaseCore::State::charge(Seat& seat) {
  if (!runs(seat)) return;
  ShareGroup& group = *seat.group;
  const std::int64_t before = group.virtual_time();
  if (!is_behind_in_unit(seat)) group.charge(uncharged(seat, now));
  const TimePoint until = used_until(seat, now);
  seat.held += until - seat.charged_to;
  seat.charged_to = until;
  if (group.virtual_time() != before) rerank(group, *seat.unit);
}

void LeaseCore::State::charge(Unit& unit) {
  for (Seat* seat : unit.seats) charge(*seat);
}

// The seat begins to wait. A group has not been idle if a seat of it runs, or did until now.
void LeaseCore::State::catch_up(Seat& seat) {
  ShareGroup& group = *seat.group;
  group.begin(seat.gpu->groups.present());
  const std::int64_t least = seat.gpu->groups.present() - credit_of(seat);
  const auto has_run = [this](const Seat* other) {
    return other->unit != nullptr && (runs(*other) || other->charged_to == now);
  };
  if (group.virtual_time() >= least || std::any_of(group.seats().begin(), group.seats().end(), has_run)) return;
  group.move_to(least);
  rerank(group, *seat.unit);
}

// The time that a group had at another priority says nothing about its due among its new equals. It owes them no more
// than a group that comes back is owed.
void LeaseCore::State::begin_anew(Seat& seat) {
  ShareGroup& group = *seat.group;
  const std::int64_t most = seat.gpu->groups.present() + credit_of(seat);
  if (group.virtual_time() <= most) return;
  group.move_to(most);
  rerank(group, *seat.unit);
}

// The group's virtual time has changed: its units that wait, but for this one, have another place in their queues.
void LeaseCore::State::rerank(const ShareGroup& group, const Unit& but) {
  if (group.seats().size() == 1) return;
  for (const Seat* seat : group.seats()) {
    Unit* const unit = seat->unit;
    if (unit != nullptr && unit != &but && unit->phase == UnitPhase::kWaiting) requeue(*unit);
  }
}

}  // namespace gpumux::sched
