// SPDX-License-Identifier: Apache-2.0
// The daemon's side of memory: the planner beside the core, looks at what GPUs hold, the mode that memory allows.
// room_checks.cc says what must hold of all that.
//
// The glue is the daemon's (daemon/gpus/rooms.cc) with messages left out: reports go to the planner and to the core,
// and when everything that has come in at once is applied, GPUs whose memory or, where it is tight, whose turns have
// changed are planned anew.
#include <algorithm>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
// As often as the daemon looks.
constexpr Duration kSampleEvery = 1s;
constexpr Duration kReturnedLook = 20ms;
constexpr Duration kNextLook = 100ms;
constexpr int kMostReplans = 4;

}  // namespace

void World::make_gpus() {
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    GpuMemory gpu;
    gpu.capacity = (1 + random_.below(4)) * 1024 * kMiB;
    gpu.reserve = gpu.capacity / 16;
    gpu.chunk_time = random_.between(300us, 3ms);
    gpu_memory_.push_back(gpu);
    choose_mode(i);
  }
  // Little enough that it is used up now and then.
  host_budget_ = gpus_ * (512 + random_.below(8192)) * kMiB;
  if (options_.hostile) host_reserved_ = host_budget_ / 16;
}

void World::choose_mode(std::uint32_t gpu) {
  GpuMemory& memory = gpu_memory_[gpu];
  memory.is_auto = random_.chance(70);
  memory.configured = settings_[gpu].mode;
  memory.too_much_since = memory.fits_since = TimePoint::max();
  if (memory.is_auto) settings_[gpu].mode = sched::Mode::kSerial;
  memory.dirty = true;
}

void World::start_planner() {
  planner_ = std::make_unique<sched::Residency>();
  planner_woken_for_ = TimePoint::max();
  planner_->set_host_budget(host_budget_ - host_reserved_, 64 * kMiB, host_reserved_);
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    GpuMemory& gpu = gpu_memory_[i];
    gpu.mode = {};
    gpu.is_by_gain = false;
    gpu.use = {};
    gpu.use.closed(now_);  // what was said to the last one is not known
    planner_->add_gpu(GpuIndex{i}, gpu.capacity, gpu.reserve);
    surprise(i, 5s);
  }
}

void World::surprise(std::uint32_t gpu, Duration how_long) {
  gpu_memory_[gpu].surprised_until = std::max(gpu_memory_[gpu].surprised_until, now_ + how_long);
}

// ---- what comes in ------------------------------------------------------------------------------

void World::open_room(Rank& rank, bool again) {
  if (!again) create_context(rank);
  sched::Quota quota;
  if (rank.job->quota > 0) quota = {.group = rank.job->number, .bytes = rank.job->quota};
  planner_->opened(now_, rank.seat, {quota, rank.job->is_hostile ? 2u : 1u}, !again);
  gpu_memory_[rank.seat.gpu.value].dirty = true;
  gpu_memory_[rank.seat.gpu.value].use.opened(now_);
  tell_foreign(rank.seat.gpu.value);
  if (rank.job->is_suspended) planner_->set_suspended(now_, rank.seat, true);
  if (again) come_back_with_memory(rank);
}

void World::close_room(Rank& rank) {
  GpuMemory& gpu = gpu_memory_[rank.seat.gpu.value];
  planner_->closed(now_, rank.seat);
  gpu.use.closed(now_);
  tell_foreign(rank.seat.gpu.value);
  gpu.dirty = true;
}

