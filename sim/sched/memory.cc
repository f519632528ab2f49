// SPDX-License-Identifier: Apache-2.0
// Seats' memory: programs that allocate and free, and the library's pager thread, which goes where the daemon's
// bounds say.
//
// As in the library: a thread that is let through by the gate allocates on the GPU, if its bounds allow it. Another
// one's allocation is born evicted. A thread that may not have what it wants asks the daemon, waits for the answer and
// tries again, a few times. The pager thread evicts when the seat is drained, and restores whenever it may, a chunk at
// a time. It says what the seat has when that has become less, when it has arrived, or when a bound is in force.
// Evicted memory keeps the program's work from running.
#include <algorithm>
#include <array>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

// The pager's chunks are of this size and more.
constexpr std::uint64_t kChunk = 64 * kMiB;
// As in the library: how often an allocation asks before it fails, how often the mover looks, when it calls itself
// stuck.
constexpr std::uint32_t kAttempts = 4;
constexpr Duration kDrainLook = 500us;
constexpr Duration kFirstRetry = 2ms;
constexpr Duration kLongestRetry = 100ms;
constexpr Duration kStuckAfter = 500ms;
constexpr Duration kReportEvery = 250ms;
// Looks a second apart have shown by then what a late report had hidden.
constexpr Duration kLooksCorrect = 5s;

}  // namespace

// ---- programs -----------------------------------------------------------------------------------

// Small ones next to large ones: the largest would fill the GPU.
void World::choose_memory(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  const GpuMemory& gpu = gpu_memory_[rank.seat.gpu.value];
  const std::array<std::uint32_t, 4> percent{2 + random_.below(10), 10 + random_.below(30), 30 + random_.below(40),
                                             60 + random_.below(40)};
  memory.most = gpu.capacity / 100 * percent[random_.below(percent.size())] / kMiB * kMiB;
}

// The driver's own, while the process begins; where the GPU is full it asks for it later.
void World::create_context(Rank& rank) {
  const GpuMemory& gpu = gpu_memory_[rank.seat.gpu.value];
  const std::uint64_t wanted = gpu.capacity / 256 * (1 + random_.below(4));
  if (used(rank.seat.gpu.value) + wanted <= gpu.capacity) rank.memory.context = wanted;
}

// Between two bursts, when nothing of its own runs.
void World::choose_allocation(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  if (memory.asked != 0 || rank.poisoned) return;
  const std::uint64_t has = memory.allocated();
  if (has < memory.most && random_.chance(has == 0 ? 100 : 40)) {
    memory.by_driver = random_.chance(4);
    const std::uint64_t least = memory.most / (memory.by_driver ? 64 : 8);
    memory.asked = (least + random_.next() % (memory.most / (memory.by_driver ? 32 : 2))) / kMiB * kMiB + kMiB;
    memory.attempts = 0;
    memory.refused = false;
  } else if (random_.chance(5)) {
    free_some(rank);
  }
}

void World::free_some(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  if (memory.job != SimulatedMemory::Job::kNone) return;
  const std::uint32_t percent = random_.chance(20) ? 100 : random_.below(60);
  const std::uint64_t resident = memory.resident / 100 * percent;
  const std::uint64_t evicted = memory.evicted / 100 * percent;
  memory.resident -= resident;
  memory.evicted -= evicted;
  return_host(rank);
  if (random_.chance(30)) memory.unpageable = 0;
  report_soon(rank);
  look(rank, 0ns);
}

// False: the thread waits.
bool World::allocate(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  if (memory.waits || !memory.is_bounded) return false;
  if (memory.by_driver) return allocate_by_driver(rank);
  const bool on_gpu = rank.granted && has_memory(rank);
  const bool is_committed = memory.allocated() + memory.asked <= memory.bound.commitment;
  if (is_committed && !on_gpu) {
    // Nothing of it has been written yet: it takes no host memory.
    memory.evicted += memory.asked;
  } else if (is_committed && memory.has() + memory.asked <= memory.bound.room) {
    if (!take(rank, memory.asked)) {
      // Other memory may come back in a moment.
      if (++memory.attempts > 2 * kAttempts) return refuse_allocation(rank), true;
      in(100ms, [this, &rank] { run_thread(rank); });
      return false;
    }
    memory.resident += memory.asked;
  } else {
    if (memory.attempts >= kAttempts || memory.refused) return refuse_allocation(rank), true;
    ++memory.attempts;
    want_room(rank, on_gpu);
    return false;
  }
  memory.asked = 0;
  report_soon(rank);
  look(rank, 0ns);
  return true;
}

