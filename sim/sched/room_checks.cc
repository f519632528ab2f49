// SPDX-License-Identifier: Apache-2.0
// The invariants of memory after every step. Plans take from the right seats, modes follow programs' memory, and no
// seat waits longer than the others' turns take.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "sim/sched/world.h"

namespace gpumux::simsched {

using namespace std::chrono_literals;

namespace {

// Every wish is answered by then: the planner's own patience, and what messages and restarts add.
constexpr Duration kLongestWish = sched::kLongestRoomWait + 1s;
// The mode that memory asks for is there by then: looks, reports and the dwell take that long.
constexpr Duration kLongestModeChange = sched::kFitDwell + 3s;

// Its patience, and what messages and moving memory take.
constexpr Duration kLongestIdle = sched::kHolderPatience + 1s;

auto find(const sched::GpuMemory& view, SeatId seat) {
  return std::find_if(view.seats.begin(), view.seats.end(), [&](const auto& one) { return one.seat == seat; });
}

}  // namespace

std::string name(SeatId seat) {
  return "tenant " + std::to_string(seat.tenant.value) + " on GPU " + std::to_string(seat.gpu.value);
}

// Checks one plan: the seats from which it takes, why, and the room that it leaves to each.
void World::check_plan(std::uint32_t index, const std::vector<sched::Turn>& turns) {
  const sched::GpuMemory& before = before_;
  const sched::GpuMemory after = machine_->memory().view(GpuIndex{index});
  // Whether a seat lacks memory that others have, or all count for more than there is.
  std::uint64_t counted = 0;
  bool somebody_needs = false;
  for (const sched::SeatMemoryView& seat : before.seats) {
    counted += seat.counted;
    const auto turn = std::find_if(turns.begin(), turns.end(), [&](const auto& one) { return one.seat == seat.seat; });
    const bool is_near = turn != turns.end() && turn->kind <= sched::TurnKind::kNext;
    somebody_needs = somebody_needs || (is_near && (seat.report.evicted > 0 || seat.wanted > 0));
    // A seat takes in a moment what it asked for and was given. (The daemon does not know yet which program has just
    // died.)
    const Rank* const rank = rank_of(seat.seat);
    somebody_needs = somebody_needs || (is_near && rank != nullptr && !rank->process->alive);
    somebody_needs = somebody_needs || (rank != nullptr && rank->memory.promised > 0 && now_ < rank->memory.kept_until);
  }
  const std::uint64_t gone = before.reserve + before.foreign + before.returning;
  const bool is_over = counted + gone > before.capacity;
  bool somebody_gives = false;
  std::int32_t highest_to_give = std::numeric_limits<std::int32_t>::min();
  for (const sched::Turn& turn : turns) {
    const auto then = find(before, turn.seat), now = find(after, turn.seat);
    if (then == before.seats.end() || now == after.seats.end() || !now->speaks) continue;
    if (now->is_suspended && turn.kind > sched::TurnKind::kNext) {
      if (now->room > now->report.unpageable && !now->is_behind)
        fail(name(turn.seat) + " is suspended, and may have memory" + describe(index));
      continue;
    }
    const std::uint64_t has = now->report.resident + now->report.unpageable;
    const bool is_told = now->room < then->room;
    const bool keeps = turn.kind == sched::TurnKind::kHolding || turn.kind == sched::TurnKind::kHeldBack;
    if (keeps && is_told && now->room < has)
      fail(name(turn.seat) + " may submit, and is told to have less than it has");
    // No seat further away keeps memory that a nearer seat has to give up.
    const Rank* const rank = rank_of(turn.seat);
    const bool hears = rank != nullptr && rank->process->alive && !rank->process->stopped;
    if (somebody_gives && hears && !now->report.stuck && !keeps &&
        now->room > std::max(now->report.unpageable, then->room) && now->room > now->report.unpageable)
      fail(name(turn.seat) + " is left with memory that somebody whose turn is nearer had to give up");
    if (is_told && now->room < has && !keeps) {
      somebody_gives = true;
      if (rank != nullptr) highest_to_give = std::max(highest_to_give, rank->job->priority);
      // (The check does not know the wishes that a daemon that is gone heard, or that a stopped program has.)
      if (!somebody_needs && !is_over && now_ > gpu_memory_[index].surprised_until)
        fail(name(turn.seat) + " is evicted, and nobody needs its memory" + describe(index));
    }
  }
  check_givers(after, turns, highest_to_give);
}

// Of those that neither hold a lease nor are next, the lowest priority gives first.
void World::check_givers(const sched::GpuMemory& after, const std::vector<sched::Turn>& turns, std::int32_t highest) {
  for (const sched::Turn& turn : turns) {
    const Rank* const rank = rank_of(turn.seat);
    if (turn.kind <= sched::TurnKind::kNext || rank == nullptr || rank->job->priority >= highest) continue;
    for (const sched::SeatMemoryView& seat : after.seats) {
      const bool can_give = !seat.is_behind && !seat.is_suspended && seat.speaks && !seat.report.stuck &&
                            rank->process->alive && !rank->process->stopped;
      if (seat.seat == turn.seat && can_give && seat.room > seat.report.unpageable && seat.report.resident > 0)
        fail(name(turn.seat) + " keeps memory that one of a higher priority has to give up" +
             describe(turn.seat.gpu.value));
    }
  }
}

// A seat that asks while it holds its lease, and is given room, keeps that for a while. A plan that sees the seat
// without a lease ends that: the daemon need not keep anything for it then.
void World::check_promises(std::uint32_t index, const std::vector<sched::Turn>& turns) {
  const sched::GpuMemory after = machine_->memory().view(GpuIndex{index});
  for (const sched::Turn& turn : turns) {
    Rank* const rank = rank_of(turn.seat);
    const auto now = find(after, turn.seat), then = find(before_, turn.seat);
    if (rank == nullptr || now == after.seats.end() || then == before_.seats.end()) continue;
    SimulatedMemory& memory = rank->memory;
    if (turn.kind != sched::TurnKind::kHolding) {
      memory.promised_until = TimePoint();
      continue;
    }
    // (The daemon cannot promise what other programs take, or what a stopped program has and has not reported.)
    const bool is_as_then = after.foreign <= memory.promised_beside && now_ > gpu_memory_[index].surprised_until;
    if (now_ < memory.promised_until && is_as_then &&
        (now->room < memory.promised || now->commitment < memory.promised_commitment))
      fail(name(turn.seat) + " holds its lease, was given room for what it asked for, and loses it at once: " +
           std::to_string(memory.promised) + ", " + std::to_string(now->room) + describe(index));
    const bool is_answered = memory.waits && then->wanted > 0 && now->wanted == 0;
    if (!is_answered || now->room < memory.wanted_room || now->commitment < memory.wanted_commitment) continue;
    memory.promised = memory.wanted_room;
    memory.promised_commitment = memory.wanted_commitment;
    memory.promised_beside = after.foreign;
    memory.promised_until = memory.kept_until = now_ + sched::kTakePatience;
  }
}

// All seats of all GPUs, and what each of them waits for.
std::string World::describe_turns() const {
  std::string text;
  for (const sched::GpuView& gpu : machine_->leases().view(now_)) {
    text += "\nGPU " + std::to_string(gpu.gpu.value) + ":";
    for (const sched::SeatView& seat : gpu.seats) {
      text += "\n  " + std::to_string(seat.seat.tenant.value) + " phase " +
              std::to_string(static_cast<int>(seat.phase)) + " since " +
              std::to_string(seat.since.time_since_epoch().count()) + " place " + std::to_string(seat.queue_place) +
              " " + seat.gang + ": " + seat.waits_for;
    }
  }
  return text;
}

// The planner's view of a GPU, for a person who looks into a failure.
std::string World::describe(std::uint32_t gpu) const {
  const sched::GpuMemory view = machine_->memory().view(GpuIndex{gpu});
  std::vector<sched::Turn> turns;
  machine_->leases().turns(GpuIndex{gpu}, turns);
  std::string text = ": capacity " + std::to_string(view.capacity) + ", reserve " + std::to_string(view.reserve) +
                     ", foreign " + std::to_string(view.foreign) + ", returning " + std::to_string(view.returning);
  for (const sched::Turn& turn : turns) {
    for (const sched::SeatMemoryView& seat : view.seats) {
      if (seat.seat != turn.seat) continue;
      text += "; " + std::to_string(seat.seat.tenant.value) + " turn " + std::to_string(static_cast<int>(turn.kind)) +
              " has " + std::to_string(seat.report.resident) + "+" + std::to_string(seat.report.unpageable) +
              " evicted " + std::to_string(seat.report.evicted) + " room " + std::to_string(seat.room) + " counted " +
              std::to_string(seat.counted) + " wants " + std::to_string(seat.wanted);
    }
  }
  return text;
}

// A seat that takes no note of a bound for kAnswerPatience counts for what it has, and is otherwise treated as stopped.
// On a machine that is not overloaded only stopped programs are that late.
void World::check_answers(std::uint32_t gpu) {
  for (const sched::SeatMemoryView& seat : machine_->memory().view(GpuIndex{gpu}).seats) {
    const Rank* const rank = rank_of(seat.seat);
    if (seat.answers || !seat.speaks || rank == nullptr || !rank->process->alive || rank->process->stopped) continue;
    if (!options_.overloaded && now_ > gpu_memory_[gpu].surprised_until)
      fail(name(seat.seat) + " answers at once, and is taken to be stopped" + describe(gpu));
    surprise(gpu, kLongestStop);
  }
}

void World::check_memory() {
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    if (used(i) > gpu_memory_[i].capacity) fail("GPU " + std::to_string(i) + " holds more than it has");
  }
  check_modes();
  if (!outcome_.wrong.empty()) return;
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    check_answers(i);
    if (now_ <= gpu_memory_[i].surprised_until) continue;
    for (const sched::SeatMemoryView& seat : machine_->memory().view(GpuIndex{i}).seats) {
      const Rank* const rank = rank_of(seat.seat);
      // (A frozen program cannot report what the driver took for it a moment before: looks show it, as foreign.)
      if (rank == nullptr || !rank->process->alive || rank->process->frozen || !seat.speaks) continue;
      const SimulatedMemory& memory = rank->memory;
      if (memory.on_gpu() - memory.context > seat.counted)
        fail(name(seat.seat) + " has " + std::to_string(memory.on_gpu() - memory.context) + " and counts for " +
             std::to_string(seat.counted));
    }
  }
}

