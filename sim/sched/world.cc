// SPDX-License-Identifier: Apache-2.0
#include "sim/sched/world.h"

#include <algorithm>

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

constexpr Duration kCheckEvery = 50ms;
// More than this at one moment: an action asks again and again for a moment that is not later.
constexpr std::uint64_t kMostActionsAtOnce = 100'000;
// No seat whose job is undisturbed waits longer than this many turns of all the others, each a quantum and a drain.
constexpr int kTurns = 6;
// No seat borrows more turns than this in a window without submitting anything in one of them.
constexpr std::size_t kMostIdleLoans = 20;
constexpr Duration kLoanWindow = 100ms;
constexpr Duration kLongestDrain = 60ms;  // see the kernels that start_job() chooses, times those in flight
// A drain that ends in a freeze: what the core waits, messages, the driver's call.
constexpr Duration kLongestFrozenDrain = 5ms;

// Longer than any turn that ends by shares: the longest quantum and a drain, times the largest weight of a job.
constexpr Duration kLongMaxRuntime = 10s;

sched::Limit<Duration> longest_quantum(const settings::GpuSettings& settings) {
  return settings.quantum.is_automatic() ? 33 * kLongestDrain : settings.quantum.value();
}

}  // namespace

World::World(const Options& options)
    : options_(options),
      random_(options.seed),
      claim_random_(options.seed * 3 + 1),
      stall_random_(~options.seed),
      interrupt_random_(options.seed * 5 + 3) {
  gpus_ = options.gpus > 0 ? options.gpus : 1 + random_.below(4);
  jobs_wanted_ = options.jobs > 0 ? options.jobs : 2 + random_.below(6);
  for (std::uint32_t i = 0; i < gpus_; ++i) settings_.push_back(options.settings.value_or(any_settings()));
  if (options_.memory) make_gpus();
}

settings::GpuSettings World::any_settings() {
  settings::GpuSettings s;
  s.in_flight = sched::kUnlimited;  // the simulated programs keep to no bound
  s.mode = random_.chance(15) ? settings::Mode::kConcurrent : settings::Mode::kSerial;
  s.policy = random_.chance(60) ? sched::PolicyKind::kFair : sched::PolicyKind::kFifo;
  const settings::Auto<sched::Limit<Duration>> quanta[] = {sched::kAutomatic, sched::kUnlimited, 5ms, 20ms, 50ms};
  s.quantum = quanta[random_.below(5)];
  s.max_runtime = options_.memory ? (random_.chance(70) ? 500ms : 8s) : 200ms;
  const bool may_check_shares = options_.busy_singles && options_.claims && !longest_quantum(s).is_unlimited();
  if (may_check_shares) s.max_runtime = kLongMaxRuntime;
  s.stall_timeout = 1s;
  s.gang_ageing = random_.between(10ms, 200ms);
  if (!random_.chance(50)) s.priority_ageing = random_.between(20ms, 500ms);
  s.silence_limit = 100ms;
  if (random_.chance(20)) s.kill_silent_after = 2s;
  s.overlap = random_.chance(70);
  if (stall_random_.chance(40)) s.kill_stalled_after = 2s;
  const bool is_off = options_.interrupts != Interrupts::kAll && interrupt_random_.chance(20);
  s.interrupt = is_off ? settings::Interrupt::kOff : settings::Interrupt::kAuto;
  return s;
}

void World::at(TimePoint when, Action action) {
  actions_.emplace(std::pair(std::max(when, now_), next_action_++), std::move(action));
}

bool World::fail(const std::string& what) {
  if (outcome_.wrong.empty()) {
    outcome_.wrong = "at " + std::to_string(now_.time_since_epoch().count()) + " ns, step " +
                     std::to_string(outcome_.steps) + ": " + what + "\nreplay: " + replay_command(options_);
  }
  return false;
}

