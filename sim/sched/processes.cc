// SPDX-License-Identifier: Apache-2.0
// Programs, their GPUs' streams, and their agents.
#include <algorithm>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

// ---- starting -----------------------------------------------------------------------------------

Job& World::start_job() {
  jobs_.push_back(std::make_unique<Job>());
  Job& job = *jobs_.back();
  job.number = static_cast<std::uint32_t>(jobs_.size());
  job.weight = random_.chance(70) ? 1 : 1 + random_.below(4);
  job.shortest = random_.between(50us, 1ms);
  job.longest = job.shortest + random_.between(0us, 9ms);
  job.burst = 1 + random_.below(40);
  job.in_flight = 1 + random_.below(5);
  if (random_.chance(50)) {
    job.think_least = 100us;
    job.think_most = random_.between(1ms, 100ms);
  }
  std::uint32_t ranks = gpus_ > 1 && random_.chance(50) ? 2 + random_.below(gpus_ - 1) : 1;
  bool one_process = random_.chance(40);
  if (options_.faults && random_.chance(options_.overloaded ? 30 : 5)) job.waits_for_next_percent = 5;
  choose_standing(job);
  job.is_hostile = options_.hostile && random_.chance(40);
  if (options_.busy_singles) {
    ranks = 1;
    job.weight = 1 + job.number % 4;
    job.think_most = Duration::zero();
  }
  choose_claim(job);
  if (options_.collectives) {
    ranks = gpus_;
    one_process = false;
  }
  job.is_gang = ranks > 1;
  job.is_eager = options_.eager || (options_.faults && random_.chance(10));
  if (job.is_gang) job.collective_every = options_.collectives ? 3 : 1 + random_.below(6);
  if (job.is_gang && !one_process) job.key = "job" + std::to_string(job.number);
  job.is_unknown = options_.strangers && !job.key.empty() && random_.chance(70);
  if (options_.memory && random_.chance(15)) job.quota = gpu_memory_.front().capacity / (2 + random_.below(6));
  const std::uint32_t first_gpu = random_.below(gpus_);
  for (std::uint32_t i = 0; i < ranks; ++i) {
    if (i == 0 || !one_process) {
      job.processes.push_back(std::make_unique<Process>());
      job.processes.back()->job = &job;
      job.processes.back()->tenant = TenantId{next_tenant_++};
      by_tenant_[job.processes.back()->tenant] = job.processes.back().get();
    }
    Process& process = *job.processes.back();
    auto rank = std::make_unique<Rank>();
    rank->process = &process;
    rank->job = &job;
    rank->seat = {process.tenant, GpuIndex{(first_gpu + i) % gpus_}};
    rank->left_in_burst = job.burst;
    if (options_.memory) choose_memory(*rank);
    job.ranks.push_back(rank.get());
    process.ranks.push_back(std::move(rank));
  }
  if (options_.interrupts != Interrupts::kNone) choose_interrupts(job);
  job.disturbed = now_;
  for (const auto& process : job.processes) {
    in(random_.between(1us, 20ms), [this, starting = process.get()] {
      if (!starting->alive) return;
      connect(*starting, false);
      ++starting->job->connected;
      for (Rank* rank : starting->job->ranks) run_thread(*rank);
    });
  }
  return job;
}

// Most have the standing of all others.
void World::choose_standing(Job& job) {
  job.priority = 0;
  job.cap = sched::kNoCap;
  if (options_.busy_singles || options_.collectives) return;
  if (random_.chance(25)) job.priority = static_cast<std::int32_t>(random_.below(5)) - 2;
  if (random_.chance(8)) job.cap = 50 + random_.below(900);
}

// A claim has one weight, whatever its jobs would have.
void World::choose_claim(Job& job) {
  if (!options_.claims || claim_random_.chance(30)) return;
  const std::uint32_t number = claim_random_.below(4);
  job.claim = "claim" + std::to_string(number);
  job.weight = 1 + (number + static_cast<std::uint32_t>(options_.seed)) % 4;
}