// Where memory decides the mode, it follows programs' real memory. They run at once while all fits and no program has a
// right to more of the GPU than another, by turns otherwise.
void World::check_modes() {
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    GpuMemory& gpu = gpu_memory_[i];
    std::uint64_t sum = 0;
    std::set<std::pair<std::int32_t, std::uint32_t>> standings;
    std::set<std::string> groups;
    bool any_cap = false;
    std::size_t seats = 0;
    bool is_clear = settings_[i].mode == settings::Mode::kAuto && now_ > gpu.surprised_until && now_ > troubled_at_;
    for (const auto& [tenant, process] : by_tenant_) {
      if (!process->alive) continue;
      for (const auto& rank : process->ranks) {
        if (rank->seat.gpu.value != i) continue;
        if (process->job->is_suspended) {
          sum += rank->memory.unpageable;
          continue;
        }
        is_clear = is_clear && is_present(*process) && !process->stopped && !rank->memory.waits;
        sum += rank->memory.allocated();
        standings.emplace(process->job->priority, process->job->weight);
        const std::string& claim = process->job->claim;
        groups.insert(claim.empty() ? std::to_string(tenant.value) : claim);
        any_cap = any_cap || process->job->cap != sched::kNoCap;
        ++seats;
      }
    }
    is_clear = is_clear && seats > 1;
    const sched::GpuMemory view = machine_->memory().view(GpuIndex{i});
    const std::uint64_t gone = view.reserve + view.foreign;
    const std::uint64_t most = gpu.capacity - std::min(gpu.capacity, gone);
    const bool differs = standings.size() > 1 || any_cap || (groups.size() > 1 && seats > groups.size());
    // (Programs that stand differently run beside one that cannot be drained.)
    const bool needs_turns = differs && !machine_->leases().has_overruns({i});
    const bool is_too_much = is_clear && (sum > most || needs_turns);
    const bool fits = is_clear && !differs && sum + gpu.capacity / sched::kFitMarginDivisor + 64 * kMiB <= most;
    gpu.too_much_since = is_too_much ? std::min(gpu.too_much_since, now_) : TimePoint::max();
    gpu.fits_since = fits ? std::min(gpu.fits_since, now_) : TimePoint::max();
    const auto lasts = [this](TimePoint since) {
      return since != TimePoint::max() && now_ - since > kLongestModeChange;
    };
    if (lasts(gpu.too_much_since) && machine_->mode({i}) != sched::Mode::kSerial)
      fail("GPU " + std::to_string(i) + " runs all at once what does not fit together, or does not stand alike");
    if (lasts(gpu.fits_since) && !machine_->is_open({i}) && machine_->mode({i}) != sched::Mode::kConcurrent)
      fail("GPU " + std::to_string(i) + " runs by turns what fits together");
  }
}

