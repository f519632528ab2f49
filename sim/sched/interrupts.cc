// SPDX-License-Identifier: Apache-2.0
// Work that is taken off its GPU in the middle: the library's interrupter, and the driver.
//
// A revocation may say that work which has not drained after a moment is frozen. Then the first kernel of the stream
// stops and keeps what is left of it. The seat says GateClosed, Drained (frozen) and Requested. Its next lease thaws
// it. A collective goes on while none of its ranks is frozen; the other ranks spin. Memory of a frozen seat moves, and
// nothing is thawed before all of it is back. A seat that is told to drain after all is thawed behind the closed gate.
//
// With `all`, all seats can be frozen and some kernels take seconds or never end. Still every seat gets its turn within
// a bound that no kernel's length is part of (World::longest_drain).
#include <algorithm>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

// The driver's calls, as experiment 030 has measured them, and more.
constexpr Duration kShortestFreeze = 500us, kLongestFreeze = 1500us;
constexpr Duration kShortestThaw = 300us, kLongestThaw = 500us;
constexpr Duration kEndless = std::chrono::hours(24);

}  // namespace

void World::choose_interrupts(Job& job) {
  const bool is_all = options_.interrupts == Interrupts::kAll;
  const std::uint32_t kind = interrupt_random_.below(100);
  for (const auto& process : job.processes) {
    const bool can = is_all || kind < 70 || (kind < 85 && interrupt_random_.chance(50));
    const bool is_refused = !is_all && interrupt_random_.chance(10);
    for (const auto& rank : process->ranks) {
      rank->freezing.is_possible = can;
      rank->freezing.is_refused = is_refused;
    }
  }
  // Otherwise memory of a kernel that does not end cannot leave the GPU.
  if ((options_.memory && !is_all) || options_.busy_singles || (!is_all && !options_.faults)) return;
  if (!interrupt_random_.chance(is_all ? 30 : 10)) return;
  job.longest = interrupt_random_.chance(20) ? kEndless : Duration(interrupt_random_.between(1s, 5s));
}

// ---- freezing -----------------------------------------------------------------------------------

void World::begin_closing(Rank& rank, sched::Limit<Duration> drains_for) {
  ++rank.freezing.closings;
  rank.freezing.drains_for = drains_for;
  if (rank.freezing.is_frozen && !rank.freezing.thaws) {
    if (drains_for.is_unlimited()) return let_drain(rank);
    return freeze_soon(rank, Duration::zero());
  }
  if (!drains_for.is_unlimited())
    freeze_soon(rank, drains_for.value() + interrupt_random_.between(kShortestFreeze, kLongestFreeze));
}

void World::freeze_soon(Rank& rank, Duration delay) {
  in(delay, [this, &rank, closing = rank.freezing.closings] {
    if (closing == rank.freezing.closings) freeze(rank);
  });
}

void World::freeze(Rank& rank) {
  Process& process = *rank.process;
  if (!process.alive || rank.granted || rank.report == Rank::Report::kNone) return;
  if (process.stopped) {
    return process.inbox.push_back([this, &rank, closing = rank.freezing.closings] {
      if (closing == rank.freezing.closings) freeze(rank);
    });
  }
  if (rank.freezing.is_refused && !rank.freezing.is_frozen) return refuse_to_freeze(rank);
  if (!rank.freezing.is_frozen) {
    ++outcome_.interruptions;
    rank.freezing.is_frozen = true;
    if (!rank.stream.empty()) {
      // The others of a collective spin.
      const std::uint32_t collective = rank.stream.front().is_met ? rank.stream.front().collective : 0;
      for (Rank* one : rank.job->ranks) {
        const bool is_in_it = collective != 0 && !one->stream.empty() && one->stream.front().collective == collective;
        if (is_in_it || one == &rank) halt(*one, now_);
      }
      rank.stream.front().running = false;
    }
  }
  rank.freezing.thaws = false;
  rank.freezing.frozen_at = now_;
  say_frozen(rank);
}

// Its first kernel stops.
void World::halt(Rank& rank, TimePoint now) {
  Kernel& kernel = rank.stream.front();
  if (kernel.advances_since == TimePoint::max()) return;
  ++rank.freezing.interruptions;
  kernel.done += now - std::exchange(kernel.advances_since, TimePoint::max());
}

void World::say_frozen(Rank& rank) {
  Process& process = *rank.process;
  closed(rank);
  if (rank.report == Rank::Report::kClosing) send(process, sched::GateClosed{rank.seat, rank.epoch});
  rank.report = Rank::Report::kNone;
  send(process, sched::Drained{rank.seat, rank.epoch, rank.poisoned, true});
  send(process, sched::Requested{rank.seat});
}

// Of all its seats.
void World::refuse_to_freeze(Rank& rank) {
  ++outcome_.refused_interruptions;
  for (const auto& one : rank.process->ranks) {
    one->freezing.is_possible = false;
    send(*rank.process, sched::CannotFreeze{one->seat});
  }
}

// ---- thawing ------------------------------------------------------------------------------------

void World::thaw_for_lease(Rank& rank) {
  if (!rank.freezing.is_frozen || !is_complete(rank) || std::exchange(rank.freezing.thaws, true)) return;
  in(interrupt_random_.between(kShortestThaw, kLongestThaw), [this, &rank] { thaw(rank); });
}

// Nothing of its memory is away, or leaves, that its work may need.
bool World::is_complete(const Rank& rank) const {
  const auto& ranks = rank.process->ranks;
  return has_memory(rank) && std::none_of(ranks.begin(), ranks.end(), [](const auto& one) {
           return one->memory.job == SimulatedMemory::Job::kOut;
         });
}

// Work that waited for it goes on.
void World::memory_is_back(Process& process) {
  for (const auto& rank : process.ranks) {
    if (rank->granted || (rank->freezing.is_frozen && rank->freezing.drains_for.is_unlimited())) thaw_for_lease(*rank);
  }
}

// Behind the closed gate, with all that can reach its memory.
void World::let_drain(Rank& rank) {
  for (const auto& one : rank.process->ranks) {
    if (one.get() != &rank && !rank.job->is_gang) continue;
    if (!one->freezing.is_frozen || one->granted || one->freezing.thaws) continue;
    ++outcome_.drained_later;
    one->freezing.drains_for = sched::kUnlimited;
    thaw_for_lease(*one);
  }
}

void World::thaw(Rank& rank) {
  Process& process = *rank.process;
  if (!process.alive || !rank.freezing.is_frozen || !rank.freezing.thaws) return;
  if (process.stopped) return process.inbox.push_back([this, &rank] { thaw(rank); });
  rank.freezing.is_frozen = rank.freezing.thaws = false;
  if (!rank.stream.empty()) start_head(rank);
  if (rank.granted) {
    run_thread(rank);
    return release_when_idle(rank);
  }
  if (!rank.open && rank.report == Rank::Report::kNone) rank.report = Rank::Report::kDraining;
  when_empty(rank);
}

}  // namespace gpumux::simsched