void World::log(const std::string& line) {
  for (const char c : line) outcome_.log_hash = (outcome_.log_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  outcome_.log_hash = (outcome_.log_hash ^ '\n') * 0x100000001b3u;
  if (options_.keep_log) outcome_.log += line + '\n';
}

// ---- the daemon ---------------------------------------------------------------------------------

void World::tell(const node::Event& event) {
  apply(event);
  rest();
}

void World::apply(const node::Event& event) {
  if (!daemon_up_ || !outcome_.wrong.empty()) return;
  node::Commands commands;
  machine_->apply(now_, event, commands);
  for (const node::Command& command : commands) std::visit([this](const auto& one) { carry_out(one); }, command);
  check();
  wake_machine();
}

void World::rest() {
  if (!options_.memory || !daemon_up_ || !outcome_.wrong.empty()) return;
  apply(node::Rest{});
  check_memory();
  look_soon();
}

void World::told(const sched::Event& event) {
  ++outcome_.steps;
  log(std::to_string(now_.time_since_epoch().count()) + " " + to_string(event));
}

// The daemon sleeps until the next deadline.
void World::wake_machine() {
  const auto deadline = machine_->next_deadline();
  if (!deadline || *deadline >= woken_for_) return;
  woken_for_ = *deadline;
  at(*deadline, [this, life = daemon_life_, deadline = *deadline] {
    if (!daemon_up_ || life != daemon_life_ || woken_for_ != deadline) return;
    woken_for_ = TimePoint::max();
    tell(sched::TimePassed{});
  });
}

Rank* World::rank_of(SeatId seat) {
  const auto found = by_tenant_.find(seat.tenant);
  if (found == by_tenant_.end()) return nullptr;
  for (const auto& rank : found->second->ranks) {
    if (rank->seat == seat) return rank.get();
  }
  return nullptr;
}

void World::opened(Rank& rank, LeaseEpoch epoch, sched::LeaseKind kind) {
  if (!rank.granted) rank.lender.reset();
  rank.epoch = epoch;
  rank.kind = kind;
  rank.report = Rank::Report::kNone;
  rank.asked = false;
  rank.granted = true;
  rank.open = true;
  rank.excused = false;
}

// It runs together with the lender, and until its gate is closed together with the lender's next work.
void World::note_loan(Rank& rank) {
  ++outcome_.borrowed;
  for (const auto& [tenant, process] : by_tenant_) {
    for (const auto& other : process->ranks) {
      const bool lends = other->granted && other.get() != &rank && other->seat.gpu == rank.seat.gpu;
      if (lends && is_present(*process)) rank.lender = other->seat;
    }
  }
  if (std::exchange(rank.borrowed_at_kernel, rank.submitted) != rank.submitted) rank.idle_loans.clear();
  std::erase_if(rank.idle_loans, [this](TimePoint at) { return at + kLoanWindow < now_; });
  rank.idle_loans.push_back(now_);
  if (rank.idle_loans.size() > kMostIdleLoans)
    fail("tenant " + std::to_string(rank.seat.tenant.value) + " borrows turns again and again, and submits nothing");
}

void World::closed(Rank& rank) {
  rank.granted = false;
  rank.open = false;
  rank.excused = false;
}

// Pages change at once; agents hear of it when they read their socket.
void World::carry_out(const sched::Command& command) {
  log("  " + to_string(command));
  if (const auto* grant = std::get_if<sched::Grant>(&command)) {
    ++outcome_.grants;
    Rank* const rank = rank_of(grant->seat);
    if (rank == nullptr) return;
    // (Work of it that is left may need a turn to end.)
    const auto has_work_left = [](const Rank* one) { return one->freezing.frozen_at.has_value(); };
    const std::vector<Rank*>& its = rank->job->ranks;
    const bool is_new = rank->job->is_suspended && !rank->granted && !grant->again;
    if (grant->again) ++outcome_.let_through;
    if (grant->again && rank->freezing.is_frozen && !rank->freezing.thaws)
      fail(name(rank->seat) + " is opened again, and its work is frozen");
    if (is_new && std::none_of(its.begin(), its.end(), has_work_left) && now_ > grants_held_until_)
      fail("tenant " + std::to_string(grant->seat.tenant.value) + " is suspended, and granted");
    if (grant->epoch.value <= highest_epoch_ && grant->epoch <= rank->epoch) fail("an epoch went backwards");
    highest_epoch_ = std::max(highest_epoch_, grant->epoch.value);
    if (!rank->job->is_suspended) {
      rank->has_stalled = false;
      rank->freezing.frozen_at.reset();
    }
    if (rank->asked) outcome_.longest_wait = std::max(outcome_.longest_wait, now_ - rank->asked_at);
    rank->contended = grant->contended;
    opened(*rank, grant->epoch, grant->kind);
    if (grant->borrowed) note_loan(*rank);
    thaw_for_lease(*rank);
    receive(*rank->process, [this, rank] {
      run_thread(*rank);
      release_when_idle(*rank);
      look(*rank, 0ns);
    });
  } else if (const auto* revoke = std::get_if<sched::Revoke>(&command)) {
    ++outcome_.revocations;
    if (revoke->reason == sched::RevokeReason::kMemory) ++outcome_.gave_way;
    if (revoke->reason == sched::RevokeReason::kUrgent) ++outcome_.urgent;
    if (revoke->reason == sched::RevokeReason::kCap) ++outcome_.capped;
    Rank* const rank = rank_of(revoke->seat);
    if (rank == nullptr) return;
    if (rank->epoch == revoke->epoch) rank->granted = false;
    if (revoke->reason == sched::RevokeReason::kBadClaim) rank->excused = true;
    receive(*rank->process, [this, rank, epoch = revoke->epoch, drains_for = revoke->drains_for] {
      if (rank->epoch != epoch || rank->granted) return;
      send(*rank->process, sched::RevokeSeen{rank->seat, epoch});
      rank->report = Rank::Report::kClosing;
      in(closing_delay(), [this, rank, epoch] { close_gate(*rank, epoch); });
      begin_closing(*rank, drains_for);
    });
  } else if (const auto* contention = std::get_if<sched::Contention>(&command)) {
    Rank* const rank = rank_of(contention->seat);
    if (rank == nullptr) return;
    receive(*rank->process, [this, rank, told = *contention] {
      rank->contended = told.contended;
      rank->idle_hold = told.idle_hold;
      release_when_idle(*rank);
    });
  } else if (const auto* stall = std::get_if<sched::ReportStall>(&command)) {
    ++outcome_.stalls;
    troubled_at_ = std::max(troubled_at_, now_);
    const Rank* const stalled = rank_of(stall->seat);
    if (stalled == nullptr) return;
    // Its turn ends. It owes the others that turn, and the time for which its work runs on.
    for (Rank* member : stalled->job->ranks) member->has_stalled = member->excused = true;
    if (!stalled->job->is_suspended)
      stalled->job->disturbed = std::max(stalled->job->disturbed, now_ + 2 * kLongestDebt);
  } else if (const auto* silent = std::get_if<sched::ReportSilent>(&command)) {
    ++outcome_.silences;
    troubled_at_ = std::max(troubled_at_, now_);
    // It is passed over with its gang.
    Rank* const rank = rank_of(silent->seat);
    if (rank == nullptr) return;
    if (rank->process->frozen) fail("a frozen process is taken to be silent");
    for (Rank* member : rank->job->ranks) member->excused = true;
  } else if (const auto* to_kill = std::get_if<sched::KillTenant>(&command)) {
    const auto found = by_tenant_.find(to_kill->tenant);
    if (to_kill->reason == sched::KillReason::kStalled) ++outcome_.killed_stalled;
    if (found != by_tenant_.end() && found->second->frozen) fail("a frozen process is killed");
    if (found != by_tenant_.end() && to_kill->reason == sched::KillReason::kStalled && found->second->job->is_suspended)
      fail("a suspended process is killed because it does not drain");
    if (found != by_tenant_.end()) in(1ms, [this, process = found->second] { kill(*process); });
  }
}

void World::start_daemon() {
  ++daemon_life_;
  daemon_up_ = true;
  woken_for_ = TimePoint::max();
  machine_ = std::make_unique<node::Machine>(static_cast<node::Probe*>(this));
  if (options_.memory) {
    apply(node::HostBudget{host_budget_ - host_reserved_, 64 * kMiB, host_reserved_});
    for (std::uint32_t gpu = 0; gpu < gpus_; ++gpu) surprise(gpu, 5s);
  }
  for (std::uint32_t gpu = 0; gpu < gpus_; ++gpu) {
    const std::uint64_t capacity = options_.memory ? gpu_memory_[gpu].capacity : 0;
    apply(node::GpuAdded{GpuIndex{gpu}, settings_[gpu], LeaseEpoch{highest_epoch_ + 1}, capacity});
    if (options_.memory) apply(node::WayChosen{GpuIndex{gpu}, way_of(gpu)});
    rest();
  }
}

void World::restart_daemon() {
  if (!daemon_up_) return;
  ++outcome_.restarts;
  troubled_at_ = now_;
  log(std::to_string(now_.time_since_epoch().count()) + " --- the daemon dies");
  daemon_up_ = false;
  in(random_.between(1ms, 300ms), [this] {
    log(std::to_string(now_.time_since_epoch().count()) + " --- the daemon starts");
    start_daemon();
    grants_held_until_ = now_ + 1s;
    tell(sched::GrantsHeld{grants_held_until_});
    for (const auto& job : jobs_) {
      if (!job->alive) continue;
      if (!job->is_suspended) job->disturbed = now_ + 3s;
      troubled_at_ = now_ + 3s;
      for (const auto& process : job->processes) {
        // Most are back before anything is granted; a few come later, and find that their lease has been given away.
        const Duration late = random_.chance(3) ? random_.between(1s, 2s) : random_.between(1ms, 800ms);
        in(late, [this, life = daemon_life_, back = process.get()] {
          if (life != daemon_life_ || !back->alive) return;
          if (!back->stopped) return connect(*back, true);
          back->inbox.push_back([this, back] { connect(*back, true); });
        });
      }
    }
  });
}

// ---- what must hold -----------------------------------------------------------------------------

void World::check() {
  const std::string wrong = machine_->check_invariants();
  if (!wrong.empty()) fail(wrong + describe_turns());
  // The gates' own state, which counts in the end: no other seat may submit during an exclusive lease.
  for (const auto& [tenant, process] : by_tenant_) {
    if (!is_present(*process)) continue;
    for (const auto& rank : process->ranks) {
      const Rank* const other = rank->open && !rank->excused ? another_open_to(*rank) : nullptr;
      if (other != nullptr) fail(name(rank->seat) + " and " + name(other->seat) + " both may submit");
    }
  }
}

bool World::is_present(const Process& process) const {
  return process.alive && process.connected_to == daemon_life_ && process.settled;
}

// Another seat that may submit to its GPU, and must not while it may; null: none.
const Rank* World::another_open_to(const Rank& rank) const {
  for (const auto& [tenant, process] : by_tenant_) {
    if (!is_present(*process)) continue;
    for (const auto& other : process->ranks) {
      if (other.get() == &rank || other->seat.gpu != rank.seat.gpu || !other->open || other->excused) continue;
      if (other->job == rank.job && options_.gangs) continue;
      if (other->lender == rank.seat || rank.lender == other->seat) continue;
      if (other->kind == sched::LeaseKind::kExclusive || rank.kind == sched::LeaseKind::kExclusive) return other.get();
    }
  }
  return nullptr;
}

Duration World::longest_drain() const {
  // (Seats that are suspended, or whose memory must leave, are not frozen.)
  const bool all_freeze = options_.interrupts == Interrupts::kAll && !options_.suspensions && !options_.memory;
  const bool is_short = all_freeze && !options_.faults;
  return is_short ? kLongestFrozenDrain : kLongestDrain;
}

Duration World::longest_turn(const settings::GpuSettings& settings) const {
  return std::min(longest_quantum(settings), settings.max_runtime).value() + longest_drain();
}

Duration World::longest_turn() const {
  Duration turn{};
  for (const settings::GpuSettings& settings : settings_) turn = std::max(turn, longest_turn(settings));
  return turn;
}

sched::Limit<Duration> World::longest_ageing() const {
  sched::Limit<Duration> longest = Duration::zero();
  for (const settings::GpuSettings& settings : settings_) longest = std::max(longest, settings.priority_ageing);
  return longest;
}

// Connected, and for a while nothing has happened to it or to another process that could make it wait.
bool World::is_calm(const Process& process) const {
  return is_present(process) && !process.stopped && process.job->alive && now_ >= process.job->disturbed &&
         now_ > troubled_at_ + 3s && now_ > grants_held_until_;
}

// Whether a seat of higher priority may want one of its GPUs.
bool World::is_outranked(const Job& job) const {
  const auto is_on = [](const Job& other, GpuIndex gpu) {
    return std::any_of(other.ranks.begin(), other.ranks.end(),
                       [gpu](const Rank* rank) { return rank->seat.gpu == gpu; });
  };
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& other) {
    if (!other->alive || other->priority <= job.priority) return false;
    return std::any_of(job.ranks.begin(), job.ranks.end(),
                       [&](const Rank* rank) { return is_on(*other, rank->seat.gpu); });
  });
}