void World::reported(Rank& rank, const sched::MemoryReport& report) {
  GpuMemory& gpu = gpu_memory_[rank.seat.gpu.value];
  log(std::to_string(now_.time_since_epoch().count()) + " memory " + std::to_string(rank.seat.tenant.value) + "@" +
      std::to_string(rank.seat.gpu.value) + " #" + std::to_string(report.sequence) + " " +
      std::to_string(report.resident) + " " + std::to_string(report.evicted) + " " + std::to_string(report.unpageable) +
      (report.stuck ? " stuck" : ""));
  const std::uint64_t before = planner_->on_gpu(rank.seat.gpu);
  const bool is_back = planner_->may_be_back(rank.seat);
  planner_->reported(now_, rank.seat, report);
  const std::uint64_t after = planner_->on_gpu(rank.seat.gpu);
  const std::uint64_t more = after - std::min(after, before);
  if (is_back) gpu.use.came_back(more);
  gpu.use.heard(now_, report.moving || after != before, more);
  gpu.dirty = true;
  // What was promised has been taken.
  if (report.resident + report.unpageable >= rank.memory.promised) rank.memory.promised = 0;
  if (report.allocated >= rank.memory.promised_commitment) rank.memory.promised_commitment = 0;
  const bool was_settling = std::exchange(settling_, true);
  tell(sched::MemoryNeed{rank.seat, report.evicted > 0});
  if (report.evicted > 0) resolve_mode(rank.seat.gpu.value);
  settling_ = was_settling;
  settle_memory();
}

void World::tell_foreign(std::uint32_t index) {
  GpuMemory& gpu = gpu_memory_[index];
  const sched::Togetherness all = planner_->together(GpuIndex{index});
  const std::size_t seats = all.seats + all.suspended;
  const std::uint64_t bytes = gpu.use.expected(now_, gpu.capacity, seats);
  const auto unseen = gpu.use.unseen(now_, gpu.capacity, seats);
  planner_->set_other_programs(GpuIndex{index}, true);
  if (planner_->set_foreign(now_, GpuIndex{index}, bytes, gpu.use.seen_at(), unseen.bytes, unseen.until))
    gpu.dirty = true;
}

// What NVML says, a moment later.
void World::sample(std::uint32_t index) {
  in(random_.between(100us, 30ms), [this, index, life = daemon_life_, used_then = used(index), asked_at = now_] {
    if (!daemon_up_ || life != daemon_life_) return;
    const GpuIndex gpu_index{index};
    GpuMemory& gpu = gpu_memory_[index];
    const std::uint64_t ours = planner_->on_gpu(gpu_index);
    log(std::to_string(now_.time_since_epoch().count()) + " used " + std::to_string(index) + " " +
        std::to_string(used_then) + " of which " + std::to_string(ours));
    gpu.use.look({.asked_at = asked_at,
                  .beyond = used_then > ours ? used_then - ours : 0,
                  .returning = planner_->returning(gpu_index)});
    if (planner_->returned(now_, gpu_index, gpu.use.left_behind())) gpu.dirty = true;
    tell_foreign(index);
    settle_memory();
  });
}

void World::sample_all() {
  if (daemon_up_) {
    for (std::uint32_t i = 0; i < gpus_; ++i) sample(i);
  }
  in(kSampleEvery, [this] { sample_all(); });
}

// Sooner, as long as memory of the dead is waited for, or the last look said nothing.
void World::look_soon() {
  if (looks_soon_ || !daemon_up_) return;
  bool awaits_return = false, looks_again = false;
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    awaits_return = awaits_return || planner_->returning(GpuIndex{i}) > 0 || planner_->awaits_look(GpuIndex{i});
    looks_again = looks_again || gpu_memory_[i].use.look_again();
  }
  if (!awaits_return && !looks_again) return;
  looks_soon_ = true;
  in(awaits_return ? kReturnedLook : kNextLook, [this] {
    looks_soon_ = false;
    for (std::uint32_t i = 0; daemon_up_ && i < gpus_; ++i) sample(i);
  });
}

// ---- planning -----------------------------------------------------------------------------------

