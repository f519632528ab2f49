// SPDX-License-Identifier: Apache-2.0
// The simulated world: jobs, processes, ranks, messages, the daemon around the core. Private to sim/sched.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sched/lease_core.h"
#include "sim/sched/random.h"
#include "sim/sched/simulation.h"

namespace gpumux::simsched {

using base::Duration;
using base::GpuIndex;
using base::LeaseEpoch;
using base::SeatId;
using base::TenantId;
using base::TimePoint;

struct Job;
struct Process;

struct Kernel {
  Duration length{};
  std::uint32_t collective = 0;  // which one of the job, from 1; 0: none
  bool waits_for_next = false;   // runs until its own thread has submitted once more, as a stream wait does
  bool running = false;
};

// One thread with one GPU, its seat, and its stream.
struct Rank {
  Process* process = nullptr;
  Job* job = nullptr;
  SeatId seat;

  // The slot of the lease page.
  bool granted = false;
  LeaseEpoch epoch;
  sched::LeaseKind kind = sched::LeaseKind::kExclusive;
  std::uint32_t permits = 0;

  // What its threads may really do: a revocation clears `granted` at once, but until its gate has closed somebody who
  // looked before may still submit.
  bool open = false;
  bool excused = false;  // it was silent, or its claim was false: the core no longer waits for its gate

  // The thread.
  bool thinking = false;
  bool asked = false;  // sleeps at the gate, and has said so
  TimePoint asked_at{};
  std::uint32_t left_in_burst = 0;
  std::uint64_t submitted = 0;
  std::uint32_t collectives = 0;

  // The agent.
  enum class Report : std::uint8_t { kNone, kClosing, kDraining } report = Report::kNone;
  std::uint32_t steps_left = 0;  // submissions by permits, not said yet
  bool contended = false;
  Duration idle_hold{};
  std::uint64_t idle_turn = 0;  // which wait for idleness counts
  bool poisoned = false;

  std::deque<Kernel> stream;
  std::uint64_t completed = 0;
  Duration busy{};  // sum of the kernels that completed
};

struct Process {
  TenantId tenant;
  Job* job = nullptr;
  bool alive = true;
  bool stopped = false;
  std::uint64_t connected_to = 0;  // which life of the daemon; 0: none
  bool settled = false;            // has claimed what it has: the daemon knows of its leases
  TimePoint last_sent{};           // messages arrive in order
  TimePoint last_received{};
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::function<void()>> inbox;  // what came while it was stopped
};

struct Job {
  std::uint32_t number = 0;
  std::uint32_t weight = 1;
  bool alive = true;
  std::string key;  // of its gang; empty: its one process's own seats
  bool is_gang = false;
  Duration shortest{}, longest{};        // kernels
  Duration think_least{}, think_most{};  // between bursts; zero: always busy
  std::uint32_t burst = 8;
  std::uint32_t in_flight = 4;
  std::uint32_t collective_every = 0;
  std::uint32_t waits_for_next_percent = 0;
  std::uint32_t connected = 0;  // processes
  bool is_eager = false;        // submits collectives before all its ranks are there
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<Rank*> ranks;
  std::map<std::uint32_t, std::uint32_t> arrived;  // by collective: how many ranks' kernels run
  std::uint64_t collectives_done = 0;
  TimePoint disturbed{};  // a member was stopped, killed or away until then: it may wait
};

class World {
 public:
  explicit World(const Options& options);
  Outcome run();

 private:
  using Action = std::function<void()>;
  void at(TimePoint when, Action action);
  void in(Duration delay, Action action) { at(now_ + delay, std::move(action)); }
  bool fail(const std::string& what);

  // world.cc: the daemon and its core
  void tell(const sched::Event& event);
  void opened(Rank& rank, LeaseEpoch epoch, sched::LeaseKind kind);
  void closed(Rank& rank);
  static bool may_submit(const Rank& rank);
  bool is_present(const Process& process) const;
  bool is_open_to_another(const Rank& rank) const;
  void carry_out(const sched::Command& command);
  void wake_core();
  void check();
  void check_waits();
  void start_daemon();
  void restart_daemon();
  sched::GpuSettings any_settings();
  Rank* rank_of(SeatId seat);
  void log(const std::string& line);

  // processes.cc: programs and their agents
  Job& start_job();
  void connect(Process& process, bool again);
  void claim(Rank& rank);
  void send(Process& process, sched::Event event);
  void receive(Process& process, Action action);
  void run_thread(Rank& rank);
  bool is_collective(const Rank& rank) const;
  void submit(Rank& rank);
  void start_head(Rank& rank);
  void complete(Rank& rank);
  void when_empty(Rank& rank);
  void close_gate(Rank& rank, LeaseEpoch epoch);
  void say_steps(Rank& rank);
  void release_when_idle(Rank& rank);
  void kill(Process& process);
  void kill_job(Job& job);
  void stop(Process& process);
  void resume(Process& process);
  void poison(Rank& rank);
  void disturb();

  Duration message_delay();
  Duration closing_delay();

  Options options_;
  Random random_;
  TimePoint now_{};
  std::map<std::pair<TimePoint, std::uint64_t>, Action> actions_;
  std::uint64_t next_action_ = 0;
  std::unique_ptr<sched::LeaseCore> core_;
  std::uint64_t daemon_life_ = 0;  // odd or even means nothing; 0: never started
  bool daemon_up_ = false;
  TimePoint grants_held_until_{};
  TimePoint woken_for_ = TimePoint::max();
  std::uint64_t highest_epoch_ = 0;
  std::uint32_t gpus_ = 0;
  std::uint32_t jobs_wanted_ = 0;
  std::vector<sched::GpuSettings> settings_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::map<TenantId, Process*> by_tenant_;
  std::uint64_t next_tenant_ = 1;
  std::string line_;
  Outcome outcome_;
};

}  // namespace gpumux::simsched
