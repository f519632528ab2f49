// SPDX-License-Identifier: Apache-2.0
// The planner's events, and its views. residency_plan.cc plans.
#include "sched/memory/residency.h"

#include <algorithm>
#include <utility>

#include "sched/memory/commitments.h"
#include "sched/memory/outlooks.h"
#include "sched/memory/wishes.h"

namespace gpumux::sched {

void Residency::add_gpu(GpuIndex gpu, std::uint64_t capacity, std::uint64_t reserve) {
  GpuAccount& added = accounts_.gpus[gpu.value];
  added.capacity = capacity;
  added.reserve = reserve;
}

void Residency::set_free_only(GpuIndex index, bool free_only) {
  if (GpuAccount* const gpu = accounts_.find(index)) gpu->free_only = free_only;
}

bool Residency::set_foreign(TimePoint now, GpuIndex index, const Foreign& foreign) {
  GpuAccount* const gpu = accounts_.find(index);
  if (gpu == nullptr) return false;
  const bool was_awaited = awaits_look(index);
  const std::uint64_t before = std::exchange(gpu->foreign, foreign).bytes;
  if (foreign.bytes == before) return was_awaited && !awaits_look(index);
  if (foreign.bytes < before) gpu->moved_at = now;
  return true;
}

void Residency::set_other_programs(GpuIndex index, bool any) {
  if (GpuAccount* const gpu = accounts_.find(index)) gpu->has_other_programs = any;
}

void Residency::opened(TimePoint now, SeatId id, const SeatOwner& owner, bool gets_bound, std::uint64_t left) {
  accounts_.now = std::max(accounts_.now, now);
  GpuAccount* const gpu = accounts_.find(id.gpu);
  if (gpu == nullptr) return;
  SeatAccount& seat = gpu->seats[id];
  seat = SeatAccount();
  seat.id = id;
  seat.quota = owner.quota;
  seat.account = owner.account;
  seat.opened_at = now;
  seat.voice = gets_bound ? Voice::kNone : Voice::kBack;
  seat.is_awaited = !gets_bound && accounts_.awaits_tenants();
  seat.left = left;
}

// Bytes that it may have by now, though it has not reported them. (If it came back and has not reported yet, what it
// left then is expected already.)
std::uint64_t Residency::left_by(SeatId id) const {
  const SeatAccount* const seat = accounts_.find(id);
  if (seat == nullptr) return 0;
  const std::uint64_t has = seat->counts() ? accounts_.charge(*seat) : 0;
  return has == 0 ? seat->left : has;
}

void Residency::closed(TimePoint now, SeatId id) {
  accounts_.now = std::max(accounts_.now, now);
  const SeatAccount* const seat = accounts_.find(id);
  if (seat == nullptr) return;
  GpuAccount& gpu = *accounts_.find(id.gpu);
  const std::uint64_t has = seat->counts() ? accounts_.charge(*seat) : 0;
  gpu.seats.erase(id);
  gpu.moved_at = now;
  if (has == 0) return;
  gpu.closed_at = now;
  gpu.returning += std::min(has, gpu.capacity);
  gpu.returning_until = now + kReturnPatience;
}

void Residency::set_suspended(TimePoint now, SeatId id, bool is_suspended) {
  accounts_.now = std::max(accounts_.now, now);
  SeatAccount* const seat = accounts_.find(id);
  if (seat == nullptr || seat->suspended == is_suspended) return;
  seat->suspended = is_suspended;
  // Its patience begins when it can be served again.
  if (!is_suspended && seat->wish) seat->wish->since = now;
  seat->retry.reset();
}

bool Residency::returned(TimePoint now, GpuIndex index, std::uint64_t left) {
  GpuAccount* const gpu = accounts_.find(index);
  if (gpu == nullptr || left >= gpu->returning) return false;
  gpu->returning = left;
  gpu->moved_at = now;
  return true;
}

bool Residency::looked(TimePoint now, TimePoint asked_at, GpuIndex index, std::uint64_t used) {
  const GpuAccount* const gpu = accounts_.find(index);
  return gpu != nullptr && asked_at > gpu->closed_at && returned(now, index, used);
}

void Residency::reported(TimePoint now, SeatId id, const MemoryReport& report) {
  accounts_.now = std::max(accounts_.now, now);
  SeatAccount* const seat = accounts_.find(id);
  if (seat == nullptr) return;
  GpuAccount& gpu = *accounts_.find(id.gpu);
  const std::uint64_t before = seat->counts() ? accounts_.charge(*seat) : 0;
  const bool comes_back = report.evicted < seat->report.evicted;
  MemoryReport sane = report;
  // No seat has more than the GPU. Sums of such values are far from overflowing.
  sane.unpageable = std::min(sane.unpageable, gpu.capacity);
  sane.hidden = std::min(sane.hidden, sane.unpageable);
  sane.resident = std::min(sane.resident, gpu.capacity - sane.unpageable);
  sane.evicted = std::min(sane.evicted, gpu.capacity);
  // Managed memory may exceed the GPU, but a seat never gets more than GPU and host memory together.
  sane.managed = std::min(sane.managed, gpu.capacity + accounts_.host.bytes);
  sane.allocated = std::min(sane.allocated, 2 * gpu.capacity + sane.managed);
  // A lower bound may be in force by now: what the seat allocated before stays.
  seat->promised = seat->is_awaited ? sane.allocated : std::min(sane.allocated, seat->promise());
  seat->is_awaited = false;
  seat->report = sane;
  seat->voice = Voice::kSpeaks;
  gpu.returning -= std::min({std::exchange(seat->left, 0), seat->has(), gpu.returning});
  seat->most_had = std::max(seat->most_had, seat->all());
  // The seat has taken what it was given.
  if (seat->given_room && seat->has() >= seat->given_room->bytes) seat->given_room.reset();
  if (seat->given_commitment && sane.allocated >= seat->given_commitment->bytes) seat->given_commitment.reset();
  // Sequences grow by one and are compared as distances, so that they may wrap.
  while (seat->bounds.size() > 1 && static_cast<std::int32_t>(report.sequence - seat->bounds[1].sequence) >= 0) {
    seat->bounds.pop_front();
  }
  const Commitments commitments(accounts_);
  const std::uint64_t capacity = commitments.capacity(gpu, gpu.available(), Commitments::Needs::kCharged);
  const std::uint64_t left = commitments.left_of(capacity, gpu);
  if (const std::uint64_t more = commitments.believed(gpu, *seat, capacity, left); more != 0)
    seat->promised = seat->promise() + more;
  if (accounts_.charge(*seat) < before) gpu.moved_at = now;
  if (comes_back && seat->lacking_since) seat->lacking_since = now;
}

void Residency::wanted(TimePoint now, SeatId id, std::uint32_t ticket, std::uint64_t room, std::uint64_t commitment,
                       std::uint64_t managed) {
  accounts_.now = std::max(accounts_.now, now);
  SeatAccount* const seat = accounts_.find(id);
  if (seat == nullptr || ticket == 0) return;
  if (static_cast<std::int32_t>(ticket - seat->answered) <= 0) return;  // answered already
  if (seat->voice == Voice::kNone) seat->voice = Voice::kSpeaks;
  if (!seat->wish) seat->wish = {.ticket = ticket, .since = now};
  Wish& wish = *seat->wish;
  if (static_cast<std::int32_t>(ticket - wish.ticket) > 0) wish.ticket = ticket;
  wish.room = std::max(wish.room, room);
  wish.commitment = std::max(wish.commitment, commitment);
  wish.managed = std::max(wish.managed, std::min(managed, accounts_.find(id.gpu)->capacity + accounts_.host.bytes));
}

bool Residency::may_be_back(SeatId id) const {
  const SeatAccount* const seat = accounts_.find(id);
  return seat != nullptr && seat->voice == Voice::kBack;
}

bool Residency::awaits_look(GpuIndex index) const {
  const GpuAccount& gpu = accounts_.at(index);
  return std::any_of(gpu.seats.begin(), gpu.seats.end(), [&](const auto& entry) {
    return entry.second.asks() && Wishes(accounts_).awaits_look(gpu, entry.second);
  });
}

bool Residency::is_tight(GpuIndex index) const {
  const auto& seats = accounts_.at(index).seats;
  const bool is_short = std::any_of(seats.begin(), seats.end(), [](const auto& entry) {
    const SeatAccount& seat = entry.second;
    return seat.asks() || (seat.report.evicted > 0 && !seat.is_out());
  });
  return is_short || (managed(index) > 0 && !fits_together(index, 0));
}

bool Residency::is_clearing(GpuIndex index) const {
  const auto& seats = accounts_.at(index).seats;
  return std::any_of(seats.begin(), seats.end(), [](const auto& entry) {
    const SeatAccount& seat = entry.second;
    return seat.suspended && (seat.report.resident > 0 || seat.is_told_too_much());
  });
}

std::optional<TimePoint> Residency::next_deadline(GpuIndex index) const {
  const GpuAccount& gpu = accounts_.at(index);
  std::optional<TimePoint> next = earlier(gpu.prepare_at, strands_at(gpu));
  if (gpu.returning > 0) next = earlier(next, gpu.returning_until);
  for (const auto& [id, seat] : gpu.seats) {
    if (accounts_.may_speak_yet(seat)) next = earlier(next, seat.opened_at + kFirstReportPatience);
    if (seat.asks()) next = earlier(next, Wishes(accounts_).next_deadline(gpu, seat));
    next = earlier(next, outlook_changes_at(gpu, seat));
    if (seat.bounds.size() > 1 && seat.counts() && accounts_.answers(seat))
      next = earlier(next, seat.bounds[1].told_at + kAnswerPatience);
  }
  return next;
}

bool Residency::fits_together(GpuIndex index, std::uint64_t margin) const {
  const GpuAccount& gpu = accounts_.at(index);
  std::uint64_t sum = margin;
  const std::uint64_t kept_by_all = gpu.kept();
  for (const auto& [id, seat] : gpu.seats) {
    std::uint64_t need = seat.suspended ? seat.report.unpageable : seat.all() + seat.managed();
    if (seat.asks() && !seat.suspended)
      need = std::max(need, std::min(seat.wish->room, Commitments::most_room(gpu.eventual(), gpu, seat, kept_by_all)));
    sum += need;
  }
  return sum <= gpu.eventual();
}

Togetherness Residency::together(GpuIndex index) const {
  Togetherness together;
  const GpuAccount& gpu = accounts_.at(index);
  for (const auto& [id, seat] : gpu.seats) {
    if (seat.suspended) {
      ++together.suspended;
      continue;
    }
    ++together.seats;
    together.evicted += seat.report.evicted;
    if (seat.counts()) continue;
    ++(accounts_.may_speak_yet(seat) ? together.unknown : together.silent);
  }
  return together;
}

// In bytes: a thread allocates what it waits for, or was given a moment ago, before its seat's next report.
static std::uint64_t expected(const Accounts& accounts, const GpuAccount& gpu, const SeatAccount& seat) {
  const std::uint64_t given = accounts.taken(seat.given_commitment);
  return seat.asks() && Wishes(accounts).is_possible(gpu, seat) ? std::max(given, seat.wish->commitment) : given;
}

HostDemand Residency::host_demand(GpuIndex index) const {
  const GpuAccount& gpu = accounts_.at(index);
  std::uint64_t sum = 0;
  std::uint64_t suspended = 0;
  std::size_t with_memory = 0;
  // Managed memory lies in its program's own host memory.
  for (const auto& [id, seat] : gpu.seats) {
    if (seat.suspended) {
      sum += seat.report.unpageable;
      suspended += seat.pageable();
      continue;
    }
    const std::uint64_t allocated = std::max(seat.report.allocated, expected(accounts_, gpu, seat));
    const std::uint64_t pages = allocated - std::min(allocated, seat.managed());
    sum += std::max(seat.all(), pages);
    with_memory += pages != 0 ? 1u : 0u;
  }
  const std::uint64_t most = gpu.eventual();
  const std::uint64_t ahead = most / kPreparedPart;
  const std::uint64_t in_turns = sum > most ? sum - most : 0;
  const std::uint64_t soon = with_memory > 1 && sum > most - ahead ? std::min(sum - (most - ahead), ahead) : 0;
  return {.evicted = suspended + std::max(in_turns, soon), .copies = std::min(in_turns, most)};
}

std::uint64_t Residency::on_gpu(GpuIndex index) const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : accounts_.at(index).seats) sum += seat.has() - seat.report.hidden;
  return sum;
}

