// SPDX-License-Identifier: Apache-2.0
// The simulated world: jobs, processes, ranks, messages, the daemon around the node machine. Private to sim/sched.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "node/machine.h"
#include "sim/sched/random.h"
#include "sim/sched/simulation.h"

namespace gpumux::simsched {

using base::Duration;
using base::GpuIndex;
using base::LeaseEpoch;
using base::SeatId;
using base::TenantId;
using base::TimePoint;

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct Job;
struct Process;

// A process that was stopped, or as good as that, may have memory that the daemon does not know of for this long. It
// goes on after three seconds at most, and looks find out a little later.
inline constexpr Duration kLongestStop = std::chrono::seconds(6);

struct Kernel {
  Duration length{};
  std::uint32_t collective = 0;  // which one of the job, from 1; 0: none
  bool waits_for_next = false;   // runs until its own thread has submitted once more, as a stream wait does
  bool running = false;
  bool has_arrived = false;                     // a collective: it has started, maybe to spin
  bool is_met = false;                          // a collective: all ranks' kernels have started
  Duration done{};                              // of `length`
  TimePoint advances_since = TimePoint::max();  // and will complete, unless it is interrupted
};

// A seat's memory: the truth, in bytes, and its process's knowledge.
struct SimulatedMemory {
  std::uint64_t resident = 0;    // pageable, on the GPU
  std::uint64_t evicted = 0;     // pageable, not on the GPU
  std::uint64_t unpageable = 0;  // on the GPU, and stays
  std::uint64_t host = 0;        // host memory that its evicted data takes
  std::uint64_t context = 0;     // the driver's own, which no report includes
  std::uint64_t most = 0;        // the wish of its program

  bool is_bounded = false;  // has been told a bound
  sched::RoomBound bound;   // the one in force
  TimePoint reported_at{};
  bool report_is_due = false;

  // The mover.
  enum class Job : std::uint8_t { kNone, kOut, kIn } job = Job::kNone;
  std::uint64_t chunk = 0;  // of the job
  bool looks = false;       // will look at the memory that it has to move, in a moment
  Duration retry_after{};
  bool evicts = false;        // the last time that it could not go where it was told
  TimePoint starved_since{};  // could not, since

  // The thread, in an allocation.
  std::uint64_t asked = 0;  // bytes; 0: it is in none
  bool by_driver = false;   // the wanted memory is not pageable
  std::uint32_t attempts = 0;
  bool refused = false;
  bool waits = false;  // for the answer to `ticket`
  std::uint32_t ticket = 0;
  std::uint64_t wanted_room = 0, wanted_commitment = 0;
  LeaseEpoch wanted_in;  // the lease that it had when it asked, if any
  TimePoint wanted_at{};

  // The daemon's promise to a holder, which may take a moment to take it.
  std::uint64_t promised = 0;
  std::uint64_t promised_commitment = 0;
  std::uint64_t promised_beside = 0;  // other programs' memory then
  TimePoint promised_until{};
  TimePoint kept_until{};  // the same, whatever has become of its lease

  std::uint64_t has() const { return resident + unpageable; }
  std::uint64_t allocated() const { return has() + evicted; }
  std::uint64_t on_gpu() const { return has() + context + (job == Job::kIn ? chunk : 0); }
};

// A seat's work that is taken off the GPU in the middle (interrupts.cc).
struct Freezing {
  bool is_possible = false;             // as its library says
  bool is_refused = false;              // its driver refuses
  bool is_frozen = false;               // its work stands still
  bool thaws = false;                   // in a moment
  std::optional<TimePoint> frozen_at;   // since its last grant
  std::uint64_t closings = 0;           // revocations that it knows of
  sched::Limit<Duration> drains_for{};  // as the last of them says
  std::uint64_t interruptions = 0;      // of its kernels. An end that was foreseen before the last one does not come
};

// The most that the core lets a seat owe for one turn: 10 s, or eight quanta of those that these settings come to.
inline constexpr Duration kLongestDebt = std::chrono::seconds(10);

// One thread with one GPU, its seat, and its stream.
struct Rank {
  Process* process = nullptr;
  Job* job = nullptr;
  SeatId seat;