// As `gpumux set --tenant` does.
void World::change_standing(Job& job) {
  choose_standing(job);
  const std::uint32_t weight = 1 + random_.below(4);
  if (job.claim.empty()) job.weight = weight;
  // Nothing is planned for a job that stands as it shall in part only: the daemon plans when its loop has come to rest.
  for (Rank* rank : job.ranks) {
    rank->least_beyond_cap.reset();
    if (rank->process->connected_to == daemon_life_ && rank->process->settled)
      apply(sched::StandingChanged{rank->seat, job.priority, job.weight, job.cap});
  }
  rest();
}

void World::connect(Process& process, bool again) {
  if (!daemon_up_ || !process.alive || process.connected_to == daemon_life_) return;
  process.connected_to = daemon_life_;
  process.settled = false;
  process.last_sent = process.last_received = now_;
  tell(sched::TenantConnected{process.tenant, 1000});
  const Job& job = *process.job;
  if (options_.gangs && job.is_gang && !job.is_unknown) {
    tell(sched::GangJoined{process.tenant, job.key, static_cast<std::uint32_t>(job.processes.size())});
  }
  for (const auto& rank : process.ranks) {
    open(*rank, again);
    if (again) claim(*rank);
    rest();
  }
  process.settled = true;
}

void World::open(Rank& rank, bool again) {
  const Job& job = *rank.job;
  sched::Quota quota;
  if (job.quota > 0) quota = {.group = job.number, .bytes = job.quota};
  apply(node::SeatOpened{
      .lease = {rank.seat, job.weight, false, job.priority, job.cap, job.is_suspended, job.claim, 0,
                rank.freezing.is_possible},
      .owner = {quota, job.is_hostile ? 2u : 1u},
      .is_new = !again,
  });
  if (!options_.memory) return;
  if (!again) create_context(rank);
  if (again) come_back_with_memory(rank);
}

// After a restart: the state of its page and its stream. A process that is back too late may find its GPU given away.
void World::claim(Rank& rank) {
  if (rank.open && another_open_to(rank) != nullptr) rank.excused = true;
  auto claim = sched::Claim::kWaiting;
  if (rank.granted) {
    claim = sched::Claim::kHolding;
  } else if (rank.open || !rank.stream.empty() || rank.report != Rank::Report::kNone || rank.freezing.is_frozen) {
    claim = sched::Claim::kDraining;
  } else if (!rank.asked) {
    return;
  }
  apply(sched::SeatClaimed{rank.seat, claim, rank.kind, rank.epoch});
  if (claim != sched::Claim::kDraining) return;
  // The page says that the lease is lost; whether the gate has closed since is looked at now.
  rank.report = Rank::Report::kClosing;
  in(closing_delay(), [this, &rank, epoch = rank.epoch] { close_gate(rank, epoch); });
  // Frozen work stays so until this daemon grants it.
  if (rank.freezing.is_frozen && !rank.freezing.thaws) begin_closing(rank, Duration::zero());
  if (rank.asked) send(*rank.process, sched::Requested{rank.seat});
}

// ---- messages -----------------------------------------------------------------------------------

// A thread that is ready runs soon, unless the machine has too much to do.
Duration World::message_delay() {
  if (options_.overloaded && random_.chance(2)) return random_.between(1ms, 400ms);
  return random_.between(2us, 60us);
}

// A thread may be inside, in a call that takes its time.
Duration World::closing_delay() {
  if (options_.overloaded && random_.chance(4)) return random_.between(1ms, 2500ms);
  return random_.between(1us, 300us);
}

void World::send_action(Process& process, Action action) {
  if (!process.alive || !daemon_up_ || process.connected_to != daemon_life_) return;
  process.last_sent = std::max(process.last_sent, now_ + message_delay());
  at(process.last_sent, [life = daemon_life_, this, &process, action = std::move(action)] {
    if (life == daemon_life_ && process.connected_to == life) action();
  });
}