// Whether the seat's memory could be there if all the others gave up what they can.
bool World::can_ever_fit(const Rank& rank) const {
  const sched::GpuMemory view = machine_->memory().view(rank.seat.gpu);
  std::uint64_t taken = view.reserve + view.foreign + view.returning;
  // Where all are to run at once, whatever they have, nothing leaves for another one's sake: also what was evicted
  // before may wait for ever.
  const bool all_stay = settings_[rank.seat.gpu.value].mode == settings::Mode::kConcurrent;
  for (const sched::SeatMemoryView& seat : view.seats) {
    if (seat.seat == rank.seat) continue;
    const std::uint64_t allocated = std::min(seat.report.allocated, seat.promised);
    taken += all_stay && !seat.is_suspended ? allocated : seat.report.unpageable;
  }
  return rank.memory.allocated() + taken <= view.capacity;
}

// Whether what does not fit on the GPUs fits into host memory, with a chunk for each that is evicted.
bool World::can_host_hold() const {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    const sched::GpuMemory view = machine_->memory().view(GpuIndex{i});
    std::uint64_t allocated = view.reserve + view.foreign + view.returning;
    for (const sched::SeatMemoryView& seat : view.seats) {
      sum += 64 * kMiB;
      // (In modes in which memory is not moved, what is suspended is.)
      // (Liars have what they say of each part, and not the sum.)
      const std::uint64_t parts = seat.report.resident + seat.report.evicted + seat.report.unpageable;
      const std::uint64_t its = std::min(seat.report.allocated, parts);
      const std::uint64_t leaves = seat.is_suspended ? its - std::min(its, seat.report.unpageable) : 0;
      sum += leaves;
      allocated += its - leaves;
    }
    sum += allocated - std::min(allocated, view.capacity);
  }
  return sum <= host_budget_;
}

