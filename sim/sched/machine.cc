// SPDX-License-Identifier: Apache-2.0
// The GPUs of the simulated machine, what is on them, and the daemon's looks at that. room_checks.cc says what must
// hold of memory.
#include <algorithm>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

// As often as the daemon looks.
constexpr Duration kSampleEvery = 1s;
constexpr Duration kReturnedLook = 20ms;
constexpr Duration kNextLook = 100ms;

}  // namespace

void World::make_gpus() {
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    GpuMemory gpu;
    gpu.capacity = 1024 * kMiB * (1 + random_.below(4));
    gpu.chunk_time = random_.between(300us, 3ms);
    gpu_memory_.push_back(gpu);
    choose_mode(i);
  }
  // Little enough that it is used up now and then.
  host_budget_ = kMiB * gpus_ * (512 + random_.below(8192));
  if (options_.hostile) host_reserved_ = host_budget_ / 16;
}

void World::choose_mode(std::uint32_t gpu) {
  if (random_.chance(70)) settings_[gpu].mode = settings::Mode::kAuto;
  gpu_memory_[gpu].too_much_since = gpu_memory_[gpu].fits_since = TimePoint::max();
}

void World::surprise(std::uint32_t gpu, Duration how_long) {
  gpu_memory_[gpu].surprised_until = std::max(gpu_memory_[gpu].surprised_until, now_ + how_long);
}

// ---- what comes in ------------------------------------------------------------------------------

void World::reported(Rank& rank, const sched::MemoryReport& report) {
  log(std::to_string(now_.time_since_epoch().count()) + " memory " + std::to_string(rank.seat.tenant.value) + "@" +
      std::to_string(rank.seat.gpu.value) + " #" + std::to_string(report.sequence) + " " +
      std::to_string(report.resident) + " " + std::to_string(report.evicted) + " " + std::to_string(report.unpageable) +
      (report.stuck ? " stuck" : ""));
  // The seat has taken what it was promised.
  if (report.resident + report.unpageable >= rank.memory.promised) rank.memory.promised = 0;
  if (report.allocated >= rank.memory.promised_commitment) rank.memory.promised_commitment = 0;
  tell(node::MemoryReported{rank.seat, report});
}

// NVML's answer, a moment later.
void World::sample(std::uint32_t index) {
  in(random_.between(100us, 30ms), [this, index, life = daemon_life_, used_then = used(index), asked_at = now_] {
    if (!daemon_up_ || life != daemon_life_) return;
    log(std::to_string(now_.time_since_epoch().count()) + " used " + std::to_string(index) + " " +
        std::to_string(used_then) + " of which " + std::to_string(machine_->memory().on_gpu({index})));
    tell(node::GpuSampled{{index}, used_then, asked_at, true});
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
  const bool awaits_look = machine_->awaits_look();
  if (!awaits_look && !machine_->looks_again()) return;
  looks_soon_ = true;
  in(awaits_look ? kReturnedLook : kNextLook, [this] {
    looks_soon_ = false;
    for (std::uint32_t i = 0; daemon_up_ && i < gpus_; ++i) sample(i);
  });
}

// ---- planning -----------------------------------------------------------------------------------

// The simulation does not know how much programs get done. It makes the changes of mode that follow from it, as a trial
// does and more often, in the middle of whatever happens.
sched::Way World::way_of(std::uint32_t gpu) const {
  return gpu_memory_[gpu].wants_turns ? sched::Way::kByTurns : sched::Way::kAtOnce;
}

void World::change_ways() {
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    GpuMemory& gpu = gpu_memory_[i];
    if (!random_.chance(50)) continue;
    gpu.wants_turns = !gpu.wants_turns && now_.time_since_epoch() <= options_.calm_after;
    apply(node::WayChosen{{i}, way_of(i)});
  }
  rest();
  in(random_.chance(80) ? random_.between(20ms, 2s) : random_.between(1us, 5ms), [this] { change_ways(); });
}

void World::planning(GpuIndex gpu, const std::vector<sched::Turn>& /*turns*/) {
  before_ = machine_->memory().view(gpu);
}

void World::planned(GpuIndex gpu, const std::vector<sched::Turn>& turns) {
  check_plan(gpu.value, turns);
  check_promises(gpu.value, turns);
}

void World::carry_out(const sched::RoomBound& bound) {
  ++outcome_.bounds;
  log("  " + node::to_string(bound));
  Rank* const rank = rank_of(bound.seat);
  if (rank == nullptr) return;
  receive(*rank->process, [this, rank, bound] { told_room(*rank, bound); });
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