// In any stretch of time a capped seat has had at most its part of it, one second's worth, and the time of one drain.
void World::check_caps() {
  constexpr Duration kOvershoot = 5 * kLongestDrain;  // a gang may be opened again
  std::map<SeatId, sched::SeatView> views;
  for (const sched::GpuView& gpu : machine_->leases().view(now_)) {
    for (const sched::SeatView& seat : gpu.seats) views[seat.seat] = seat;
  }
  for (const auto& [tenant, process] : by_tenant_) {
    for (const auto& rank : process->ranks) {
      const Job& job = *rank->job;
      const auto view = views.find(rank->seat);
      if (job.cap == sched::kNoCap || !is_calm(*process) || rank->has_stalled || view == views.end()) {
        rank->least_beyond_cap.reset();
        rank->longest_drain = Duration::zero();
        rank->drains_since = TimePoint::max();
        continue;
      }
      const bool drains =
          view->second.phase >= sched::SeatPhase::kRevoked && view->second.phase != sched::SeatPhase::kSuspended;
      rank->drains_since = drains ? std::min(rank->drains_since, view->second.since) : TimePoint::max();
      if (drains) rank->longest_drain = std::max(rank->longest_drain, now_ - rank->drains_since);
      const std::int64_t part = now_.time_since_epoch().count() / 1000 * job.cap;
      const Duration beyond = view->second.held - Duration(part);
      rank->least_beyond_cap = std::min(rank->least_beyond_cap.value_or(beyond), beyond);
      const Duration overshoot = std::max(kOvershoot, rank->longest_drain + kLongestDrain);
      if (beyond - *rank->least_beyond_cap <= Duration(1s) * job.cap / 1000 + overshoot) continue;
      fail("tenant " + std::to_string(tenant.value) + " has had " +
           std::to_string((beyond - *rank->least_beyond_cap).count()) + " ns more than its cap of " +
           std::to_string(job.cap) + " thousandths allows");
    }
  }
}

