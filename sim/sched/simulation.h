// SPDX-License-Identifier: Apache-2.0
// Random workloads run through the node machine in virtual time, checked after every step.
//
// The whole world around the machine is simulated. A *job* is a program of one or more ranks, each with one GPU, in one
// process or one process each. A rank's thread submits kernels while its gate is open, keeps a few in flight,
// synchronises, thinks. Kernels take time; a collective kernel spins until the same collective of all ranks of its job
// has started. Each process has an agent that answers the daemon as the real one does. It sees revocations after a
// while, closes the gate when no thread is inside, and reports drains. It releases leases that are idle and
// contended. Messages take time and cross; on an overloaded machine they take a lot of time. Lease pages are written at
// once, as shared memory is. Processes are stopped, continued, killed and started; kernels fail; settings change; the
// daemon restarts and all tenants come back with claims.
//
// With `memory`, seats have memory, and it is planned as it is in the daemon. Programs allocate and free, at the gate
// or away from it. They evict the memory that they must give up when they are drained, chunk by chunk, and restore it
// when they may. GPUs have contexts, other programs that come and go, and the memory of killed processes until the
// driver has it back. Host memory ends, and cannot be had for a while. See memory.cc for the tenants' side, machine.cc
// for the GPUs and the daemon's looks, room_checks.cc for the checks.
//
// With `suspensions`, jobs are held off their GPUs now and then, and frozen when they have given up all that they can.
// They go on later, or because they could not. A frozen process reads nothing, and nothing may be said to it; and all
// others go on as if it were not there. See suspension.cc.
//
// With `claims`, most jobs are in claims, whose seats have one share of each GPU together. Without faults, and of jobs
// that always have work, no claim may be further ahead of another one than some turns.
//
// With `interrupts`, work that does not drain in time is taken off its GPU in the middle, and goes on with the next
// lease. Some drivers refuse that at the first try. See interrupts.cc.
//
// Everything follows from the seed. The log (events and commands, one a line) is the same, byte for byte, in every run
// of a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sched/events.h"

namespace gpumux::simsched {

enum class Interrupts : std::uint8_t {
  kNone,
  kSome,  // the work of most seats can be frozen
  kAll,   // that of all, and always; some kernels take seconds, or never end
};

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t steps = 2000;                       // events that the core is told, at most
  base::Duration duration = std::chrono::hours(1);  // of virtual time, at most
  std::uint32_t gpus = 0;                           // 0: by seed
  std::uint32_t jobs = 0;                           // at the same time; 0: by seed
  bool gangs = true;                                // ranks of one job say so
  bool faults = true;                               // stops, kills, failing kernels, changed settings, restarts
  bool claims = false;                              // most jobs are in claims, which have shares together
  bool busy_singles = false;  // only jobs of one rank that always have work, of weights 1 to 4: to measure fairness
  bool collectives = false;   // only jobs of one rank on each GPU with collectives: to show the use of gangs
  std::optional<settings::GpuSettings> settings = std::nullopt;  // of all GPUs; otherwise by seed
  bool eager = false;  // ranks submit collectives before the others of their job are there: the worst case of joining
  bool strangers = false;    // most jobs of several processes do not say that these belong together
  bool overloaded = false;   // messages, agents and gates are late now and then, by more than every limit
  bool memory = false;       // seats have memory, and the planner says how much of it is on the GPU
  bool suspensions = false;  // jobs are suspended and resumed
  bool hostile = false;      // with memory: one account's jobs claim more than they have, and keep the memory that they
                             // were lent
  Interrupts interrupts = Interrupts::kNone;
  base::Duration calm_after = base::Duration::max();  // from then on no fault, stop or change happens
  bool keep_log = false;
};

struct JobOutcome {
  std::uint32_t ranks = 0;
  std::uint32_t weight = 1;       // of its claim, or its own
  std::string claim;              // empty: it is in none
  std::uint64_t kernels = 0;      // completed
  std::uint64_t collectives = 0;  // completed by all ranks
  base::Duration busy{};          // sum of its kernels
};

struct Outcome {
  std::string wrong;  // empty: all was well; otherwise the fault, and how to replay it
  std::string log;
  std::uint64_t log_hash = 0;  // of the log, kept or not
  std::uint64_t steps = 0;
  base::Duration time{};
  std::uint64_t urgent = 0, capped = 0;  // leases taken back for a higher priority, and because a cap was reached
  std::uint64_t grants = 0, revocations = 0, let_through = 0, stalls = 0, silences = 0, restarts = 0;
  std::uint64_t killed_stalled = 0;                            // processes that never drained
  std::uint64_t suspensions = 0, freezes = 0, not_frozen = 0;  // the last ones had to go on first
  std::uint64_t interruptions = 0;                             // of seats
  std::uint64_t refused_interruptions = 0;
  std::uint64_t drained_later = 0;  // frozen seats whose memory had to leave, or that were to drain
  base::Duration longest_wait{};
  // With memory.
  std::uint64_t bytes_out = 0, bytes_in = 0;
  std::uint64_t bounds = 0, wishes = 0, wishes_refused = 0, refused_by_driver = 0, mode_changes = 0, returned_late = 0;
  std::uint64_t borrowed = 0;  // turns
  std::uint64_t gave_way = 0;  // leases taken back from seats that could not have their memory
  base::Duration longest_wish{};
  std::vector<JobOutcome> jobs;
};

Outcome simulate(const Options& options);

// The command that repeats it.
std::string replay_command(const Options& options);

}  // namespace gpumux::simsched