void World::settle_memory() {
  if (settling_ || !daemon_up_ || !outcome_.wrong.empty()) return;
  settling_ = true;
  planner_->set_host_useless(host_useless());
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    GpuMemory& gpu = gpu_memory_[i];
    const auto planned_at = planner_->next_deadline(GpuIndex{i});
    const bool is_due = gpu.mode.look_again() <= now_ || (planned_at && *planned_at <= now_);
    if (!gpu.dirty && !is_due && !planner_->is_tight(GpuIndex{i}) && !planner_->is_clearing(GpuIndex{i})) continue;
    if (const std::uint64_t left = planner_->overdue(now_, GpuIndex{i}); left > 0) gpu.use.keep(left);
    tell_foreign(i);
    gpu.dirty = false;
    resolve_mode(i);
    for (int again = 0; !plan(i) && again < kMostReplans; ++again) resolve_mode(i);
  }
  settling_ = false;
  check_memory();
  wake_planner();
  look_soon();
}

void World::resolve_mode(std::uint32_t index) {
  GpuMemory& gpu = gpu_memory_[index];
  const bool free_only = !gpu.is_auto && gpu.configured == sched::Mode::kConcurrent;
  planner_->set_free_only(GpuIndex{index}, free_only);
  const sched::Mode current = gpu.is_auto && gpu.is_by_gain ? sched::Mode::kConcurrent : settings_[index].mode;
  const settings::Mode setting = gpu.is_auto ? settings::Mode::kAuto
                                 : free_only ? settings::Mode::kConcurrent
                                             : settings::Mode::kSerial;
  sched::Mode mode =
      gpu.mode.resolve(now_, *planner_, GpuIndex{index}, setting, core_->wants_turns(GpuIndex{index}), current);
  gpu.is_by_gain = gpu.is_auto && mode == sched::Mode::kConcurrent;
  if (gpu.is_by_gain && gpu.wants_turns) mode = sched::Mode::kSerial;
  if (mode == settings_[index].mode) return;
  ++outcome_.mode_changes;
  settings_[index].mode = mode;
  tell(sched::SettingsChanged{GpuIndex{index}, settings_[index]});
}

// What programs get done is not simulated, but what follows from it: changes of mode to and fro, as a trial makes them
// and more often, in the middle of whatever happens.
void World::change_ways() {
  for (GpuMemory& gpu : gpu_memory_) {
    if (!random_.chance(50)) continue;
    gpu.wants_turns = !gpu.wants_turns && now_.time_since_epoch() <= options_.calm_after;
    gpu.dirty = true;
  }
  settle_memory();
  in(random_.chance(80) ? random_.between(20ms, 2s) : random_.between(1us, 5ms), [this] { change_ways(); });
}

bool World::plan(std::uint32_t index) {
  const sched::GpuMemory before = planner_->view(GpuIndex{index});
  std::vector<sched::Turn> turns;
  core_->turns(GpuIndex{index}, turns);
  sched::ResidencyCommands commands;
  planner_->plan(now_, GpuIndex{index}, turns, commands);
  for (const sched::RoomBound& bound : commands.bounds) carry_out(bound, turns);
  check_plan(index, before, turns);
  for (const sched::MemoryExpected& expected : commands.expected) tell(expected);
  for (const sched::MemoryObstructed& obstruction : commands.obstructions) tell(obstruction);
  return commands.obstructions.empty() && commands.expected.empty();
}