  // The slot of the lease page.
  bool granted = false;
  LeaseEpoch epoch;
  sched::LeaseKind kind = sched::LeaseKind::kExclusive;

  // Whether its threads may really submit. A revocation clears `granted` at once, but a thread that looked before may
  // still submit until the gate has closed.
  bool open = false;
  bool excused = false;                  // it was silent, or its claim was false: the core no longer waits for its gate
  std::optional<SeatId> lender;          // it has borrowed this one's turn, and may submit at the same time
  std::uint64_t borrowed_at_kernel = 0;  // its submissions when it last borrowed a turn
  std::vector<TimePoint> idle_loans;     // lately, turns that it borrowed without any kernel in between

  // The thread.
  bool thinking = false;
  bool asked = false;  // sleeps at the gate, and has said so
  TimePoint asked_at{};
  std::uint32_t left_in_burst = 0;
  std::uint64_t submitted = 0;
  std::uint32_t collectives = 0;

  // The agent.
  enum class Report : std::uint8_t { kNone, kClosing, kDraining } report = Report::kNone;
  bool contended = false;
  sched::Limit<Duration> idle_hold = Duration::zero();
  std::uint64_t idle_turn = 0;  // which wait for idleness counts
  bool poisoned = false;

  SimulatedMemory memory;
  bool blocked = false;  // its thread wants to submit and cannot: no lease, or not all of its memory
  TimePoint blocked_at{};
  TimePoint idle_since = TimePoint::max();  // holds its lease, and its work cannot run for want of memory

  // Its use of the GPU beyond its cap's part, at its least since nothing disturbed that account.
  std::optional<Duration> least_beyond_cap;
  // It could not be drained for this long, at the longest since then: that is its own doing, and paid back.
  Duration longest_drain{};
  TimePoint drains_since = TimePoint::max();
  bool has_stalled = false;  // since its last grant
  // A seat of lower priority has had its GPU since then, while it waited and could run.
  TimePoint outdone_since = TimePoint::max();

  Freezing freezing;

  std::deque<Kernel> stream;
  std::uint64_t completed = 0;
  Duration busy{};  // sum of the kernels that completed
};

struct Process {
  TenantId tenant;
  Job* job = nullptr;
  bool alive = true;
  bool stopped = false;
  bool frozen = false;             // stopped, and not by accident: its job is suspended
  std::uint64_t connected_to = 0;  // which life of the daemon; 0: none
  bool settled = false;            // has claimed its leases: the daemon knows of them
  TimePoint last_sent{};           // messages arrive in order
  TimePoint last_received{};
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::function<void()>> inbox;  // the messages that came while it was stopped
};

struct Job {
  std::uint32_t number = 0;
  std::uint32_t weight = 1;
  std::string claim;  // its seats share with those of all jobs that are in it; empty: in none
  std::int32_t priority = 0;
  std::uint32_t cap = sched::kNoCap;
  bool alive = true;
  std::string key;  // of its gang; empty: its one process's own seats
  bool is_gang = false;
  bool is_unknown = false;               // although it is: no report says so
  Duration shortest{}, longest{};        // kernels
  Duration think_least{}, think_most{};  // between bursts; zero: always busy
  std::uint32_t burst = 8;
  std::uint32_t in_flight = 4;
  std::uint32_t collective_every = 0;
  std::uint32_t waits_for_next_percent = 0;
  std::uint32_t connected = 0;  // processes
  std::uint64_t quota = 0;      // of memory on each GPU; 0: none
  bool is_hostile = false;      // another account's: it lies about its memory
  bool is_suspended = false;
  std::uint32_t suspensions = 0;
  TimePoint clearing_since = TimePoint::max();  // suspended and drained, and nothing else was in its memory's way
  bool is_eager = false;                        // submits collectives before all its ranks are there
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<Rank*> ranks;
  std::map<std::uint32_t, std::uint32_t> arrived;  // by collective: how many ranks' kernels run
  std::uint64_t collectives_done = 0;
  TimePoint disturbed{};  // a member was stopped, killed or away until then: it may wait
};

// A GPU's memory.
struct GpuMemory {
  std::uint64_t capacity = 0;
  Duration chunk_time{};        // one chunk in one direction
  std::uint64_t foreign = 0;    // other programs'
  std::uint64_t returning = 0;  // of processes that are gone
  // Until then the driver's refusals are no program's fault: memory has gone in a way that the daemon could not know.
  TimePoint surprised_until{};
  // The same: looks may have misled the daemon, for a report that a seat has less was too late.
  TimePoint misled_until{};
  bool wants_turns = false;  // by chance: the progress of its programs is not simulated
  // The time since which its seats have had more, or clearly less, than there is, while nothing else was in the way.
  TimePoint too_much_since = TimePoint::max();
  TimePoint fits_since = TimePoint::max();
};

class World final : private node::Probe {
 public:
  explicit World(const Options& options);
  Outcome run();