// A module, an array: only the driver can make it. Where it finds no room, the lease comes first, and then the daemon
// is asked.
bool World::allocate_by_driver(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  const std::uint64_t free = gpu_memory_[rank.seat.gpu.value].capacity - used(rank.seat.gpu.value);
  if (memory.asked <= free) {
    memory.unpageable += std::exchange(memory.asked, 0);
    // It takes what others may have been promised.
    if (memory.on_gpu() - memory.context > memory.bound.room || memory.allocated() > memory.bound.commitment)
      surprise(rank.seat.gpu.value, 3s);
    report_soon(rank);
    look(rank, 0ns);
    return true;
  }
  if (memory.attempts >= kAttempts || memory.refused) return refuse_allocation(rank), true;
  if (block(rank) || !rank.granted) return false;
  ++memory.attempts;
  want_room(rank, true);
  return false;
}

// cuMemAlloc has failed. The program makes do with what it has.
void World::refuse_allocation(Rank& rank) {
  rank.memory.asked = 0;
  rank.memory.most = rank.memory.allocated();
}

void World::want_room(Rank& rank, bool on_gpu) {
  SimulatedMemory& memory = rank.memory;
  memory.waits = true;
  memory.wanted_room = on_gpu ? memory.has() + memory.asked : 0;
  memory.wanted_commitment = memory.allocated() + memory.asked;
  memory.wanted_in = on_gpu ? rank.epoch : LeaseEpoch{};
  memory.wanted_at = now_;
  ++memory.ticket;
  ++outcome_.wishes;
  send_action(*rank.process,
              [this, &rank, ticket = memory.ticket, room = memory.wanted_room, commitment = memory.wanted_commitment] {
                log(std::to_string(now_.time_since_epoch().count()) + " wanted " +
                    std::to_string(rank.seat.tenant.value) + "@" + std::to_string(rank.seat.gpu.value) + " #" +
                    std::to_string(ticket) + " " + std::to_string(room) + " " + std::to_string(commitment));
                tell(node::RoomWanted{rank.seat, ticket, room, commitment});
              });
}

void World::told_room(Rank& rank, const sched::RoomBound& bound) {
  SimulatedMemory& memory = rank.memory;
  memory.is_bounded = true;
  memory.bound = bound;
  report(rank);
  look(rank, 0ns);
  const bool is_answer = memory.waits && static_cast<std::int32_t>(bound.ticket - memory.ticket) >= 0;
  if (is_answer) {
    memory.waits = false;
    outcome_.longest_wish = std::max(outcome_.longest_wish, now_ - memory.wanted_at);
    outcome_.wishes_refused += bound.refused() ? 1u : 0u;
    // A refusal to a seat that has lost its lease since says nothing: it needs no room on the GPU any more.
    const bool lost_lease = memory.wanted_in.value != 0 && (!rank.granted || rank.epoch != memory.wanted_in);
    memory.refused = bound.refused() && !lost_lease;
  }
  run_thread(rank);
}

// ---- the mover ----------------------------------------------------------------------------------

void World::look(Rank& rank, Duration delay) {
  SimulatedMemory& memory = rank.memory;
  if (!options_.memory || std::exchange(memory.looks, true)) return;
  in(delay + random_.between(1us, 30us), [this, &rank] {
    rank.memory.looks = false;
    move(rank);
  });
}

