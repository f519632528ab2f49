// SPDX-License-Identifier: Apache-2.0
#include "node/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <variant>

namespace gpumux::node {
namespace {

// A new tenant's context takes about 500 MB before anybody is asked (H200, CUDA 13.0): room for that, and for what
// grows in those that are there. A small or simulated GPU keeps back in proportion.
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
  return settings.reserve.is_automatic() ? automatic_reserve(capacity) : std::min(settings.reserve.value(), capacity);
}

}  // namespace

std::uint64_t automatic_reserve(std::uint64_t capacity) {
  return std::min(kMaxAutomaticReserve, capacity / kReserveDivisor);
}

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

// ---- what is told to whom -------------------------------------------------------------------------

Machine::Gpu* Machine::find(GpuIndex gpu) { return gpu.value < gpus_.size() ? &gpus_[gpu.value] : nullptr; }
const Machine::Gpu* Machine::find(GpuIndex gpu) const { return gpu.value < gpus_.size() ? &gpus_[gpu.value] : nullptr; }

void Machine::tell(const sched::Event& event) {
  told_.clear();
  leases_.apply(now_, event, told_);
  for (sched::Command& command : told_) commands_->emplace_back(std::move(command));
  if (probe_ != nullptr) probe_->told(event);
}

void Machine::on(const GpuAdded& event) {
  if (event.gpu.value >= base::kMaxGpus) return;
  if (event.gpu.value >= gpus_.size()) gpus_.resize(event.gpu.value + 1);
  Gpu& gpu = gpus_[event.gpu.value];
  gpu.settings = event.settings;
  gpu.mode = mode_set_by(event.settings).value_or(sched::Mode::kSerial);
  gpu.is_dirty = true;
  gpu.has_memory = event.capacity != 0;
  if (gpu.has_memory) memory_.add_gpu(event.gpu, event.capacity, reserve_of(event.settings, event.capacity));
  tell(sched::GpuAdded{event.gpu, {gpu.settings, gpu.mode}, event.first_epoch});
}

void Machine::on(const SettingsChanged& event) {
  Gpu* const gpu = find(event.gpu);
  if (gpu == nullptr) return;
  gpu->settings = event.settings;
  gpu->mode = mode_set_by(event.settings).value_or(gpu->mode);
  gpu->is_dirty = true;
  if (gpu->has_memory) memory_.set_reserve(event.gpu, reserve_of(event.settings, memory_.capacity(event.gpu)));
  tell(sched::SettingsChanged{event.gpu, {gpu->settings, gpu->mode}});
}

void Machine::on(const WayChosen& event) {
  Gpu* const gpu = find(event.gpu);
  if (gpu == nullptr || gpu->way == event.way) return;
  gpu->way = event.way;
  gpu->is_dirty = true;
}

void Machine::on(const HostBudget& event) { memory_.set_host_budget(event.bytes, event.chunk, event.reserved); }

void Machine::on(const TenantsAwaited& event) { memory_.await_tenants(event.until); }

void Machine::on(const SeatOpened& event) {
  const SeatId seat = event.lease.seat;
  tell(event.lease);
  Gpu* const gpu = find(seat.gpu);
  if (gpu == nullptr || !gpu->has_memory) return;
  memory_.opened(now_, seat, event.owner, event.is_new && !event.lease.is_suspended, event.left);
  if (event.lease.is_suspended) memory_.set_suspended(now_, seat, true);
  gpu->foreign.opened(now_);
  gpu->is_dirty = true;
}

void Machine::on(const sched::StandingChanged& event) {
  tell(event);
  if (Gpu* const gpu = find(event.seat.gpu)) gpu->is_dirty = true;
}

void Machine::close_memory(SeatId seat) {
  if (!memory_.has(seat)) return;
  memory_.closed(now_, seat);
  Gpu& gpu = gpus_[seat.gpu.value];
  gpu.foreign.closed(now_);
  gpu.is_dirty = true;
}

void Machine::on(const sched::SeatClosed& event) {
  close_memory(event.seat);
  tell(event);
}

void Machine::on(const sched::TenantGone& event) {
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) close_memory({event.tenant, {i}});
  tell(event);
}