std::uint64_t Residency::on_gpu_and_evicted(GpuIndex index) const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : accounts_.at(index).seats) sum += seat.all() - seat.report.hidden;
  return sum;
}

std::uint64_t Residency::managed(GpuIndex index) const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : accounts_.at(index).seats) sum += seat.managed();
  return sum;
}

GpuMemory Residency::view(GpuIndex index) const {
  const GpuAccount& gpu = accounts_.at(index);
  GpuMemory view{gpu.capacity, gpu.reserve, gpu.foreign.bytes, gpu.returning, {}};
  for (const auto& [id, seat] : gpu.seats) view.seats.push_back(view_of(seat));
  return view;
}

SeatMemoryView Residency::view_of(const SeatAccount& seat) const {
  return {.seat = seat.id,
          .report = seat.report,
          .speaks = seat.counts(),
          .answers = accounts_.answers(seat),
          .is_behind = seat.bounds.size() > kMaxBoundsUnderWay,
          .room = seat.told_room(),
          .counted = seat.counts() ? accounts_.charge(seat) : 0,
          .commitment = seat.told_commitment(),
          .promised = seat.promise(),
          .wanted = seat.wish ? seat.wish->room : 0,
          .quota = seat.quota.bytes,
          .is_suspended = seat.suspended,
          .is_told = seat.bounds.size() < 2 && !seat.is_told_too_much(),
          .may_speak_yet = accounts_.may_speak_yet(seat)};
}