void World::move(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  const Process& process = *rank.process;
  if (!process.alive || process.stopped || memory.job != SimulatedMemory::Job::kNone) return;
  const Duration chunk_time = gpu_memory_[rank.seat.gpu.value].chunk_time;
  const auto length = [&] {
    return Duration(chunk_time.count() * static_cast<std::int64_t>(memory.chunk / kMiB) / 64);
  };
  const std::uint64_t room = memory.is_bounded ? memory.bound.room : ~std::uint64_t{0};
  if (memory.has() > room && memory.resident > 0) {
    if (rank.granted) return;  // a holder keeps what it has
    if (!may_evict(rank)) return look(rank, kDrainLook);
    memory.chunk = std::min(memory.resident, kChunk);
    if (now_ < host_closed_until_ || !may_borrow(rank, memory.chunk)) return starve(rank, true);
    host_used_ += memory.chunk;
    memory.host += memory.chunk;
    memory.job = SimulatedMemory::Job::kOut;
    in(length(), [this, &rank] { finish_out(rank); });
    return;
  }
  memory.chunk = std::min({memory.evicted, kChunk, room - std::min(room, memory.has())});
  if (memory.chunk > 0) {
    if (!take(rank, memory.chunk)) return starve(rank, false);
    memory.job = SimulatedMemory::Job::kIn;
    in(length(), [this, &rank] { finish_in(rank); });
    return;
  }
  memory.retry_after = Duration::zero();
  memory.starved_since = TimePoint();
}

// As in the daemon: the memory that it was promised, and a chunk.
bool World::may_borrow(const Rank& rank, std::uint64_t bytes) const {
  if (!rank.job->is_hostile) return host_used_ + bytes <= host_budget_;
  return host_used_ + bytes <= host_budget_ - host_reserved_ && rank.memory.host + bytes <= promised_to(rank) + kChunk;
}

// Others still have what it needs: host memory, or memory that the driver refuses.
void World::starve(Rank& rank, bool evicts) {
  SimulatedMemory& memory = rank.memory;
  if (std::exchange(memory.evicts, evicts) != evicts) memory.starved_since = TimePoint();
  if (memory.starved_since == TimePoint()) memory.starved_since = now_;
  const bool was_stuck = now_ - memory.starved_since - memory.retry_after > kStuckAfter;
  if (!was_stuck && now_ - memory.starved_since > kStuckAfter) report(rank);
  memory.retry_after = std::clamp(2 * memory.retry_after, kFirstRetry, kLongestRetry);
  look(rank, memory.retry_after);
}

void World::finish_out(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  Process& process = *rank.process;
  if (!process.alive) return;
  if (process.stopped) return process.inbox.push_back([this, &rank] { finish_out(rank); });
  memory.job = SimulatedMemory::Job::kNone;
  memory.resident -= memory.chunk;
  memory.evicted += memory.chunk;
  memory.retry_after = Duration::zero();
  memory.starved_since = TimePoint();
  outcome_.bytes_out += memory.chunk;
  report(rank);
  look(rank, 0ns);
}

void World::finish_in(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  Process& process = *rank.process;
  if (!process.alive) return;
  if (process.stopped) return process.inbox.push_back([this, &rank] { finish_in(rank); });
  memory.job = SimulatedMemory::Job::kNone;
  memory.evicted -= memory.chunk;
  memory.resident += memory.chunk;
  return_host(rank);
  memory.retry_after = Duration::zero();
  memory.starved_since = TimePoint();
  rank.idle_since = TimePoint::max();  // the planner's patience begins again
  outcome_.bytes_in += memory.chunk;
  if (memory.evicted == 0) {
    report(rank);
    memory_is_back(process);
    for (const auto& one : process.ranks) run_thread(*one);
    release_when_idle(rank);
  } else {
    report_soon(rank);
  }
  look(rank, 0ns);
}

// Drained or frozen, and with it every seat that reaches its memory.
bool World::may_evict(const Rank& rank) const {
  const auto is_drained = [](const Rank& one) {
    const bool stands_still = one.freezing.is_frozen && !one.freezing.thaws;
    return !one.granted && !one.open && (one.stream.empty() || stands_still);
  };
  if (!rank.job->is_gang) return is_drained(rank);
  const auto& ranks = rank.process->ranks;
  return std::all_of(ranks.begin(), ranks.end(), [&](const auto& one) { return is_drained(*one); });
}

