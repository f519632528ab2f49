// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/rooms.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "daemon/loop/log.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using base::GpuIndex;

// A new tenant's context takes about 500 MB before anybody is asked (H200, CUDA 13.0): room for that, and for what
// grows in those that are there. A small or simulated GPU keeps back in proportion.
constexpr std::uint64_t kMaxAutomaticReserve = std::uint64_t{1} << 30;
constexpr std::uint64_t kReserveDivisor = 16;

// Who cannot have its memory changes turns, and those what is needed: one more plan, seldom two.
constexpr int kMostReplans = 4;

std::string_view in_words(sched::Refusal refusal) {
  switch (refusal) {
    case sched::Refusal::kNone: break;
    case sched::Refusal::kQuota: return "its run would have more than its quota";
    case sched::Refusal::kNoRoom: return "its GPU has no room for it next to the memory that stays there";
    case sched::Refusal::kTogether:
      return "all allocations together would be more than the GPUs and the host memory budget hold";
    case sched::Refusal::kNothingMoves: return "it would fit, but no memory has moved for too long";
  }
  return {};
}

// As the trace has it, and so metrics.
std::string_view word_of(sched::Refusal refusal) {
  switch (refusal) {
    case sched::Refusal::kNone: break;
    case sched::Refusal::kQuota: return "quota";
    case sched::Refusal::kNoRoom: return "gpu_memory";
    case sched::Refusal::kTogether: return "host_memory";
    case sched::Refusal::kNothingMoves: return "nothing_moves";
  }
  return {};
}

}  // namespace

std::uint64_t automatic_reserve(std::uint64_t capacity) {
  return std::min(kMaxAutomaticReserve, capacity / kReserveDivisor);
}

// GPUs may come to be served later, and settings change: both are looked at when they matter.
void Rooms::adopt(GpuIndex index) {
  const Gpu& gpu = leases_.gpus().at(index.value);
  GpuState& state = gpus_.at(index.value);
  const std::uint64_t capacity = gpu.info.memory_total;
  if (capacity == 0) return;  // NVML does not say: memory is left to the driver
  const auto& set = gpu.settings.reserve;
  const std::uint64_t reserve = set.is_automatic() ? automatic_reserve(capacity) : std::min(set.value(), capacity);
  if (!state.managed) {
    state.managed = true;
    planner_.add_gpu(index, capacity, reserve);
  } else {
    planner_.set_reserve(index, reserve);
  }
}

void Rooms::opened(base::SeatId seat, const sched::SeatOwner& owner, bool gets_bound, std::uint64_t left) {
  adopt(seat.gpu);
  if (!gpus_.at(seat.gpu.value).managed) return;
  planner_.opened(leases_.now(), seat, owner, gets_bound, left);
  gpus_[seat.gpu.value].dirty = true;
  gpus_[seat.gpu.value].foreign.opened(leases_.now());
}

void Rooms::set_host_useless(std::uint64_t bytes) {
  if (std::exchange(host_useless_, bytes) == bytes) return;
  planner_.set_host_useless(bytes);
  if (!planner_.awaits_commitment()) return;
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) gpus_[i].dirty = true;
}

void Rooms::tell_foreign(GpuIndex index) {
  const base::TimePoint now = leases_.now();
  GpuState& state = gpus_[index.value];
  const sched::Togetherness all = planner_.together(index);
  const std::uint64_t capacity = planner_.capacity(index);
  const std::size_t seats = all.seats + all.suspended;
  const std::uint64_t bytes = state.foreign.expected(now, capacity, seats);
  const auto unseen = state.foreign.unseen(now, capacity, seats);
  planner_.set_other_programs(index, leases_.gpus()[index.value].has_foreign_work);
  if (planner_.set_foreign(now, index, bytes, state.foreign.seen_at(), unseen.bytes, unseen.until)) state.dirty = true;
}

std::uint64_t Rooms::closed(base::SeatId seat) {
  const std::uint64_t left = planner_.left_by(seat);
  planner_.closed(leases_.now(), seat);
  GpuState& state = gpus_.at(seat.gpu.value);
  state.foreign.closed(leases_.now());
  state.dirty = true;
  return left;
}

void Rooms::set_suspended(base::SeatId seat, bool is_suspended) {
  planner_.set_suspended(leases_.now(), seat, is_suspended);
  gpus_.at(seat.gpu.value).dirty = true;
}