std::optional<SeatMemoryView> Residency::view(SeatId id) const {
  const SeatAccount* const seat = accounts_.find(id);
  if (seat == nullptr) return std::nullopt;
  return view_of(*seat);
}

std::string Residency::check_invariants() const {
  if (!broken_.empty()) return broken_;
  for (const auto& [index, gpu] : accounts_.gpus) {
    for (const auto& [id, seat] : gpu.seats) {
      const std::string who = "seat " + to_string(id);
      for (std::size_t i = 1; i < seat.bounds.size(); ++i) {
        if (static_cast<std::int32_t>(seat.bounds[i].sequence - seat.bounds[i - 1].sequence) <= 0)
          return who + " was told bounds out of order";
      }
      if (seat.bounds.size() > kMaxBoundsUnderWay + 1) return who + " has too many bounds under way";
      if (!seat.asks()) continue;
      if (seat.turn != TurnKind::kHolding && seat.told_commitment() >= seat.wish->commitment && seat.counts() &&
          !seat.bounds.empty() && seat.wish->since < accounts_.now)
        return who + " holds no lease and is kept waiting for room";
      if (accounts_.now > Wishes(accounts_).refused_at(gpu, seat)) return who + " waits for what does not come";
    }
  }
  return {};
}

}  // namespace gpumux::sched