void World::send(Process& process, node::Event event) {
  send_action(process, [this, event = std::move(event)] { tell(event); });
}

void World::receive(Process& process, Action action) {
  if (process.frozen)
    fail("tenant " + std::to_string(process.tenant.value) + " is frozen, and something is said to it");
  process.last_received = std::max(process.last_received, now_ + message_delay());
  at(process.last_received, [&process, action = std::move(action)] {
    if (!process.alive) return;
    if (process.stopped) return process.inbox.push_back(action);
    action();
  });
}

// ---- the thread ---------------------------------------------------------------------------------

void World::run_thread(Rank& rank) {
  const Process& process = *rank.process;
  while (process.alive && !process.stopped && process.connected_to != 0 && !rank.thinking) {
    if (rank.left_in_burst == 0) {
      if (!rank.stream.empty()) return;  // synchronises
      rank.left_in_burst = rank.job->burst;
      if (options_.memory) choose_allocation(rank);
      if (rank.job->think_most == Duration::zero()) continue;
      rank.thinking = true;
      in(random_.between(rank.job->think_least, rank.job->think_most), [this, &rank] {
        rank.thinking = false;
        run_thread(rank);
      });
      release_when_idle(rank);
      return;
    }
    if (rank.memory.asked != 0 && !allocate(rank)) return;
    if (rank.stream.size() >= rank.job->in_flight) return;
    // Real ranks find each other before their first collective: by then all of them are members of the gang.
    const bool all_here = rank.job->connected == rank.job->processes.size() || rank.job->is_eager;
    if (!all_here && is_collective(rank)) return;
    if (block(rank)) return;
    submit(rank);
  }
}

// At the gate: true where it is closed, or something that the rank's work may reach is not on the GPU.
bool World::block(Rank& rank) {
  if (rank.granted && has_memory(rank)) return rank.blocked = false;
  if (!std::exchange(rank.blocked, true)) rank.blocked_at = now_;
  if (rank.granted || rank.asked) return true;
  rank.asked = true;
  rank.asked_at = now_;
  send(*rank.process, sched::Requested{rank.seat});
  return true;
}

// The GPUs of one process that uses peers or collectives reach each other's memory.
bool World::has_memory(const Rank& rank) const {
  if (!rank.job->is_gang) return rank.memory.evicted == 0;
  const auto& ranks = rank.process->ranks;
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& one) { return one->memory.evicted == 0; });
}

bool World::is_collective(const Rank& rank) const {
  const std::uint32_t every = rank.job->collective_every;
  return every > 0 && rank.submitted % every == every - 1;
}

void World::submit(Rank& rank) {
  const Job& job = *rank.job;
  if (job.is_suspended && is_present(*rank.process) &&
      machine_->leases().phase(rank.seat) == sched::SeatPhase::kSuspended)
    fail("tenant " + std::to_string(rank.process->tenant.value) + " is suspended, and submits");
  Kernel kernel{.length = random_.between(job.shortest, job.longest)};
  if (is_collective(rank)) {
    kernel.collective = ++rank.collectives;
    kernel.length = job.shortest;
  } else if (job.waits_for_next_percent > 0 && rank.left_in_burst > 1 && job.in_flight > 1) {
    kernel.waits_for_next = random_.chance(job.waits_for_next_percent);
  }
  if (rank.poisoned) kernel = {.length = 500us};  // its calls fail at once; it logs that and tries again
  ++rank.submitted;
  --rank.left_in_burst;
  rank.stream.push_back(kernel);
  if (rank.stream.size() == 1) return start_head(rank);
  if (rank.stream.front().waits_for_next && rank.stream.size() == 2) {
    rank.stream.front().waits_for_next = false;
    rank.stream.front().running = false;
    start_head(rank);
  }
}

// ---- the stream ---------------------------------------------------------------------------------