void Rooms::reported(base::SeatId seat, const sched::MemoryReport& report) {
  GpuState& state = gpus_.at(seat.gpu.value);
  if (!state.managed) return;
  const std::uint64_t before = planner_.on_gpu(seat.gpu);
  const bool is_back = planner_.may_be_back(seat);
  planner_.reported(leases_.now(), seat, report);
  const std::uint64_t after = planner_.on_gpu(seat.gpu);
  const std::uint64_t more = after - std::min(after, before);
  if (is_back) state.foreign.came_back(more);
  state.foreign.heard(leases_.now(), report.moving || after != before, more);
  state.dirty = true;
  // Nobody has to wait for managed memory; but its way back belongs to what a switch costs, and not to the quantum.
  leases_.apply(sched::MemoryNeed{seat, report.evicted > 0 || report.managed_away > 0});
  // Before anybody's request that came with it: else it would be granted, and revoked at once.
  if (report.evicted > 0) resolve_mode(seat.gpu);
}

void Rooms::wanted(base::SeatId seat, std::uint32_t ticket, std::uint64_t room, std::uint64_t commitment,
                   std::uint64_t managed) {
  planner_.wanted(leases_.now(), seat, ticket, room, commitment, managed);
  gpus_.at(seat.gpu.value).dirty = true;
}

void Rooms::sampled(GpuIndex index, std::uint64_t used, base::TimePoint asked_at) {
  GpuState& state = gpus_.at(index.value);
  if (!state.managed) adopt(index);
  if (!state.managed) return;
  const std::uint64_t ours = planner_.on_gpu(index);
  state.foreign.look({.asked_at = asked_at,
                      .beyond = used > ours ? used - ours : 0,
                      .managed = planner_.managed(index),
                      .returning = planner_.returning(index)});
  if (planner_.returned(leases_.now(), index, state.foreign.left_behind())) state.dirty = true;
  tell_foreign(index);
}

bool Rooms::awaits_return() const {
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
    const GpuIndex index{static_cast<std::uint32_t>(i)};
    if (planner_.returning(index) > 0 || planner_.awaits_look(index)) return true;
  }
  return false;
}

bool Rooms::looks_again() const {
  return std::any_of(gpus_.begin(), gpus_.begin() + static_cast<std::ptrdiff_t>(leases_.gpus().size()),
                     [](const GpuState& state) { return state.foreign.look_again(); });
}

void Rooms::resolve_mode(GpuIndex index) {
  GpuState& state = gpus_[index.value];
  const Gpu& gpu = leases_.gpus()[index.value];
  const settings::Mode setting = gpu.settings.mode;
  const bool is_auto = setting == settings::Mode::kAuto;
  planner_.set_free_only(index, setting == settings::Mode::kConcurrent);
  const bool took_turns = state.mode.takes_turns_for_memory();
  // What is measured for a while, or was chosen for what it gives, says nothing of memory.
  const sched::Mode current = is_auto && state.is_by_gain ? sched::Mode::kConcurrent : gpu.mode;
  sched::Mode mode = state.mode.resolve(leases_.now(), planner_, index, setting, leases_.wants_turns(index), current);
  if (state.mode.takes_turns_for_memory() != took_turns) {
    log_info(took_turns ? "the programs on a GPU fit together: they run at once"
                        : "the programs on a GPU do not fit together: they take turns",
             {{"gpu", index.value}});
  }
  state.is_by_gain = is_auto && gpu.settings.auto_by_gain && mode == sched::Mode::kConcurrent;
  if (choose_way(index, state.is_by_gain) == sched::Way::kByTurns) mode = sched::Mode::kSerial;
  leases_.set_mode(index, mode);
}

sched::Way Rooms::choose_way(GpuIndex index, bool is_open) {
  GpuState& state = gpus_[index.value];
  const GpuSettings& set = leases_.gpus()[index.value].settings;
  const auto quantum = leases_.quantum(index);
  leases_.uses(index, situation_.seats);
  situation_.is_open = is_open && situation_.seats.size() > 1;
  situation_.turn = settings::kUnlimited;
  if (!quantum.is_unlimited() && !set.in_flight.is_unlimited())
    situation_.turn = quantum.value() + set.in_flight.value();
  const sched::Way before = state.gain.way();
  const sched::Way way = state.gain.choose(leases_.now(), situation_);
  if (state.gain.way() != before && situation_.is_open) {
    const auto& finding = state.gain.finding();
    log_info(state.gain.way() == sched::Way::kByTurns ? "the programs on a GPU get more done by turns"
                                                      : "the programs on a GPU run at once again",
             {{"gpu", index.value}, {"why", finding ? finding->why : std::string("one at most has work")}});
  }
  if (const auto question = state.gain.take_question()) {
    for (const sched::SeatUse& use : situation_.seats) {
      if (on_measure_) on_measure_(use.seat, *question);
    }
  }
  return way;
}

void Rooms::measured(base::SeatId seat, std::uint32_t question, std::uint64_t submissions) {
  GpuState& state = gpus_.at(seat.gpu.value);
  if (state.gain.told(seat, question, submissions)) state.dirty = true;
}

