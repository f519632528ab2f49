// SPDX-License-Identifier: Apache-2.0
#include "node/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <variant>

#include "base/deadline.h"

namespace gpumux::node {
namespace {

// A new tenant's context takes about 500 MB before the planner hears of it (H200, CUDA 13.0). The reserve is for that,
// and for contexts that grow. A small or simulated GPU keeps back in proportion.
constexpr std::uint64_t kMaxAutomaticReserve = std::uint64_t{1} << 30;
constexpr std::uint64_t kReserveDivisor = 16;

// Nothing: memory, standing and what is measured decide.
std::optional<sched::Mode> mode_set_by(const settings::GpuSettings& settings) {
  switch (settings.mode) {
    case settings::Mode::kAuto: break;
    case settings::Mode::kSerial: return sched::Mode::kSerial;
    case settings::Mode::kConcurrent: return sched::Mode::kConcurrent;
  }
  return std::nullopt;
}

std::uint64_t reserve_of(const settings::GpuSettings& settings, std::uint64_t capacity) {
  return settings.reserve.is_automatic() ? std::min(kMaxAutomaticReserve, capacity / kReserveDivisor)
                                         : std::min(settings.reserve.value(), capacity);
}

}  // namespace

void Machine::apply(TimePoint now, const Event& event, Commands& commands) {
  now_ = now;
  commands_ = &commands;
  std::visit([this](const auto& one) { on(one); }, event);
  commands_ = nullptr;
#ifdef GPUMUX_CHECKED
  if (const std::string wrong = check_invariants(); !wrong.empty()) {
    std::fprintf(stderr, "an invariant of the node machine is broken: %s\n", wrong.c_str());
    std::abort();
  }
#endif
}

// ---- events ---------------------------------------------------------------------------------------

Machine::Gpu* Machine::find(GpuIndex gpu) { return gpu.value < gpus_.size() ? &gpus_[gpu.value] : nullptr; }
const Machine::Gpu& Machine::at(GpuIndex gpu) const {
  static const Gpu kNone;
  return gpu.value < gpus_.size() ? gpus_[gpu.value] : kNone;
}

void Machine::make_stale(GpuIndex gpu) {
  if (has_memory(gpu)) gpus_[gpu.value].plan = Plan::kStale;
}

bool Machine::is_any_stale() const {
  return std::any_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.plan == Plan::kStale; });
}

void Machine::tell(const sched::Event& event) {
  told_.clear();
  leases_.apply(now_, event, told_);
  for (sched::Command& command : told_) commands_->emplace_back(std::move(command));
  if (probe_ != nullptr) probe_->told(event);
  // Work that has run on ends with a Drained or with its seat; that work runs on, time tells.
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i].has_overruns && !leases_.has_overruns({i})) make_stale({i});
  }
}

void Machine::on(const GpuAdded& event) {
  if (event.gpu.value >= base::kMaxGpus) return;
  if (event.gpu.value >= gpus_.size()) gpus_.resize(event.gpu.value + 1);
  Gpu& gpu = gpus_[event.gpu.value];
  gpu.settings = event.settings;
  gpu.mode = mode_set_by(event.settings).value_or(sched::Mode::kSerial);
  if (event.capacity > 0) memory_.add_gpu(event.gpu, event.capacity, reserve_of(event.settings, event.capacity));
  make_stale(event.gpu);
  tell(sched::GpuAdded{event.gpu, {gpu.settings, gpu.mode}, event.first_epoch});
}

void Machine::on(const SettingsChanged& event) {
  Gpu* const gpu = find(event.gpu);
  if (gpu == nullptr) return;
  gpu->settings = event.settings;
  gpu->mode = mode_set_by(event.settings).value_or(gpu->mode);
  make_stale(event.gpu);
  const std::uint64_t capacity = memory_.capacity(event.gpu);
  if (capacity > 0) memory_.add_gpu(event.gpu, capacity, reserve_of(event.settings, capacity));
  tell(sched::SettingsChanged{event.gpu, {gpu->settings, gpu->mode}});
}

void Machine::on(const WayChosen& event) {
  Gpu* const gpu = find(event.gpu);
  if (gpu == nullptr || gpu->way == event.way) return;
  gpu->way = event.way;
  make_stale(event.gpu);
}

void Machine::on(const HostBudget& event) { memory_.set_host_budget(event.bytes, event.chunk, event.reserved); }

void Machine::on(const TenantsAwaited& event) { memory_.await_tenants(event.until); }

void Machine::on(const SeatOpened& event) {
  const SeatId seat = event.lease.seat;
  tell(event.lease);
  Gpu* const gpu = find(seat.gpu);
  if (gpu == nullptr || !has_memory(seat.gpu)) return;
  memory_.opened(now_, seat, event.owner, event.is_new && !event.lease.is_suspended, event.left);
  if (event.lease.is_suspended) memory_.set_suspended(now_, seat, true);
  gpu->foreign.opened(now_, seat.tenant, event.owner.account);
  make_stale(seat.gpu);
}