void World::carry_out(const sched::RoomBound& bound, const std::vector<sched::Turn>& turns) {
  ++outcome_.bounds;
  log("  room " + std::to_string(bound.seat.tenant.value) + "@" + std::to_string(bound.seat.gpu.value) + " #" +
      std::to_string(bound.sequence) + " " + std::to_string(bound.room) + " " + std::to_string(bound.commitment) + " " +
      std::to_string(bound.ticket) + (bound.refused() ? " refused" : ""));
  Rank* const rank = rank_of(bound.seat);
  if (rank == nullptr) return;
  SimulatedMemory& memory = rank->memory;
  const auto turn = std::find_if(turns.begin(), turns.end(), [&](const auto& one) { return one.seat == bound.seat; });
  const bool holds = turn != turns.end() && turn->kind == sched::TurnKind::kHolding;
  if (!holds) memory.promised_until = TimePoint();
  // (What other programs take, and what somebody has who was stopped and unheard of, is nobody's to promise.)
  const bool is_as_then = planner_->view(bound.seat.gpu).foreign <= memory.promised_beside &&
                          now_ > gpu_memory_[bound.seat.gpu.value].surprised_until;
  if (now_ < memory.promised_until && is_as_then &&
      (bound.room < memory.promised || bound.commitment < memory.promised_commitment))
    fail(name(bound.seat) + " holds its lease, was given room for what it asked for, and loses it at once: " +
         std::to_string(memory.promised) + ", " + std::to_string(bound.room) + describe(bound.seat.gpu.value));
  // The first bound with a wish's ticket is its answer: those that follow it say nothing of the wish, refused or not.
  const bool answers = memory.waits && bound.ticket == memory.ticket && memory.answered_ticket != bound.ticket;
  if (answers) memory.answered_ticket = bound.ticket;
  if (answers && holds && !bound.refused() && bound.room >= memory.wanted_room) {
    memory.promised = memory.wanted_room;
    memory.promised_commitment = memory.wanted_commitment;
    memory.promised_beside = planner_->view(bound.seat.gpu).foreign;
    memory.promised_until = memory.kept_until = now_ + sched::kTakePatience;
  }
  receive(*rank->process, [this, rank, bound] { told_room(*rank, bound); });
}

void World::wake_planner() {
  TimePoint next = TimePoint::max();
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    next = std::min(next, planner_->next_deadline(GpuIndex{i}).value_or(TimePoint::max()));
    next = std::min(next, gpu_memory_[i].mode.look_again());
  }
  if (next >= planner_woken_for_) return;
  planner_woken_for_ = next;
  at(next, [this, life = daemon_life_, next] {
    if (!daemon_up_ || life != daemon_life_ || planner_woken_for_ != next) return;
    planner_woken_for_ = TimePoint::max();
    log(std::to_string(now_.time_since_epoch().count()) + " plan");
    settle_memory();
  });
}

// ---- the machine --------------------------------------------------------------------------------

std::uint64_t World::used(std::uint32_t index) const {
  const GpuMemory& gpu = gpu_memory_[index];
  std::uint64_t sum = gpu.foreign + gpu.returning;
  for (const auto& [tenant, process] : by_tenant_) {
    if (!process->alive) continue;
    for (const auto& rank : process->ranks) {
      if (rank->seat.gpu.value == index) sum += rank->memory.on_gpu();
    }
  }
  return sum;
}

void World::disturb_memory() {
  if (now_.time_since_epoch() > options_.calm_after) {
    for (GpuMemory& gpu : gpu_memory_) gpu.foreign = 0;
    return;
  }
  const std::uint32_t index = random_.below(gpus_);
  GpuMemory& gpu = gpu_memory_[index];
  if (random_.chance(20)) {
    host_closed_until_ = now_ + random_.between(1ms, 2s);
    troubled_at_ = std::max(troubled_at_, host_closed_until_);
  } else {
    const std::uint64_t free = gpu.capacity - used(index);
    const std::uint64_t wanted = random_.chance(50) ? 0 : random_.next() % (gpu.capacity / 3);
    const std::uint64_t before = std::exchange(gpu.foreign, std::min(wanted, gpu.foreign + free));
    // Looks find out in two seconds or so.
    if (gpu.foreign > before) surprise(index, options_.overloaded ? 15s : 5s);
    if (gpu.foreign != before) troubled_at_ = std::max(troubled_at_, now_ + 3s);
  }
  in(random_.between(10ms, 3s), [this] { disturb_memory(); });
}

}  // namespace gpumux::simsched