 private:
  using Action = std::function<void()>;
  void at(TimePoint when, Action action);
  void in(Duration delay, Action action) { at(now_ + delay, std::move(action)); }
  bool fail(const std::string& what);

  // world.cc: the daemon and its machine
  void tell(const node::Event& event);
  // One event, without the rest that follows when all that comes with it has been told.
  void apply(const node::Event& event);
  void rest();
  void told(const sched::Event& event) override;
  void planning(GpuIndex gpu, const std::vector<sched::Turn>& turns) override;
  void planned(GpuIndex gpu, const std::vector<sched::Turn>& turns) override;
  void opened(Rank& rank, LeaseEpoch epoch, sched::LeaseKind kind);
  void note_loan(Rank& rank);
  void closed(Rank& rank);
  bool is_present(const Process& process) const;
  const Rank* another_open_to(const Rank& rank) const;
  void carry_out(const sched::Command& command);
  void carry_out(const sched::RoomBound& bound);
  void carry_out(const sched::ExpectEviction&) {}
  void carry_out(const node::ModeChanged&) { ++outcome_.mode_changes; }
  void carry_out(const node::TurnsForMemory&) {}
  void wake_machine();
  void check();
  void check_waits();
  void check_caps();
  void check_priorities();
  void check_shares();
  Duration longest_drain() const;
  Duration longest_turn() const;  // on any GPU
  Duration longest_turn(const settings::GpuSettings& settings) const;
  sched::Limit<Duration> longest_ageing() const;
  bool is_calm(const Process& process) const;
  bool is_outranked(const Job& job) const;
  void change_standing(Job& job);
  void start_daemon();
  void restart_daemon();
  settings::GpuSettings any_settings();
  Rank* rank_of(SeatId seat);
  void log(const std::string& line);

  // processes.cc: programs and their agents
  Job& start_job();
  void choose_standing(Job& job);
  void choose_claim(Job& job);
  void connect(Process& process, bool again);
  void open(Rank& rank, bool again);
  void claim(Rank& rank);
  void send(Process& process, node::Event event);
  void receive(Process& process, Action action);
  void run_thread(Rank& rank);
  bool is_collective(const Rank& rank) const;
  void submit(Rank& rank);
  void start_head(Rank& rank);
  void advance(Rank& rank);
  void meet(Job& job, std::uint32_t collective);
  void complete(Rank& rank);
  void when_empty(Rank& rank);
  void close_gate(Rank& rank, LeaseEpoch epoch);
  void release_when_idle(Rank& rank);
  void kill(Process& process);
  void kill_job(Job& job);
  void stop(Process& process);
  void resume(Process& process);
  void wake(Process& process);
  void poison(Rank& rank);
  void disturb();

  // suspension.cc: jobs that stand still
  void disturb_runs();
  void suspend(Job& job);
  void go_on(Job& job);
  void tell_suspended(Job& job);
  void void_promises(std::uint32_t gpu);
  void follow(Job& job, TimePoint patience);
  bool is_drained(const Job& job) const;
  bool is_parked(const Job& job) const;
  void freeze(Job& job);
  void thaw(Job& job);
  void check_suspended();

  // interrupts.cc: work that is taken off the GPU in the middle
  void choose_interrupts(Job& job);
  void begin_closing(Rank& rank, sched::Limit<Duration> drains_for);
  void freeze_soon(Rank& rank, Duration delay);
  void freeze(Rank& rank);
  void say_frozen(Rank& rank);
  void refuse_to_freeze(Rank& rank);
  void thaw_for_lease(Rank& rank);
  bool is_complete(const Rank& rank) const;
  void memory_is_back(Process& process);
  void let_drain(Rank& rank);
  void thaw(Rank& rank);
  static void halt(Rank& rank, TimePoint now);