std::string Rooms::why(GpuIndex index) const {
  const GpuState& state = gpus_[index.value];
  const GpuSettings& set = leases_.gpus()[index.value].settings;
  if (set.mode != settings::Mode::kAuto || !state.managed) return {};
  switch (state.mode.reason()) {
    case sched::MemoryMode::Reason::kSetting:
    case sched::MemoryMode::Reason::kNotKnown: return {};
    case sched::MemoryMode::Reason::kStanding:
      return "its programs differ in priority, share or cap, or end their turns themselves: they take turns";
    case sched::MemoryMode::Reason::kLeftToDriver:
      return "a program leaves its memory to the driver, so it is not known whether all fits: they take turns";
    case sched::MemoryMode::Reason::kTooMuch: return "their memory does not fit together: they take turns";
    case sched::MemoryMode::Reason::kFits: break;
  }
  if (!set.auto_by_gain) return "their memory fits together: they run at once";
  const auto& finding = state.gain.finding();
  if (finding) return finding->why;
  return "their memory fits together: they run at once, until it is known whether turns give more";
}

bool Rooms::plan(GpuIndex index) {
  commands_.bounds.clear();
  commands_.obstructions.clear();
  commands_.expected.clear();
  commands_.evictions.clear();
  leases_.turns(index, turns_);
  planner_.plan(leases_.now(), index, turns_, commands_);
  for (const sched::RoomBound& bound : commands_.bounds) {
    if (bound.refused()) {
      log_info("an allocation is refused", {{"why", in_words(bound.refusal)},
                                            {"tenant", bound.seat.tenant.value},
                                            {"gpu", index.value},
                                            {"room", bound.room},
                                            {"commitment", bound.commitment}});
      leases_.trace_refusal(bound.seat, word_of(bound.refusal));
    }
    if (bound.is_stranded) {
      log_warning("memory that cannot leave a GPU blocks all its programs: one of them is told that it has no memory",
                  {{"tenant", bound.seat.tenant.value}, {"gpu", index.value}});
    }
    if (on_bound_) on_bound_(bound);
  }
  for (const sched::ExpectEviction& eviction : commands_.evictions) {
    if (on_expect_eviction_) on_expect_eviction_(eviction);
  }
  for (const sched::MemoryExpected& expected : commands_.expected) leases_.apply(expected);
  for (const sched::MemoryObstructed& obstruction : commands_.obstructions) leases_.apply(obstruction);
  return commands_.obstructions.empty() && commands_.expected.empty();
}

// Each of these looks at all seats of the GPU; settle() comes after every message.
void Rooms::note(GpuIndex index) {
  GpuState& state = gpus_[index.value];
  state.is_tight = planner_.is_tight(index);
  state.is_clearing = planner_.is_clearing(index);
  state.host_demand = planner_.host_demand(index);
  state.due_at = std::min({planner_.next_deadline(index).value_or(base::TimePoint::max()), state.mode.look_again(),
                           state.gain.look_again()});
}

void Rooms::settle() {
  const base::TimePoint now = leases_.now();
  auto changed = leases_.take_changed();
  deadline_.reset();
  // Host memory is for all GPUs: what has become free for one of them another may wait for.
  const bool any_dirty = std::any_of(gpus_.begin(), gpus_.end(), [](const GpuState& state) { return state.dirty; });
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
    GpuState& state = gpus_[i];
    if (!state.managed) continue;
    const GpuIndex index{static_cast<std::uint32_t>(i)};
    const std::uint64_t settings_changes = leases_.gpus()[i].settings_changes;
    if (std::exchange(state.settings_changes, settings_changes) != settings_changes) state.dirty = true;
    // A gang's last member that drains lets those on other GPUs go, too.
    const bool may_clear = state.is_clearing && changed.any();
    if (state.dirty || state.due_at <= now || ((changed[i] || any_dirty) && state.is_tight) || may_clear) {
      state.dirty = false;
      adopt(index);
      if (const std::uint64_t left = planner_.overdue(now, index); left > 0) state.foreign.keep(left);
      tell_foreign(index);  // others have come or gone, or what was expected of newcomers has had its time
      state.dirty = false;
      resolve_mode(index);
      for (int again = 0; !plan(index) && again < kMostReplans; ++again) resolve_mode(index);
      note(index);
    }
    if (state.due_at != base::TimePoint::max() && (!deadline_ || state.due_at < *deadline_)) deadline_ = state.due_at;
  }
  // Changes that the above has made itself were planned with.
  static_cast<void>(leases_.take_changed());
  if (on_settled_) on_settled_();
}

sched::HostDemand Rooms::host_demand() const {
  sched::HostDemand sum;
  for (const GpuState& state : gpus_) {
    sum.evicted += state.host_demand.evicted;
    sum.copies += state.host_demand.copies;
  }
  return sum;
}

}  // namespace gpumux::daemon