void Machine::on(const sched::StandingChanged& event) {
  tell(event);
  make_stale(event.seat.gpu);
}

void Machine::close_memory(SeatId seat) {
  if (!memory_.has(seat)) return;
  memory_.closed(now_, seat);
  gpus_[seat.gpu.value].foreign.closed(now_, seat.tenant);
  make_stale(seat.gpu);
}

void Machine::on(const sched::SeatClosed& event) {
  close_memory(event.seat);
  tell(event);
}

void Machine::on(const sched::TenantGone& event) {
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) close_memory({event.tenant, {i}});
  tell(event);
}

// The planner first: when the core then revokes, the planner already knows that the seat's memory must leave.
void Machine::on(const sched::SeatsSuspended& event) {
  for (const SeatId seat : event.seats) {
    memory_.set_suspended(now_, seat, event.are_suspended);
    make_stale(seat.gpu);
  }
  tell(event);
}

void Machine::on(const MemoryReported& event) {
  const auto& [seat, report] = event;
  Gpu* const gpu = find(seat.gpu);
  if (gpu == nullptr || !has_memory(seat.gpu)) return;
  const std::uint64_t before = memory_.on_gpu(seat.gpu);
  const std::uint64_t all_before = memory_.on_gpu_and_evicted(seat.gpu);
  const bool is_back = memory_.may_be_back(seat);
  memory_.reported(now_, seat, report);
  const std::uint64_t after = memory_.on_gpu(seat.gpu);
  const std::uint64_t more = after - std::min(after, before);
  if (is_back) gpu->foreign.came_back(more);
  if (report.allocated > 0) gpu->foreign.has_context(now_, seat.tenant);
  const std::uint64_t freed = sched::minus(all_before, memory_.on_gpu_and_evicted(seat.gpu));
  gpu->foreign.heard(now_, report.moving || after != before, more, freed);
  make_stale(seat.gpu);
  // No seat has to wait for managed memory; but its way back belongs to what a switch costs, and not to the quantum.
  tell(sched::MemoryNeed{seat, report.evicted > 0 || report.managed_away > 0});
  // Before a request that came with it: else that would be granted, and revoked at once.
  if (report.evicted > 0) resolve_mode(seat.gpu);
}

void Machine::on(const RoomWanted& event) {
  if (!has_memory(event.seat.gpu)) return;
  memory_.wanted(now_, event.seat, event.ticket, event.room, event.commitment, event.managed);
  make_stale(event.seat.gpu);
}

void Machine::on(const GpuSampled& event) {
  Gpu* const gpu = find(event.gpu);
  if (gpu == nullptr || !has_memory(event.gpu)) return;
  const std::uint64_t ours = memory_.on_gpu(event.gpu);
  if (!event.other_programs) {
    gpu->others = Others::kNone;
  } else {
    gpu->others = gpu->others == Others::kNone ? Others::kSeenOnce : Others::kThere;
  }
  gpu->foreign.look({.asked_at = event.asked_at,
                     .beyond = event.used > ours ? event.used - ours : 0,
                     .managed = memory_.managed(event.gpu),
                     .returning = memory_.returning(event.gpu),
                     .untold = sched::minus(memory_.charged(event.gpu), ours)});
  const bool is_back = memory_.returned(now_, event.gpu, gpu->foreign.left_behind());
  if (memory_.looked(now_, event.asked_at, event.gpu, event.used) || is_back) make_stale(event.gpu);
  tell_foreign(event.gpu);
}

void Machine::on(const sched::TimePassed& event) {
  const auto due = leases_.next_deadline();
  if (!due || now_ < *due) return;
  tell(event);
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (!gpus_[i].has_overruns && leases_.has_overruns({i})) make_stale({i});
  }
}

// ---- mode -----------------------------------------------------------------------------------------

void Machine::set_mode(GpuIndex index, sched::Mode mode) {
  Gpu& gpu = gpus_[index.value];
  if (gpu.mode == mode) return;
  gpu.mode = mode;
  commands_->emplace_back(ModeChanged{index, mode});
  tell(sched::SettingsChanged{index, {gpu.settings, mode}});
}

void Machine::resolve_mode(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  const settings::Mode setting = gpu.settings.mode;
  memory_.set_free_only(index, setting == settings::Mode::kConcurrent);
  const bool took_turns = gpu.memory_mode.takes_turns_for_memory();
  // Turns that were chosen for what they give say nothing of memory.
  const sched::Mode current = gpu.is_open ? sched::Mode::kConcurrent : gpu.mode;
  // A unit that cannot be drained keeps all others from the GPU as long as they take turns. Those whose memory fits
  // run beside it instead.
  gpu.has_overruns = leases_.has_overruns(index);
  const bool wants_turns = leases_.wants_turns(index) && !gpu.has_overruns;
  sched::Mode mode = gpu.memory_mode.resolve(now_, memory_, index, setting, wants_turns, current);
  if (gpu.memory_mode.takes_turns_for_memory() != took_turns)
    commands_->emplace_back(TurnsForMemory{index, !took_turns});
  gpu.is_open = setting == settings::Mode::kAuto && mode == sched::Mode::kConcurrent;
  if (gpu.is_open && gpu.way == sched::Way::kByTurns && !gpu.has_overruns) mode = sched::Mode::kSerial;
  set_mode(index, mode);
}

