// SPDX-License-Identifier: Apache-2.0
// Jobs that stand still: the part of the daemon's job queue, and its invariants.
//
// All programs of a job are suspended in one step. No process is frozen before the daemon's side says that nothing of
// the job is on its way any more. A job that does not get there in time goes on. A frozen process does nothing and
// reads nothing, also if the daemon is restarted. It comes back when it has been thawed, and is suspended still then.
// It is resumed a little later.
//
// Invariants: a suspended seat that has drained never submits, and is not granted (carry_out). Its memory leaves, if
// host memory can take it. Nothing at all is said to a frozen process (receive), and it is not taken to be silent. The
// checks of all others' waiting go on as if nothing were the matter: no seat may wait for one that stands still.
#include <algorithm>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

constexpr Duration kLook = 3ms;
// Restarts, stops and stalls add this much to the time that moving takes.
constexpr Duration kLongestClearing = 5s;

}  // namespace

void World::disturb_runs() {
  if (now_.time_since_epoch() > options_.calm_after) return;
  suspend(*jobs_[random_.below(jobs_.size())]);
  in(random_.chance(80) ? random_.between(10ms, 2s) : random_.between(1us, 5ms), [this] { disturb_runs(); });
}

void World::suspend(Job& job) {
  if (!job.alive || job.is_suspended || !daemon_up_) return;
  ++outcome_.suspensions;
  job.is_suspended = true;
  ++job.suspensions;
  job.disturbed = TimePoint::max();
  tell_suspended(job);
  follow(job, now_ + (random_.chance(30) ? random_.between(1us, 100ms) : random_.between(1s, 8s)));
}

void World::go_on(Job& job) {
  if (!job.is_suspended) return;
  job.is_suspended = false;
  job.clearing_since = TimePoint::max();
  if (!job.alive) return;
  job.disturbed = now_ + 3s;
  tell_suspended(job);
}

// Where all run at once in any case (free_only), all memory has a place, also that of a job that goes on and what was
// evicted before. Memory that was promised to others while it had none cannot be had any more.
void World::void_promises(std::uint32_t gpu) {
  if (settings_[gpu].mode != settings::Mode::kConcurrent) return;
  for (const auto& [tenant, process] : by_tenant_) {
    for (const auto& rank : process->ranks) {
      if (rank->seat.gpu.value == gpu) rank->memory.promised_until = TimePoint();
    }
  }
}

// Programs that are not connected hear of it when they connect.
void World::tell_suspended(Job& job) {
  std::vector<SeatId> seats;
  for (const Rank* rank : job.ranks) {
    if (!rank->process->alive || rank->process->connected_to != daemon_life_ || !rank->process->settled) continue;
    seats.push_back(rank->seat);
    if (!options_.memory) continue;
    if (!job.is_suspended) void_promises(rank->seat.gpu.value);
  }
  if (!daemon_up_ || seats.empty()) return;
  tell(sched::SeatsSuspended{seats, job.is_suspended});
}

// Until it may be frozen, or its time for that is over.
void World::follow(Job& job, TimePoint patience) {
  if (!job.alive || !job.is_suspended) return go_on(job);
  if (is_parked(job)) return freeze(job);
  if (now_ >= patience) {
    ++outcome_.not_frozen;
    return go_on(job);
  }
  in(kLook, [this, &job, patience, which = job.suspensions] {
    if (which == job.suspensions) follow(job, patience);
  });
}

bool World::is_drained(const Job& job) const {
  return daemon_up_ && std::all_of(job.ranks.begin(), job.ranks.end(), [this](const Rank* rank) {
           return is_present(*rank->process) && !rank->process->stopped &&
                  machine_->leases().phase(rank->seat) == sched::SeatPhase::kSuspended;
         });
}

bool World::is_parked(const Job& job) const {
  if (!is_drained(job)) return false;
  if (!options_.memory) return true;
  return std::all_of(job.ranks.begin(), job.ranks.end(), [this](const Rank* rank) {
    const auto memory = machine_->memory().view(rank->seat);
    return memory && memory->speaks && memory->is_told && memory->report.resident == 0 && !memory->report.moving;
  });
}

void World::freeze(Job& job) {
  ++outcome_.freezes;
  for (const auto& process : job.processes) {
    for (const auto& rank : process->ranks) {
      if (rank->memory.resident > 0) fail("a process is frozen that has memory on its GPU");
    }
    process->stopped = process->frozen = true;
  }
  in(random_.chance(20) ? random_.between(1us, 10ms) : random_.between(10ms, 6s),
     [this, &job, which = job.suspensions] {
       if (which == job.suspensions) thaw(job);
     });
}

void World::thaw(Job& job) {
  for (const auto& process : job.processes) {
    if (!std::exchange(process->frozen, false) || !process->alive) continue;
    wake(*process);
    if (!options_.memory) continue;
    // It reports now what the driver took for it a moment before it was frozen.
    for (const auto& rank : process->ranks) {
      surprise(rank->seat.gpu.value, 3s);
      report_soon(*rank);
    }
  }
  in(random_.between(1us, 20ms), [this, &job, which = job.suspensions] {
    if (which == job.suspensions) go_on(job);
  });
}

// Drained, its memory leaves.
void World::check_suspended() {
  for (const auto& job : jobs_) {
    const bool has_memory =
        std::any_of(job->ranks.begin(), job->ranks.end(), [](const Rank* rank) { return rank->memory.resident > 0; });
    const bool is_clearing = options_.memory && job->alive && job->is_suspended && has_memory && is_drained(*job) &&
                             now_ > troubled_at_ && can_host_hold();
    job->clearing_since = is_clearing ? std::min(job->clearing_since, now_) : TimePoint::max();
    if (!is_clearing) continue;
    Duration moves{};
    for (const GpuMemory& gpu : gpu_memory_)
      moves += gpu.chunk_time * static_cast<std::int64_t>(gpu.capacity / (std::uint64_t{64} << 20) + 1);
    if (now_ - job->clearing_since > moves + kLongestClearing)
      fail("job " + std::to_string(job->number) + " is suspended, and its memory stays" +
           describe(job->ranks.front()->seat.gpu.value) + describe_turns());
  }
}

}  // namespace gpumux::simsched