// No seat of lower priority keeps the GPU from one that waits and can run. Exceptions, each for a quantum: seats that
// have waited for priority_ageing, and seats that max_runtime has let in.
void World::check_priorities() {
  const Duration bound = longest_turn() * (jobs_wanted_ + 2) + 100ms;
  for (const auto& [tenant, process] : by_tenant_) {
    for (const auto& rank : process->ranks) {
      const bool waits = rank->asked && !rank->granted && rank->job->ranks.size() == 1 && is_calm(*process) &&
                         rank->job->cap == sched::kNoCap && rank->memory.evicted == 0 &&
                         machine_->mode(rank->seat.gpu) == sched::Mode::kSerial;
      const bool is_outdone = waits && std::any_of(by_tenant_.begin(), by_tenant_.end(), [&](const auto& one) {
                                const Process& other = *one.second;
                                return is_calm(other) && other.job->priority < rank->job->priority &&
                                       other.job->waits_for_next_percent == 0 &&
                                       std::any_of(other.ranks.begin(), other.ranks.end(), [&](const auto& lower) {
                                         return lower->seat.gpu == rank->seat.gpu && lower->granted;
                                       });
                              });
      rank->outdone_since = is_outdone ? std::min(rank->outdone_since, now_) : TimePoint::max();
      // A program whose memory does not come makes way after a while. (It is looked at now and then: between two looks
      // it may have had its turn.)
      const Duration patience = bound + (options_.memory ? sched::kHolderPatience : Duration::zero());
      if (!is_outdone || now_ - std::max(rank->outdone_since, rank->asked_at) <= patience) continue;
      fail("tenant " + std::to_string(tenant.value) + " waits for GPU " + std::to_string(rank->seat.gpu.value) +
           " behind lower priorities for more than " + std::to_string(patience.count()) + " ns" + describe_turns());
    }
  }
}

