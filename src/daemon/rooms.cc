// SPDX-License-Identifier: Apache-2.0
#include "daemon/rooms.h"

#include <algorithm>

#include "base/units.h"
#include "daemon/log.h"

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
  const std::uint64_t reserve = gpu.settings.reserve == kAutomaticReserve ? automatic_reserve(capacity)
                                                                          : std::min(gpu.settings.reserve, capacity);
  if (!state.managed) {
    state.managed = true;
    planner_.add_gpu(index, capacity, reserve);
  } else {
    planner_.set_reserve(index, reserve);
  }
}

void Rooms::opened(base::SeatId seat, sched::Quota quota, bool gets_bound) {
  adopt(seat.gpu);
  if (!gpus_.at(seat.gpu.value).managed) return;
  planner_.opened(leases_.now(), seat, quota, gets_bound);
  gpus_[seat.gpu.value].dirty = true;
  tell_foreign(seat.gpu);
}

void Rooms::tell_foreign(GpuIndex index) {
  const std::uint64_t expected = sched::expected_contexts(planner_.capacity(index), planner_.together(index).seats);
  planner_.set_foreign(leases_.now(), index, std::max(gpus_[index.value].foreign.bytes(), expected));
}

void Rooms::closed(base::SeatId seat) {
  planner_.closed(leases_.now(), seat);
  GpuState& state = gpus_.at(seat.gpu.value);
  if (state.managed) tell_foreign(seat.gpu);
  state.dirty = true;
  state.changed_at = leases_.now();
}

void Rooms::reported(base::SeatId seat, const sched::MemoryReport& report, bool is_moving) {
  GpuState& state = gpus_.at(seat.gpu.value);
  if (!state.managed) return;
  const std::uint64_t before = planner_.on_gpu(seat.gpu);
  planner_.reported(leases_.now(), seat, report);
  if (is_moving || planner_.on_gpu(seat.gpu) != before) state.changed_at = leases_.now();
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
  const base::TimePoint now = leases_.now();
  const std::uint64_t ours = planner_.on_gpu(index);
  const std::uint64_t beyond = used > ours ? used - ours : 0;
  // What seats said while NVML was asked makes the two sums ones of different moments. With a look that says too little
  // of what is not ours, what the dead have left would be given away before it is there.
  const bool is_quiet = state.changed_at < asked_at;
  state.look_again = !is_quiet;
  if (planner_.returning(index) > 0) {
    if (!is_quiet) return;
    planner_.returned(now, index, state.foreign.left_behind(beyond));
    state.dirty = true;
    if (planner_.returning(index) > 0) return;
  }
  if (!state.foreign.look(beyond, is_quiet, planner_.managed(index))) return;
  tell_foreign(index);
  state.dirty = true;
}

bool Rooms::awaits_return() const {
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
    if (planner_.returning({static_cast<std::uint32_t>(i)}) > 0) return true;
  }
  return false;
}

bool Rooms::looks_again() const {
  return std::any_of(gpus_.begin(), gpus_.begin() + static_cast<std::ptrdiff_t>(leases_.gpus().size()),
                     [](const GpuState& state) { return state.look_again; });
}

void Rooms::resolve_mode(GpuIndex index) {
  GpuState& state = gpus_[index.value];
  const Gpu& gpu = leases_.gpus()[index.value];
  const sched::MemoryMode::Setting setting{gpu.settings.auto_mode, gpu.settings.mode};
  planner_.set_free_only(index, !setting.is_auto && setting.mode == sched::Mode::kConcurrent);
  const bool took_turns = state.mode.takes_turns_for_memory();
  const sched::Mode mode =
      state.mode.resolve(leases_.now(), planner_, index, setting, leases_.wants_turns(index), gpu.mode);
  if (state.mode.takes_turns_for_memory() != took_turns) {
    log_info(took_turns ? "the programs on a GPU fit together: they run at once"
                        : "the programs on a GPU do not fit together: they take turns",
             {{"gpu", index.value}});
  }
  leases_.set_mode(index, mode);
}

bool Rooms::plan(GpuIndex index) {
  commands_.bounds.clear();
  commands_.obstructions.clear();
  commands_.evictions.clear();
  leases_.turns(index, turns_);
  planner_.plan(leases_.now(), index, turns_, commands_);
  for (const sched::RoomBound& bound : commands_.bounds) {
    if (bound.refused) {
      log_info("an allocation is refused: there will not be so much room, or nothing has moved for long",
               {{"tenant", bound.seat.tenant.value},
                {"gpu", index.value},
                {"room", bound.room},
                {"commitment", bound.commitment}});
    }
    if (on_bound_) on_bound_(bound);
  }
  for (const sched::ExpectEviction& eviction : commands_.evictions) {
    if (on_expect_eviction_) on_expect_eviction_(eviction);
  }
  for (const sched::MemoryObstructed& obstruction : commands_.obstructions) leases_.apply(obstruction);
  return commands_.obstructions.empty();
}

// Each of these looks at all seats of the GPU; settle() comes after every message.
void Rooms::note(GpuIndex index) {
  GpuState& state = gpus_[index.value];
  state.is_tight = planner_.is_tight(index);
  state.overflow = planner_.overflow(index);
  state.due_at = std::min(planner_.next_deadline(index).value_or(base::TimePoint::max()), state.mode.look_again());
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
    if (state.dirty || state.due_at <= now || ((changed[i] || any_dirty) && state.is_tight)) {
      state.dirty = false;
      adopt(index);
      resolve_mode(index);
      for (int again = 0; !plan(index) && again < kMostReplans; ++again) resolve_mode(index);
      note(index);
    }
    if (state.due_at != base::TimePoint::max() && (!deadline_ || state.due_at < *deadline_)) deadline_ = state.due_at;
  }
  // Changes that the above has made itself were planned with.
  static_cast<void>(leases_.take_changed());
}

std::uint64_t Rooms::evictable_demand() const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < leases_.gpus().size(); ++i) {
    sum += gpus_[i].overflow;
  }
  return sum;
}

}  // namespace gpumux::daemon