// The planner first: what it is told when the core revokes is then for a seat that is to go.
void Machine::suspend_memory(const std::vector<SeatId>& seats, bool is_suspended) {
  for (const SeatId seat : seats) {
    memory_.set_suspended(now_, seat, is_suspended);
    if (Gpu* const gpu = find(seat.gpu)) gpu->is_dirty = true;
  }
}

void Machine::on(const sched::SeatsSuspended& event) {
  suspend_memory(event.seats, true);
  tell(event);
}

void Machine::on(const sched::SeatsResumed& event) {
  suspend_memory(event.seats, false);
  tell(event);
}

void Machine::on(const MemoryReported& event) {
  const auto& [seat, report] = event;
  Gpu* const gpu = find(seat.gpu);
  if (gpu == nullptr || !gpu->has_memory) return;
  const std::uint64_t before = memory_.on_gpu(seat.gpu);
  const bool is_back = memory_.may_be_back(seat);
  memory_.reported(now_, seat, report);
  const std::uint64_t after = memory_.on_gpu(seat.gpu);
  const std::uint64_t more = after - std::min(after, before);
  if (is_back) gpu->foreign.came_back(more);
  gpu->foreign.heard(now_, report.moving || after != before, more);
  gpu->is_dirty = true;
  // Nobody has to wait for managed memory; but its way back belongs to what a switch costs, and not to the quantum.
  tell(sched::MemoryNeed{seat, report.evicted > 0 || report.managed_away > 0});
  // Before anybody's request that came with it: else it would be granted, and revoked at once.
  if (report.evicted > 0) resolve_mode(seat.gpu);
}

void Machine::on(const RoomWanted& event) {
  Gpu* const gpu = find(event.seat.gpu);
  if (gpu == nullptr) return;
  memory_.wanted(now_, event.seat, event.ticket, event.room, event.commitment, event.managed);
  gpu->is_dirty = true;
}

void Machine::on(const GpuSampled& event) {
  Gpu* const gpu = find(event.gpu);
  if (gpu == nullptr || !gpu->has_memory) return;
  const std::uint64_t ours = memory_.on_gpu(event.gpu);
  gpu->has_other_programs = event.other_programs && gpu->were_others_seen;
  gpu->were_others_seen = event.other_programs;
  gpu->foreign.look({.asked_at = event.asked_at,
                     .beyond = event.used > ours ? event.used - ours : 0,
                     .managed = memory_.managed(event.gpu),
                     .returning = memory_.returning(event.gpu)});
  if (memory_.returned(now_, event.gpu, gpu->foreign.left_behind())) gpu->is_dirty = true;
  tell_foreign(event.gpu);
}

void Machine::on(const sched::TimePassed& event) {
  const auto due = leases_.next_deadline();
  if (due && *due <= now_) tell(event);
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
  sched::Mode mode = gpu.memory_mode.resolve(now_, memory_, index, setting, leases_.wants_turns(index), current);
  if (gpu.memory_mode.takes_turns_for_memory() != took_turns)
    commands_->emplace_back(TurnsForMemory{index, !took_turns});
  gpu.is_open = setting == settings::Mode::kAuto && mode == sched::Mode::kConcurrent;
  if (gpu.is_open && gpu.way == sched::Way::kByTurns) mode = sched::Mode::kSerial;
  set_mode(index, mode);
}

// ---- memory ---------------------------------------------------------------------------------------

void Machine::tell_foreign(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  const sched::Togetherness all = memory_.together(index);
  const std::uint64_t capacity = memory_.capacity(index);
  const std::size_t seats = all.seats + all.suspended;
  const std::uint64_t bytes = gpu.foreign.expected(now_, capacity, seats);
  const auto unseen = gpu.foreign.unseen(now_, capacity, seats);
  memory_.set_other_programs(index, gpu.has_other_programs);
  if (memory_.set_foreign(now_, index, bytes, gpu.foreign.seen_at(), unseen.bytes, unseen.until)) gpu.is_dirty = true;
}

void Machine::on(const Rest& event) {
  if (std::exchange(host_useless_, event.host_useless) != event.host_useless) {
    memory_.set_host_useless(event.host_useless);
    if (memory_.awaits_commitment()) {
      for (Gpu& gpu : gpus_) gpu.is_dirty = true;
    }
  }
  const bool is_any_dirty = std::any_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.is_dirty; });
  for (std::uint32_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i].has_memory && wants_plan({i}, is_any_dirty)) rest({i});
  }
}