// For jobs of one rank that always have work, by turns. The times of claims and of jobs without one, by their weights,
// differ by at most a turn of each. The lightest has the longest turn, in virtual time. Exception: where the quantum is
// unlimited, max_runtime ends all turns. They have one length then, whatever the weights are.
void World::check_shares() {
  struct Had {
    Duration time{};
    std::uint32_t weight = 1;
  };
  for (const sched::GpuView& gpu : machine_->leases().view(now_)) {
    const settings::GpuSettings& settings = settings_[gpu.gpu.value];
    // Next to a drain that is longer than a quantum the other seat has no choice but to run.
    const bool is_fair = gpu.settings.mode == sched::Mode::kSerial && settings.policy == sched::PolicyKind::kFair;
    if (!is_fair || settings.overlap || longest_quantum(settings).is_unlimited()) continue;
    std::map<std::string, Had> had;
    for (const sched::SeatView& seat : gpu.seats) {
      const Job& job = *by_tenant_.at(seat.seat.tenant)->job;
      Had& of = had[job.claim.empty() ? "job " + std::to_string(job.number) : job.claim];
      of.time += seat.held;
      of.weight = job.weight;
    }
    Duration least = Duration::max();
    Duration most{};
    for (const auto& [name, of] : had) {
      least = std::min(least, of.time / of.weight);
      most = std::max(most, of.time / of.weight);
    }
    if (had.size() > 1 && most - least > 2 * longest_turn(settings))
      fail("shares of GPU " + std::to_string(gpu.gpu.value) + " are " + std::to_string((most - least).count()) +
           " ns apart");
  }
}