// A holder that cannot have its memory does not keep the GPU from a seat that could run.
void World::check_idle_holders() {
  for (const auto& [tenant, process] : by_tenant_) {
    for (const auto& holder : process->ranks) {
      const bool is_idle = is_present(*process) && !process->stopped && holder->granted && holder->blocked &&
                           holder->kind == sched::LeaseKind::kExclusive && !has_memory(*holder);
      holder->idle_since = is_idle ? std::min(holder->idle_since, now_) : TimePoint::max();
      if (!is_idle) continue;
      for (const auto& [id, other] : by_tenant_) {
        if (!is_present(*other) || other->stopped || other->job->ranks.size() > 1) continue;
        const Rank& waiter = *other->ranks.front();
        if (waiter.job->cap != sched::kNoCap || waiter.job->is_suspended) continue;  // it may wait for its own sake
        if (waiter.seat.gpu != holder->seat.gpu || !waiter.asked || waiter.memory.evicted > 0) continue;
        const Duration idle = now_ - std::max({holder->idle_since, waiter.asked_at, troubled_at_});
        if (idle > kLongestIdle) {
          fail(name(holder->seat) + " holds its lease without its memory, and " + name(waiter.seat) + " waits for " +
               std::to_string(idle.count()) + " ns" + describe(holder->seat.gpu.value) + describe_turns());
        }
      }
    }
  }
}

// Every waiting seat goes on, and every wish is answered, within a bound that is the others' turns.
void World::check_memory_waits() {
  if (!daemon_up_) return;
  check_idle_holders();
  Duration turn{};
  for (std::uint32_t i = 0; i < gpus_; ++i) {
    // Out, and in.
    const Duration moves = gpu_memory_[i].chunk_time * static_cast<std::int64_t>(gpu_memory_[i].capacity / kMiB / 32);
    turn = std::max(turn, settings_[i].max_runtime.value() + moves);
  }
  constexpr int kTurns = 3;
  // A seat that has held for long before owes the others this much of their turns, and is behind them until then.
  Duration debt{};
  if (options_.faults) debt = kLongestDebt;
  const sched::Limit<Duration> ageing = longest_ageing();
  const Duration bound = (turn * kTurns + debt) * (jobs_wanted_ + 1) + sched::kRoomPatience;
  if (!can_host_hold()) troubled_at_ = std::max(troubled_at_, now_);
  for (const auto& [tenant, process] : by_tenant_) {
    Job& job = *process->job;
    if (!job.alive || !is_present(*process) || process->stopped || now_ < job.disturbed) continue;
    for (const auto& rank : process->ranks) {
      SimulatedMemory& memory = rank->memory;
      if (memory.waits) {
        const Duration waited = now_ - std::max({memory.wanted_at, troubled_at_, job.disturbed});
        if (waited > kLongestWish) fail(name(rank->seat) + " has waited for room too long, and was not refused");
      }
      if (!rank->blocked || job.waits_for_next_percent > 0) continue;
      // Its cap, or those of higher priority, may keep it for as long as they like.
      if (job.cap != sched::kNoCap || (is_outranked(job) && ageing.is_unlimited())) continue;
      for (Rank* member : job.ranks) {
        if (!can_ever_fit(*member)) job.disturbed = now_;
      }
      const Duration waited = now_ - std::max({rank->blocked_at, troubled_at_, job.disturbed});
      outcome_.longest_wait = std::max(outcome_.longest_wait, waited);
      if (waited > bound) {
        fail(name(rank->seat) + " has waited " + std::to_string(waited.count()) + " ns, more than " +
             std::to_string(bound.count()) + (rank->granted ? ", for its memory" : ", for its turn") + ", host " +
             std::to_string(host_used_) + " of " + std::to_string(host_budget_) + describe(rank->seat.gpu.value) +
             describe_turns());
      }
    }
  }
}

}  // namespace gpumux::simsched