  Duration message_delay();
  Duration closing_delay();
  void send_action(Process& process, Action action);
  bool has_memory(const Rank& rank) const;
  bool block(Rank& rank);

  // memory.cc: seats' memory, and how it moves
  void choose_memory(Rank& rank);
  void create_context(Rank& rank);
  void choose_allocation(Rank& rank);
  bool allocate(Rank& rank);
  bool allocate_by_driver(Rank& rank);
  void want_room(Rank& rank, bool on_gpu);
  void refuse_allocation(Rank& rank);
  void free_some(Rank& rank);
  void told_room(Rank& rank, const sched::RoomBound& bound);
  void look(Rank& rank, Duration delay);
  void move(Rank& rank);
  void starve(Rank& rank, bool evicts);
  void finish_out(Rank& rank);
  void finish_in(Rank& rank);
  bool may_evict(const Rank& rank) const;
  bool take(Rank& rank, std::uint64_t bytes);
  void return_host(Rank& rank);
  bool may_borrow(const Rank& rank, std::uint64_t bytes) const;
  void report(Rank& rank);
  void note_late(const Rank& rank, const sched::MemoryReport& report);
  void reported(Rank& rank, const sched::MemoryReport& report);
  void report_soon(Rank& rank);
  void lose_memory(Rank& rank);
  void come_back_with_memory(Rank& rank);

  // machine.cc: the GPUs, and the daemon's looks at them
  void make_gpus();
  void choose_mode(std::uint32_t gpu);
  void surprise(std::uint32_t gpu, Duration how_long);
  std::uint64_t promised_to(const Rank& rank) const;
  sched::Way way_of(std::uint32_t gpu) const;
  void change_ways();
  void sample(std::uint32_t gpu);
  void sample_all();
  void look_soon();
  void disturb_memory();
  std::uint64_t used(std::uint32_t gpu) const;

  // room_checks.cc: invariants of memory
  void check_plan(std::uint32_t gpu, const std::vector<sched::Turn>& turns);
  void check_promises(std::uint32_t gpu, const std::vector<sched::Turn>& turns);
  void check_givers(const sched::GpuMemory& after, const std::vector<sched::Turn>& turns, std::int32_t highest);
  void check_answers(std::uint32_t gpu);
  void check_memory();
  std::string describe(std::uint32_t gpu) const;
  std::string describe_turns() const;
  void check_modes();
  void check_memory_waits();
  bool can_host_hold() const;
  void check_idle_holders();
  bool can_ever_fit(const Rank& rank) const;

  Options options_;
  Random random_;
  Random claim_random_;
  Random stall_random_;      // apart, so that earlier draws are the same without it
  Random interrupt_random_;  // the same
  TimePoint now_{};
  std::map<std::pair<TimePoint, std::uint64_t>, Action> actions_;
  std::uint64_t next_action_ = 0;
  std::unique_ptr<node::Machine> machine_;
  std::uint64_t daemon_life_ = 0;  // odd or even means nothing; 0: never started
  bool daemon_up_ = false;
  TimePoint grants_held_until_{};
  TimePoint woken_for_ = TimePoint::max();
  std::uint64_t highest_epoch_ = 0;
  std::uint32_t gpus_ = 0;
  std::uint32_t jobs_wanted_ = 0;
  std::vector<settings::GpuSettings> settings_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::map<TenantId, Process*> by_tenant_;
  std::uint64_t next_tenant_ = 1;
  std::string line_;

  std::vector<GpuMemory> gpu_memory_;
  sched::GpuMemory before_;  // the plan that is being made
  std::uint64_t host_budget_ = 0;
  std::uint64_t host_reserved_ = 0;  // of the budget, for accounts that begin
  std::uint64_t host_used_ = 0;
  TimePoint host_closed_until_{};  // nothing is lent until then
  bool looks_soon_ = false;
  TimePoint troubled_at_{};  // something has happened that makes others wait for a while

  Outcome outcome_;
};

// "tenant 3 on GPU 1"
std::string name(SeatId seat);

}  // namespace gpumux::simsched