// No seat starves: each waits at most this many turns of all the others, which end whether they drain or not.
// Exceptions: its own job is disturbed, or has stalled and owes the others time. A seat with a cap waits for its own
// sake; lower priorities wait as long as it takes, unless ageing helps them.
void World::check_waits() {
  if (daemon_up_ && options_.gangs) {
    check_caps();
    check_priorities();
  }
  if (options_.busy_singles && options_.claims && !options_.faults) check_shares();
  if (options_.suspensions) check_suspended();
  if (options_.memory) {
    check_memory_waits();
    return in(kCheckEvery, [this] { check_waits(); });
  }
  if (options_.gangs && outcome_.silences == 0) {
    const sched::Limit<Duration> ageing = longest_ageing();
    const Duration stall = outcome_.stalls == 0 ? Duration::zero() : settings_.front().stall_timeout;
    const Duration bound = (longest_turn() + stall) * kTurns * (jobs_wanted_ + 1) + 1s;
    for (const auto& [tenant, process] : by_tenant_) {
      if (!process->alive || process->stopped || process->connected_to != daemon_life_ ||
          now_ < process->job->disturbed)
        continue;
      const bool is_low = is_outranked(*process->job);
      if (process->job->cap != sched::kNoCap || (is_low && ageing.is_unlimited())) continue;
      for (const auto& rank : process->ranks) {
        const bool stands = rank->freezing.is_frozen && !rank->granted;
        if (!rank->asked && !stands) continue;
        const TimePoint since =
            std::min(rank->asked ? rank->asked_at : now_, stands ? rank->freezing.frozen_at.value_or(now_) : now_);
        const Duration waited = now_ - std::max(since, process->job->disturbed);
        if (waited > bound + (is_low ? 2 * ageing.value() : Duration::zero())) {
          fail("tenant " + std::to_string(tenant.value) + " has waited " + std::to_string(waited.count()) +
               " ns, more than " + std::to_string(bound.count()) + ", for GPU " + std::to_string(rank->seat.gpu.value));
        }
      }
    }
  }
  in(kCheckEvery, [this] { check_waits(); });
}