// ---- memory ---------------------------------------------------------------------------------------

void Machine::tell_foreign(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  const std::uint64_t capacity = memory_.capacity(index);
  const sched::Foreign foreign{.bytes = gpu.foreign.expected(now_, capacity),
                               .seen_at = gpu.foreign.seen_at(),
                               .unseen = gpu.foreign.unseen(now_, capacity)};
  memory_.set_other_programs(index, gpu.others == Others::kThere);
  if (memory_.set_foreign(now_, index, foreign)) make_stale(index);
}

void Machine::on(const Rest&) {
  const bool was_any_stale = is_any_stale();
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (has_memory({i}) && wants_plan({i}, was_any_stale)) rest({i});
  }
}

bool Machine::wants_plan(GpuIndex index, bool was_any_stale) {
  const Gpu& gpu = gpus_[index.value];
  if (gpu.plan == Plan::kStale || (gpu.due_at && *gpu.due_at <= now_)) return true;
  if (gpu.plan == Plan::kStands) return false;
  // Host memory is for all GPUs: another GPU's plan may wait for what one has freed.
  if (was_any_stale) return true;
  leases_.turns(index, turns_);
  return turns_ != gpu.turns;
}

void Machine::rest(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  if (const std::uint64_t left = memory_.overdue(now_, index); left > 0) gpu.foreign.keep(left);
  tell_foreign(index);  // others have come or gone, or newcomers' contexts need not be expected any more
  plan(index);
  planned_.set(index.value);
  // Each of these looks at all seats of the GPU, and Rest comes after every message.
  gpu.plan = memory_.is_tight(index) || memory_.is_clearing(index) ? Plan::kFollowsTurns : Plan::kStands;
  gpu.host_demand = memory_.host_demand(index);
  gpu.due_at = base::earliest(memory_.next_deadline(index), gpu.memory_mode.look_again());
}

// A seat that cannot have its memory lets others go first, and turns decide which memory is needed. So the GPU is
// planned until a plan changes nothing that the lease core knows. Each plan but the last one changes it for a seat.
void Machine::plan(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  std::size_t plans = 0;
  do {
    if (plans++ > gpu.turns.size() + 1) {
      restless_ = index;
      return;
    }
    resolve_mode(index);
    leases_.turns(index, gpu.turns);
    plan_.bounds.clear();
    plan_.expected.clear();
    plan_.evictions.clear();
    if (probe_ != nullptr) probe_->planning(index, gpu.turns);
    memory_.plan(now_, index, gpu.turns, plan_);
    if (probe_ != nullptr) probe_->planned(index, gpu.turns);
    for (const sched::RoomBound& bound : plan_.bounds) commands_->emplace_back(bound);
    for (const sched::ExpectEviction& eviction : plan_.evictions) commands_->emplace_back(eviction);
    for (const sched::MemoryExpected& expected : plan_.expected) tell(expected);
  } while (!plan_.expected.empty());
}

// ---- what there is to see -------------------------------------------------------------------------

std::optional<TimePoint> Machine::next_deadline() const {
  std::optional<TimePoint> next = leases_.next_deadline();
  for (const Gpu& gpu : gpus_) next = base::earliest(next, gpu.due_at);
  return next;
}

std::optional<sched::Mode> Machine::mode(GpuIndex gpu) const {
  return gpu.value < gpus_.size() ? std::optional(gpus_[gpu.value].mode) : std::nullopt;
}

sched::HostDemand Machine::host_demand() const {
  sched::HostDemand sum;
  for (const Gpu& gpu : gpus_) {
    sum.evicted += gpu.host_demand.evicted;
    sum.copies += gpu.host_demand.copies;
  }
  return sum;
}

bool Machine::awaits_look() const {
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (memory_.returning({i}) > 0 || memory_.awaits_look({i})) return true;
  }
  return false;
}

bool Machine::looks_again() const {
  return std::any_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.foreign.look_again(); });
}

std::string Machine::check_invariants() const {
  if (restless_) return "turns and memory of GPU " + std::to_string(restless_->value) + " change each other for ever";
  std::string wrong = leases_.check_invariants();
  // Memory is as it should be once it has been planned.
  if (wrong.empty() && !is_any_stale()) wrong = memory_.check_invariants();
  return wrong;
}

}  // namespace gpumux::node