// From the driver, which has what it has.
bool World::take(Rank& rank, std::uint64_t bytes) {
  const std::uint32_t index = rank.seat.gpu.value;
  const GpuMemory& gpu = gpu_memory_[index];
  if (used(index) + bytes <= gpu.capacity) return true;
  ++outcome_.refused_by_driver;
  if (now_ > std::max(gpu.surprised_until, gpu.misled_until)) {
    fail("the driver refuses tenant " + std::to_string(rank.seat.tenant.value) + " " + std::to_string(bytes) +
         " bytes on GPU " + std::to_string(index) + ", where " + std::to_string(used(index)) + " of " +
         std::to_string(gpu.capacity) + " are used, by other programs " + std::to_string(gpu.foreign) +
         ", by the dead " + std::to_string(gpu.returning) + ", although the planner has given it room for them" +
         describe(index));
  }
  return false;
}

// Returns the part of its host memory that is empty.
void World::return_host(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  const std::uint64_t kept = std::min(memory.host, memory.evicted);
  host_used_ -= memory.host - kept;
  memory.host = kept;
}

std::uint64_t World::promised_to(const Rank& rank) const {
  const auto seat = machine_->memory().view(rank.seat);
  return seat ? seat->promised : 0;
}

// ---- what it says -------------------------------------------------------------------------------

void World::report(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  memory.reported_at = now_;
  const bool is_stuck = memory.starved_since != TimePoint() && now_ - memory.starved_since > kStuckAfter;
  const std::uint64_t capacity = gpu_memory_[rank.seat.gpu.value].capacity;
  const std::uint64_t said = memory.allocated() + (rank.job->is_hostile ? random_.next() % capacity : 0);
  const sched::MemoryReport report{.sequence = memory.bound.sequence,
                                   .allocated = said,
                                   .resident = memory.on_gpu() - memory.context - memory.unpageable,
                                   .evicted = memory.evicted,
                                   .unpageable = memory.unpageable,
                                   .stuck = is_stuck && memory.evicts,
                                   .moving = memory.job != SimulatedMemory::Job::kNone};
  send_action(*rank.process, [this, &rank, report] { reported(rank, report); });
  note_late(rank, report);
}

// On an overloaded machine a report of memory that has become less may be later than the daemon reckons with.
void World::note_late(const Rank& rank, const sched::MemoryReport& report) {
  const TimePoint arrives_at = rank.process->last_sent;
  if (arrives_at - now_ <= sched::kLatestReport - kReportEvery) return;
  const auto known = machine_->memory().view(rank.seat);
  if (!known || known->report.resident + known->report.unpageable <= report.resident + report.unpageable) return;
  TimePoint& misled_until = gpu_memory_[rank.seat.gpu.value].misled_until;
  misled_until = std::max(misled_until, arrives_at + kLooksCorrect);
}

// For people: some times a second.
void World::report_soon(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  if (std::exchange(memory.report_is_due, true)) return;
  at(memory.reported_at + kReportEvery, [this, &rank] {
    rank.memory.report_is_due = false;
    const Process& process = *rank.process;
    if (process.alive && !process.stopped) report(rank);
  });
}

// The process is dead. The driver gives back what it had a little later; some drivers, much later.
void World::lose_memory(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  const std::uint32_t index = rank.seat.gpu.value;
  host_used_ -= memory.host;
  const std::uint64_t left = memory.on_gpu();
  memory = SimulatedMemory();
  if (left == 0) return;
  gpu_memory_[index].returning += left;
  const Duration late = random_.chance(10) ? random_.between(500ms, 4s) : random_.between(1ms, 150ms);
  if (late > 500ms) ++outcome_.returned_late;
  troubled_at_ = std::max(troubled_at_, now_ + late);
  in(late, [this, index, left] { gpu_memory_[index].returning -= left; });
}

// To a new daemon: its memory, and its pending request. Numbers of bounds are the connection's.
void World::come_back_with_memory(Rank& rank) {
  SimulatedMemory& memory = rank.memory;
  memory.bound.sequence = 0;
  memory.promised_until = TimePoint();
  report(rank);
  if (!memory.waits) return;
  send_action(*rank.process,
              [this, &rank, ticket = memory.ticket, room = memory.wanted_room, commitment = memory.wanted_commitment] {
                tell(node::RoomWanted{rank.seat, ticket, room, commitment});
              });
}

}  // namespace gpumux::simsched