void World::start_head(Rank& rank) {
  Kernel& kernel = rank.stream.front();
  if (kernel.running || rank.freezing.is_frozen) return;
  kernel.running = true;
  if (kernel.waits_for_next && rank.stream.size() == 1) return;
  if (kernel.collective == 0) return advance(rank);
  if (kernel.is_met) return meet(*rank.job, kernel.collective);  // it was interrupted
  if (std::exchange(kernel.has_arrived, true)) return;
  Job& job = *rank.job;
  const std::uint32_t collective = kernel.collective;
  if (++job.arrived[collective] < job.ranks.size()) return;  // spins
  job.arrived.erase(collective);
  ++job.collectives_done;
  for (Rank* one : job.ranks) {
    if (!one->stream.empty() && one->stream.front().collective == collective) one->stream.front().is_met = true;
  }
  meet(job, collective);
}

// Its first kernel runs, and completes if nothing happens before.
void World::advance(Rank& rank) {
  Kernel& kernel = rank.stream.front();
  kernel.advances_since = now_;
  in(kernel.length - kernel.done,
     [this, &rank, generation = rank.completed, interruptions = rank.freezing.interruptions] {
       if (interruptions != rank.freezing.interruptions) return;
       if (rank.process->alive && rank.completed == generation && !rank.stream.empty()) complete(rank);
     });
}

// All ranks' kernels of the collective have started. They go on while none of them is frozen; the others spin.
void World::meet(Job& job, std::uint32_t collective) {
  const auto is_in_it = [collective](const Rank& one) {
    return !one.stream.empty() && one.stream.front().collective == collective && one.stream.front().is_met;
  };
  for (const Rank* one : job.ranks) {
    if (is_in_it(*one) && one->freezing.is_frozen) return;
  }
  for (Rank* one : job.ranks) {
    if (is_in_it(*one) && one->stream.front().advances_since == TimePoint::max()) advance(*one);
  }
}

void World::complete(Rank& rank) {
  if (rank.freezing.is_frozen) fail(name(rank.seat) + " is frozen, and its work runs");
  rank.busy += rank.stream.front().length;
  rank.stream.pop_front();
  ++rank.completed;
  if (!rank.stream.empty()) {
    start_head(rank);
  } else {
    when_empty(rank);
  }
  run_thread(rank);
}

// ---- the agent ----------------------------------------------------------------------------------

void World::close_gate(Rank& rank, LeaseEpoch epoch) {
  Process& process = *rank.process;
  if (!process.alive || rank.epoch != epoch || rank.granted || rank.report != Rank::Report::kClosing) return;
  if (process.stopped) return process.inbox.push_back([this, &rank, epoch] { close_gate(rank, epoch); });
  closed(rank);
  rank.report = Rank::Report::kDraining;
  send(process, sched::GateClosed{rank.seat, epoch});
  when_empty(rank);
  if (rank.asked) send(process, sched::Requested{rank.seat});  // a thread still sleeps at the gate
  run_thread(rank);
}

void World::when_empty(Rank& rank) {
  const Process& process = *rank.process;
  if (!process.alive || process.stopped || !rank.stream.empty() || rank.report != Rank::Report::kDraining) return;
  rank.report = Rank::Report::kNone;
  send(*rank.process, sched::Drained{rank.seat, rank.epoch, rank.poisoned});
  look(rank, 0ns);
}

// Idle, and another seat waits: the lease is kept for a moment, then given back.
void World::release_when_idle(Rank& rank) {
  const auto is_idle = [&rank] { return rank.granted && rank.contended && rank.thinking && rank.stream.empty(); };
  if (!is_idle() || rank.idle_hold.is_unlimited()) return;
  if (random_.chance(80)) send(*rank.process, sched::Idling{rank.seat, rank.epoch});
  in(rank.idle_hold.value(), [this, &rank, is_idle, epoch = rank.epoch, turn = ++rank.idle_turn] {
    const Process& process = *rank.process;
    if (!process.alive || process.stopped || turn != rank.idle_turn || epoch != rank.epoch || !is_idle()) return;
    closed(rank);
    send(*rank.process, sched::Drained{rank.seat, rank.epoch, rank.poisoned});
    look(rank, 0ns);
  });
}