// ---- running ------------------------------------------------------------------------------------

Outcome World::run() {
  outcome_.log_hash = 0xcbf29ce484222325u;
  start_daemon();
  for (std::uint32_t i = 0; i < jobs_wanted_; ++i) start_job();
  check_waits();
  if (options_.faults) in(random_.between(1ms, 50ms), [this] { disturb(); });
  if (options_.suspensions) in(random_.between(1ms, 500ms), [this] { disturb_runs(); });
  if (options_.memory) {
    sample_all();
    if (options_.faults) in(random_.between(1ms, 500ms), [this] { disturb_memory(); });
    if (options_.faults) in(random_.between(1ms, 2s), [this] { change_ways(); });
  }
  std::uint64_t actions_now = 0;
  while (outcome_.wrong.empty() && outcome_.steps < options_.steps && !actions_.empty()) {
    const auto first = actions_.begin();
    if (first->first.first > TimePoint(options_.duration)) break;
    actions_now = first->first.first == now_ ? actions_now + 1 : 0;
    if (actions_now > kMostActionsAtOnce) fail("time stands still");
    now_ = first->first.first;
    const Action action = std::move(first->second);
    actions_.erase(first);
    action();
  }
  outcome_.time = now_.time_since_epoch();
  for (const auto& job : jobs_) {
    JobOutcome one{.ranks = static_cast<std::uint32_t>(job->ranks.size()), .weight = job->weight, .claim = job->claim};
    one.collectives = job->collectives_done;
    for (const Rank* rank : job->ranks) {
      one.kernels += rank->completed;
      one.busy += rank->busy;
    }
    outcome_.jobs.push_back(one);
  }
  return std::move(outcome_);
}

Outcome simulate(const Options& options) { return World(options).run(); }

std::string replay_command(const Options& options) {
  std::string text =
      "gpumux_simsched --log --seed " + std::to_string(options.seed) + " --steps " + std::to_string(options.steps);
  if (options.gpus > 0) text += " --gpus " + std::to_string(options.gpus);
  if (options.jobs > 0) text += " --jobs " + std::to_string(options.jobs);
  if (!options.gangs) text += " --no-gangs";
  if (!options.faults) text += " --no-faults";
  if (options.claims) text += " --claims";
  if (options.busy_singles) text += " --busy-singles";
  if (options.eager) text += " --eager";
  if (options.strangers) text += " --strangers";
  if (options.overloaded) text += " --overloaded";
  if (options.collectives) text += " --collectives";
  if (options.memory) text += " --memory";
  if (options.suspensions) text += " --suspend";
  if (options.hostile) text += " --hostile";
  if (options.interrupts == Interrupts::kSome) text += " --interrupts some";
  if (options.interrupts == Interrupts::kAll) text += " --interrupts all";
  if (options.duration < 1h) text += " --seconds " + std::to_string(options.duration / 1s);
  if (options.calm_after < 1h) text += " --calm-after " + std::to_string(options.calm_after / 1s);
  return text;
}

}  // namespace gpumux::simsched