bool Machine::wants_plan(GpuIndex index, bool is_any_dirty) {
  const Gpu& gpu = gpus_[index.value];
  if (gpu.is_dirty || gpu.due_at <= now_) return true;
  if (!gpu.depends_on_turns) return false;
  // Host memory is for all GPUs: what has become free for one of them another may wait for.
  if (is_any_dirty) return true;
  leases_.turns(index, turns_);
  return turns_ != gpu.turns;
}

void Machine::rest(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  if (const std::uint64_t left = memory_.overdue(now_, index); left > 0) gpu.foreign.keep(left);
  tell_foreign(index);  // others have come or gone, or what was expected of newcomers has had its time
  gpu.is_dirty = false;
  plan(index);
  planned_.set(index.value);
  // Each of these looks at all seats of the GPU, and Rest comes after every message.
  gpu.depends_on_turns = memory_.is_tight(index) || memory_.is_clearing(index);
  gpu.host_demand = memory_.host_demand(index);
  gpu.due_at = std::min(memory_.next_deadline(index).value_or(TimePoint::max()), gpu.memory_mode.look_again());
}

// A seat that cannot have its memory lets others go first, and turns decide which memory is needed. So the GPU is
// planned until a plan changes nothing that the lease core knows. Each plan but the last one changes it for a seat.
void Machine::plan(GpuIndex index) {
  Gpu& gpu = gpus_[index.value];
  std::size_t plans = 0;
  do {
    if (plans++ > gpu.turns.size() + 1) {
      is_restless_ = true;
      return;
    }
    resolve_mode(index);
    leases_.turns(index, gpu.turns);
  } while (plan_once(index, gpu.turns));
}

// Whether the lease core was told anything.
bool Machine::plan_once(GpuIndex index, const std::vector<sched::Turn>& turns) {
  plan_.bounds.clear();
  plan_.obstructions.clear();
  plan_.expected.clear();
  plan_.evictions.clear();
  if (probe_ != nullptr) probe_->planning(index, turns);
  memory_.plan(now_, index, turns, plan_);
  if (probe_ != nullptr) probe_->planned(index, turns);
  for (const sched::RoomBound& bound : plan_.bounds) commands_->emplace_back(bound);
  for (const sched::ExpectEviction& eviction : plan_.evictions) commands_->emplace_back(eviction);
  for (const sched::MemoryExpected& expected : plan_.expected) tell(expected);
  for (const sched::MemoryObstructed& obstruction : plan_.obstructions) tell(obstruction);
  return !plan_.expected.empty() || !plan_.obstructions.empty();
}

// ---- what there is to see -------------------------------------------------------------------------

std::optional<TimePoint> Machine::next_deadline() const {
  TimePoint next = leases_.next_deadline().value_or(TimePoint::max());
  for (const Gpu& gpu : gpus_) {
    if (gpu.has_memory) next = std::min(next, gpu.due_at);
  }
  return next == TimePoint::max() ? std::nullopt : std::optional(next);
}

std::optional<sched::Mode> Machine::mode(GpuIndex gpu) const {
  const Gpu* const found = find(gpu);
  return found == nullptr ? std::nullopt : std::optional(found->mode);
}

sched::MemoryMode::Reason Machine::mode_reason(GpuIndex gpu) const {
  const Gpu* const found = find(gpu);
  return found == nullptr ? sched::MemoryMode::Reason::kNotKnown : found->memory_mode.reason();
}

bool Machine::is_open(GpuIndex gpu) const {
  const Gpu* const found = find(gpu);
  return found != nullptr && found->is_open;
}

sched::Way Machine::way(GpuIndex gpu) const {
  const Gpu* const found = find(gpu);
  return found == nullptr ? sched::Way::kAtOnce : found->way;
}

bool Machine::has_other_programs(GpuIndex gpu) const {
  const Gpu* const found = find(gpu);
  return found != nullptr && found->has_other_programs;
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
  if (is_restless_) return "turns and memory of a GPU change each other without an end";
  std::string wrong = leases_.check_invariants();
  // Memory is as it should be once it has been planned.
  const bool is_planned = std::none_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.is_dirty; });
  if (wrong.empty() && is_planned) wrong = memory_.check_invariants();
  return wrong;
}

}  // namespace gpumux::node