// ---- what happens to programs -------------------------------------------------------------------

void World::kill(Process& process) {
  if (!process.alive) return;
  process.alive = false;
  for (const auto& rank : process.ranks) {
    closed(*rank);
    rank->asked = false;
    rank->blocked = false;
    rank->stream.clear();
    rank->freezing.is_frozen = rank->freezing.thaws = false;
    lose_memory(*rank);
  }
  troubled_at_ = std::max(troubled_at_, now_);
  if (process.connected_to == daemon_life_) {
    const TimePoint seen = std::max(process.last_sent, now_ + random_.between(10us, 20ms));
    at(seen, [this, life = daemon_life_, &process] {
      if (life != daemon_life_) return;
      tell(sched::TenantGone{process.tenant});
      process.connected_to = 0;
    });
  }
  Job& job = *process.job;
  if (!job.alive) return;
  // A job that has lost a rank is ended by its launcher, a little later.
  job.alive = false;
  job.disturbed = TimePoint::max();
  in(random_.between(1ms, 500ms), [this, &job] { kill_job(job); });
}

void World::kill_job(Job& job) {
  for (const auto& process : job.processes) kill(*process);
  start_job();
}

void World::stop(Process& process) {
  if (!process.alive || process.stopped) return;
  process.stopped = true;
  troubled_at_ = std::max(troubled_at_, now_);
  if (options_.memory) {
    // It may not have reported what it has just taken. When it goes on, it may take what it was told before it was
    // stopped, although others have been told otherwise since.
    for (const auto& rank : process.ranks) surprise(rank->seat.gpu.value, kLongestStop);
  }
  process.job->disturbed = TimePoint::max();
  in(random_.between(1ms, 3s), [this, &process] { resume(process); });
}

void World::resume(Process& process) {
  if (!process.alive || !process.stopped) return;
  troubled_at_ = std::max(troubled_at_, now_ + 3s);
  if (process.job->alive && !process.job->is_suspended) process.job->disturbed = now_ + 3s;
  wake(process);
}

void World::wake(Process& process) {
  process.stopped = false;
  for (const Action& action : std::exchange(process.inbox, {})) {
    if (process.alive) action();
  }
  for (const auto& rank : process.ranks) {
    when_empty(*rank);
    run_thread(*rank);
    release_when_idle(*rank);
    look(*rank, 0ns);
  }
}

// A sticky error: the work on its GPU ends, and all later submissions fail at once.
void World::poison(Rank& rank) {
  if (!rank.process->alive || rank.job->ranks.size() > 1) return kill(*rank.process);
  rank.poisoned = true;
  rank.completed += rank.stream.size();
  rank.stream.clear();
  when_empty(rank);
  run_thread(rank);
}

void World::disturb() {
  if (now_.time_since_epoch() > options_.calm_after) return;
  Job& job = *jobs_[random_.below(jobs_.size())];
  Process& process = *job.processes[random_.below(job.processes.size())];
  switch (random_.below(24)) {
    case 0:
    case 1: kill(process); break;
    case 2:
    case 3:
    case 4: stop(process); break;
    case 5: poison(*process.ranks.front()); break;
    case 6: restart_daemon(); break;
    case 7:
    case 8: {
      const std::uint32_t gpu = random_.below(gpus_);
      settings_[gpu] = any_settings();
      if (options_.memory) {
        choose_mode(gpu);
        void_promises(gpu);
      }
      tell(node::SettingsChanged{GpuIndex{gpu}, settings_[gpu]});
      break;
    }
    case 9:
    case 10: change_standing(job); break;
    default: break;
  }
  in(random_.between(1ms, 200ms), [this] { disturb(); });
}

}  // namespace gpumux::simsched
