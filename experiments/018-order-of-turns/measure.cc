// SPDX-License-Identifier: Apache-2.0
// Measures one variant of the lease core for run.py. `measure sim` runs the simulator's seeds, each in a process of
// its own, and prints one line for each. `measure hands` runs a few programs on one GPU, and prints what each got done.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sched/lease/lease_core.h"
#include "sched/memory/residency.h"
#include "sim/sched/simulation.h"

namespace gpumux {
namespace {

using base::Duration;
using base::GpuIndex;
using base::LeaseEpoch;
using base::SeatId;
using base::TenantId;
using base::TimePoint;
using simsched::Options;
using simsched::Outcome;
using namespace std::chrono_literals;

// ---- the simulator's seeds ----------------------------------------------------------------------

// A seed takes well under a second. A variant whose core looks at the same thing for ever takes longer.
constexpr unsigned kLongestSeedS = 20;
// After so many of those the rest of a scenario's seeds say nothing new.
constexpr int kMostHangs = 3;

struct Scenario {
  const char* name;
  std::uint64_t first, seeds;
  Options options;
};

settings::GpuSettings by_turns(settings::Auto<sched::Limit<Duration>> quantum) {
  settings::GpuSettings settings;
  settings.mode = settings::Mode::kSerial;
  settings.in_flight = sched::kUnlimited;
  settings.quantum = quantum;
  return settings;
}

settings::GpuSettings without_overlap() {
  settings::GpuSettings settings = by_turns(5ms);
  settings.overlap = false;
  settings.stall_timeout = 1s;
  settings.stall_retry = 50ms;
  return settings;
}

std::vector<Scenario> scenarios() {
  return {
      {"faults", 1, 600, {.steps = 600, .duration = 30s}},
      {"calm", 100'000, 300, {.steps = 2000, .duration = 30s, .faults = false}},
      {"crowd", 150'000, 60, {.steps = 4000, .duration = 30s, .gpus = 2, .jobs = 12, .faults = false}},
      {"overloaded", 400'000, 300, {.steps = 1000, .duration = 30s, .overloaded = true}},
      {"eager", 600'000, 200, {.steps = 1000, .duration = 30s, .eager = true, .overloaded = true}},
      {"strangers",
       910'000,
       100,
       {.steps = 4000, .duration = 60s, .collectives = true, .strangers = true, .overloaded = true}},
      {"suspend", 800'000, 200, {.steps = 1000, .duration = 30s, .suspensions = true}},
      {"memory", 700'000, 80, {.steps = 4000, .duration = 20s, .memory = true}},
      {"memory, overloaded, suspend",
       840'000,
       20,
       {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true, .suspensions = true}},
      {"memory, calm", 720'000, 20, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true}},
      {"hostile", 740'000, 20, {.steps = 4000, .duration = 20s, .memory = true, .hostile = true}},
      {"claims", 1'100'000, 100, {.steps = 1000, .duration = 30s, .claims = true}},
      {"busy, claims",
       1,
       20,
       {.steps = 1'000'000,
        .duration = 10s,
        .gpus = 1,
        .jobs = 6,
        .faults = false,
        .claims = true,
        .busy_singles = true,
        .settings = without_overlap()}},
      // Ranks that spin for members which have not joined yet: each gang holds half of what the other one needs.
      {"half gangs",
       1,
       20,
       {.steps = 1'000'000,
        .duration = 20s,
        .gpus = 2,
        .jobs = 2,
        .faults = false,
        .collectives = true,
        .settings = without_overlap(),
        .eager = true}},
      {"automatic",
       2'000'000,
       60,
       {.steps = 20'000,
        .duration = 10s,
        .gpus = 1,
        .jobs = 4,
        .faults = false,
        .settings = by_turns(sched::kAutomatic)}},
  };
}

// For jobs that always have work: the greatest difference between a claim's part of the time and its weight's.
double unfairness(const Outcome& outcome) {
  struct Had {
    double busy = 0;
    std::uint32_t weight = 1;
  };
  std::map<std::string, Had> claims;
  double all = 0;
  std::uint32_t weights = 0;
  for (std::size_t i = 0; i < outcome.jobs.size(); ++i) {
    const simsched::JobOutcome& job = outcome.jobs[i];
    Had& had = claims[job.claim.empty() ? std::to_string(i) : job.claim];
    had.busy += static_cast<double>(job.busy.count());
    had.weight = job.weight;
    all += static_cast<double>(job.busy.count());
  }
  for (const auto& [name, had] : claims) weights += had.weight;
  double most = 0;
  for (const auto& [name, had] : claims) most = std::max(most, std::abs(had.busy / all - 1.0 * had.weight / weights));
  return most;
}

void print_outcome(const Scenario& scenario, std::uint64_t seed, const Outcome& outcome) {
  Duration busy{};
  for (const simsched::JobOutcome& job : outcome.jobs) busy += job.busy;
  std::string wrong = outcome.wrong.substr(0, outcome.wrong.find('\n'));
  std::replace(wrong.begin(), wrong.end(), '\t', ' ');
  const bool is_busy = scenario.options.busy_singles;
  std::uint64_t least = ~std::uint64_t{0};
  for (const simsched::JobOutcome& job : outcome.jobs) least = std::min(least, job.kernels);
  std::printf("%s\t%llu\t%.9f\t%.9f\t%.9f\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%.4f\t%llu\t%s\n", scenario.name,
              static_cast<unsigned long long>(seed), static_cast<double>(outcome.time.count()) / 1e9,
              static_cast<double>(outcome.longest_wait.count()) / 1e9, static_cast<double>(busy.count()) / 1e9,
              static_cast<unsigned long long>(outcome.grants), static_cast<unsigned long long>(outcome.let_through),
              static_cast<unsigned long long>(outcome.stalls), static_cast<unsigned long long>(outcome.killed_stalled),
              static_cast<unsigned long long>(outcome.borrowed), static_cast<unsigned long long>(outcome.gave_way),
              is_busy ? unfairness(outcome) : 0.0, static_cast<unsigned long long>(least), wrong.c_str());
}

// Runs the seeds of one scenario, or of all if `only` is empty.
void run_seeds(std::uint64_t divisor, std::string_view only) {
  for (Scenario& scenario : scenarios()) {
    if (!only.empty() && only != scenario.name) continue;
    const std::uint64_t seeds = std::max<std::uint64_t>(scenario.seeds / divisor, 1);
    int hung = 0;
    for (std::uint64_t seed = scenario.first; seed < scenario.first + seeds && hung < kMostHangs; ++seed) {
      std::fflush(stdout);
      const pid_t child = fork();
      if (child == 0) {
        alarm(kLongestSeedS);
        scenario.options.seed = seed;
        print_outcome(scenario, seed, simulate(scenario.options));
        std::fflush(stdout);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      const bool hangs = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
      hung += hangs ? 1 : 0;
      std::printf("%s\t%llu\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t0\t%s\n", scenario.name,
                  static_cast<unsigned long long>(seed), hangs ? "the core never comes to rest" : "the core crashes");
    }
  }
}

// ---- programs on one GPU ------------------------------------------------------------------------

constexpr Duration kTick = 5us;
constexpr Duration kSeen = 30us;      // until the library sees that its program idles
constexpr Duration kHandOver = 50us;  // from a release to the next one's first kernel

// It works `step`, then does something else for gap(), again and again. The work that is queued when its gate closes
// runs on, and the next program's work waits for that.
struct Program {
  const char* name;
  Duration step{};
  std::function<Duration()> gap;
  std::uint32_t weight = 1;
  std::int32_t priority = 0;
  Duration queued{};         // of its work, at most
  Duration paging{};         // what its memory takes to come; zero: it stays on the GPU
  bool comes_early = false;  // from when it has drained; else from its grant
  bool is_stuck = false;     // its memory does not come, which the planner says after `patience`
  Duration patience = sched::kHolderPatience;
  Duration recovers{};  // after so long it comes, until the end of the next turn; zero: never
  SeatId seat{};
  bool holds = false;
  bool contended = false;
  LeaseEpoch epoch{};
  sched::Limit<Duration> idle_hold = Duration::zero();
  TimePoint starts{};  // not before
  Duration work{};     // left of its step
  TimePoint idle_since = TimePoint::max();
  TimePoint back = TimePoint::max();  // from its gap
  TimePoint drained_at = TimePoint::max();
  bool lacks = false;  // its memory is not on the GPU
  TimePoint stuck_since = TimePoint::max();
  TimePoint recovers_at = TimePoint::max();
  TimePoint comes_at = TimePoint::max();
  Duration worked{};
  TimePoint step_began{};
  std::vector<Duration> late;  // how much longer than `step` each step took
  std::uint64_t grants = 0;
};

struct Setup {
  const char* name;
  Duration time;
  std::vector<Program> programs;
  sched::PolicyKind policy = sched::PolicyKind::kFair;
  settings::Auto<sched::Limit<Duration>> quantum = sched::kAutomatic;
  sched::Limit<Duration> max_runtime = 300s;
  sched::Limit<Duration> ageing = sched::kUnlimited;
};

class Hands {
 public:
  explicit Hands(Setup setup) : setup_(std::move(setup)) {
    sched::GpuSettings settings{by_turns(setup_.quantum)};
    settings.policy = setup_.policy;
    settings.max_runtime = setup_.max_runtime;
    settings.priority_ageing = setup_.ageing;
    tell(sched::GpuAdded{GpuIndex{0}, settings, LeaseEpoch{1}});
    std::uint64_t tenant = 0;
    for (Program& one : setup_.programs) {
      one.seat = {TenantId{++tenant}, GpuIndex{0}};
      one.work = one.step;
      tell(sched::TenantConnected{one.seat.tenant, 0});
      tell(sched::SeatOpened{one.seat, one.weight, false, one.priority});
      if (one.paging > Duration::zero() || one.is_stuck) need(one, true);
      if (one.comes_early) begin_to_come(one);
      if (one.paging == Duration::zero()) tell(sched::MemoryExpected{one.seat, sched::MemoryOutlook::kStays});
      tell(sched::Requested{one.seat});
    }
  }

  void run() {
    for (; now_ < TimePoint(setup_.time); now_ += kTick) {
      if (const auto deadline = core_.next_deadline(); deadline && *deadline <= now_) tell(sched::TimePassed{});
      for (Program& one : setup_.programs) advance(one);
      while (!to_tell_.empty()) {
        const sched::Event event = to_tell_.front();
        to_tell_.erase(to_tell_.begin());
        tell(event);
      }
    }
    print();
  }

 private:
  void tell(const sched::Event& event) {
    std::vector<sched::Command> commands;
    core_.apply(now_, event, commands);
    for (const sched::Command& command : commands) {
      for (Program& one : setup_.programs) carry_out(one, command);
    }
  }

  void need(Program& one, bool lacks) {
    one.lacks = lacks;
    tell(sched::MemoryNeed{one.seat, lacks});
    if (!lacks) tell(sched::MemoryExpected{one.seat, sched::MemoryOutlook::kUnknown});
  }

  void carry_out(Program& one, const sched::Command& command) {
    if (const auto* grant = std::get_if<sched::Grant>(&command); grant != nullptr && grant->seat == one.seat) {
      one.holds = true;
      one.epoch = grant->epoch;
      one.contended = grant->contended;
      one.idle_hold = grant->idle_hold;
      one.starts = std::max(now_ + kHandOver, queue_ends_);
      if (one.is_stuck) {
        one.starts = TimePoint::max();
        one.stuck_since = std::min(one.stuck_since, now_);
      } else if (one.lacks && one.comes_early) {
        one.starts = std::max(one.starts, one.comes_at);
      } else if (one.lacks) {
        one.starts += one.paging;
        to_tell_.emplace_back(sched::MemoryExpected{one.seat, sched::MemoryOutlook::kComes});
      }
      ++one.grants;
    }
    if (const auto* told = std::get_if<sched::Contention>(&command); told != nullptr && told->seat == one.seat) {
      one.contended = told->contended;
      one.idle_hold = told->idle_hold;
    }
    if (const auto* revoke = std::get_if<sched::Revoke>(&command); revoke != nullptr && revoke->seat == one.seat) {
      one.holds = false;
      to_tell_.emplace_back(sched::GateClosed{one.seat, one.epoch});
      // The work that it has queued is done in any case.
      const Duration queued = now_ < one.starts ? Duration::zero() : std::min(one.queued, one.work);
      one.worked += queued;
      one.work -= queued;
      one.drained_at = queue_ends_ = now_ + queued;
      if (one.work > Duration::zero()) {
        to_tell_.emplace_back(sched::Requested{one.seat});
      } else if (queued > Duration::zero()) {
        end_step(one, one.drained_at);
      }
    }
  }

  static void end_step(Program& one, TimePoint when) {
    one.late.push_back(when - one.step_began - one.step);
    one.idle_since = TimePoint::max();
    one.back = when + one.gap();
  }

  void advance(Program& one) {
    if (one.stuck_since != TimePoint::max() && now_ >= one.stuck_since + one.patience) {
      one.stuck_since = TimePoint::max();
      if (one.recovers > Duration::zero()) one.recovers_at = now_ + one.recovers;
      tell(sched::MemoryObstructed{one.seat, sched::MemoryObstacle::kOtherTenants});
    }
    if (now_ >= one.recovers_at) {
      one.recovers_at = TimePoint::max();
      one.is_stuck = false;
      tell(sched::MemoryObstructed{one.seat, sched::MemoryObstacle::kNone});
    }
    if (now_ >= one.comes_at) {
      one.comes_at = TimePoint::max();
      need(one, false);
    }
    if (now_ >= one.drained_at) {
      one.drained_at = TimePoint::max();
      left(one);
    }
    if (now_ >= one.back && one.drained_at == TimePoint::max()) {
      one.step_began = one.back;
      one.back = one.idle_since = TimePoint::max();
      one.work = one.step;
      if (!one.holds) to_tell_.emplace_back(sched::Requested{one.seat});
    }
    if (!one.holds || now_ < one.starts) return;
    if (one.lacks) need(one, false);
    if (one.work > Duration::zero()) {
      one.worked += kTick;
      one.work -= kTick;
      if (one.work > Duration::zero()) return;
      end_step(one, now_);
      one.idle_since = now_;
    } else if (one.contended && one.idle_since != TimePoint::max() &&
               now_ - one.idle_since >= std::max<sched::Limit<Duration>>(one.idle_hold, kSeen)) {
      one.idle_since = TimePoint::max();
      one.holds = false;
      left(one);
    }
  }

  void begin_to_come(Program& one) {
    one.comes_at = now_ + one.paging;
    to_tell_.emplace_back(sched::MemoryExpected{one.seat, sched::MemoryOutlook::kComes});
  }

  // It has drained. Its memory makes room for another one's.
  void left(Program& one) {
    if (one.paging > Duration::zero()) need(one, true);
    if (one.comes_early) begin_to_come(one);
    if (one.recovers > Duration::zero()) one.is_stuck = true;
    to_tell_.emplace_back(sched::Drained{one.seat, one.epoch});
  }

  void print() {
    if (const std::string wrong = core_.check_invariants(); !wrong.empty())
      std::printf("%s\tWRONG\t%s\n", setup_.name, wrong.c_str());
    const double seconds = static_cast<double>(setup_.time.count()) / 1e9;
    double sum = 0;
    std::uint64_t grants = 0;
    for (const Program& one : setup_.programs) {
      sum += 100.0 * static_cast<double>(one.worked.count()) / static_cast<double>(setup_.time.count());
      grants += one.grants;
    }
    std::printf("%s\tall\t%.1f\t%.1f\t\t\n", setup_.name, sum, static_cast<double>(grants) / seconds);
    for (Program& one : setup_.programs) {
      std::sort(one.late.begin(), one.late.end());
      Duration late{};
      for (const Duration each : one.late) late += each;
      const double mean =
          one.late.empty() ? 0 : static_cast<double>(late.count()) / 1e6 / static_cast<double>(one.late.size());
      const double worst =
          one.late.empty() ? 0 : static_cast<double>(one.late[one.late.size() * 99 / 100].count()) / 1e6;
      std::printf("%s\t%s\t%.1f\t%.1f\t%.3f\t%.3f\n", setup_.name, one.name,
                  100.0 * static_cast<double>(one.worked.count()) / static_cast<double>(setup_.time.count()),
                  static_cast<double>(one.grants) / seconds, mean, worst);
    }
  }

  Setup setup_;
  sched::LeaseCore core_;
  TimePoint now_{};
  TimePoint queue_ends_{};
  std::vector<sched::Event> to_tell_;
};

std::function<Duration()> gaps(Duration each) {
  return [each] { return each; };
}

// `shorts` short gaps, then a long one.
std::function<Duration()> gaps(int shorts, Duration short_gap, Duration long_gap) {
  return [=, i = 0]() mutable { return ++i % (shorts + 1) == 0 ? long_gap : short_gap; };
}

std::function<Duration()> random_gaps(Duration least, Duration most) {
  return [=, random = std::mt19937(1)]() mutable {
    return least + kTick * static_cast<std::int64_t>(random() % static_cast<std::uint64_t>((most - least) / kTick));
  };
}

void run_hands() {
  const Program busy{.name = "busy", .step = 4ms, .gap = gaps(0us), .queued = 2ms};
  const Program low{.name = "low", .step = 4ms, .gap = gaps(0us), .priority = -1, .queued = 1ms};
  const Program high{.name = "high", .step = 4ms, .gap = gaps(0us), .priority = 1, .queued = 1ms};
  const auto pausing = [](Duration step, auto gap, std::uint32_t weight = 1) {
    return Program{.name = "pauses", .step = step, .gap = gap, .weight = weight, .queued = 2ms};
  };
  // A request is ten kernels, with the host's work in between.
  const auto serving = [](Duration gap) {
    return Program{.name = "serves", .step = 1ms, .gap = gaps(9, gap, 40ms), .priority = 1, .queued = 1ms};
  };
  // Two whose memory does not fit together.
  const auto paged = [](const char* name, Duration step, auto gap, std::int32_t priority, Duration paging = 200ms) {
    return Program{.name = name, .step = step, .gap = gap, .priority = priority, .queued = 1ms, .paging = paging};
  };
  const Program moves = paged("moves", 4ms, gaps(0us), 0, 20ms);
  Program stuck_at_first = paged("stuck", 4ms, gaps(0us), 0, 20ms);
  stuck_at_first.is_stuck = true;
  stuck_at_first.patience = 0ms;  // the planner knows that it cannot be
  stuck_at_first.recovers = 100ms;
  Program comes_early = paged("moves", 4ms, gaps(0us), 0, 300ms);
  comes_early.comes_early = true;
  const std::vector<Program> three_in_turn = {moves, {.name = "stays", .step = 4ms, .gap = gaps(0us)}, moves};
  const std::vector<Setup> all = {
      {"two, gaps of 100 us", 2s, {pausing(3100us, gaps(100us)), pausing(3100us, gaps(100us))}},
      {"two, gaps of 300 us", 2s, {pausing(3100us, gaps(300us)), pausing(3100us, gaps(300us))}},
      {"two, gaps of 2 ms", 2s, {pausing(3100us, gaps(2ms)), pausing(3100us, gaps(2ms))}},
      {"three, nine gaps of 40 us and one of 1 ms", 2s, {3, pausing(600us, gaps(9, 40us, 1ms))}},
      {"three, gaps of 20 us to 1 ms", 2s, {3, pausing(600us, random_gaps(20us, 1ms))}},
      {"gaps of 300 us beside a busy one", 4s, {pausing(4ms, gaps(300us)), busy}},
      {"gaps of 500 us beside a busy one, weight 4", 4s, {pausing(4ms, gaps(490us), 4), busy}},
      {"gaps of 2 ms beside a busy one", 4s, {pausing(4ms, gaps(2ms)), busy}},
      {"serves, host works 100 us between kernels", 4s, {serving(100us), low}},
      {"serves, host works 500 us between kernels", 4s, {serving(500us), low}},
      {"serves, host works 2 ms between kernels", 4s, {serving(2ms), low}},
      {"high one with gaps of 500 us beside a low one",
       4s,
       {{.name = "high", .step = 4ms, .gap = gaps(490us), .priority = 1, .queued = 1ms}, low}},
      {.name = "high and low, max_runtime of 200 ms",
       .time = 10s,
       .programs = {high, low},
       .quantum = 40ms,
       .max_runtime = 200ms},
      {.name = "high and low, ageing of 200 ms",
       .time = 10s,
       .programs = {high, low},
       .quantum = 40ms,
       .ageing = 200ms},
      {"memory moves, gaps of 50 ms", 60s, {2, paged("pauses", 500ms, gaps(50ms), 0)}},
      {"memory moves, gaps of 1 s", 60s, {2, paged("pauses", 500ms, gaps(1s), 0)}},
      {"memory moves, high one back after 590 ms",
       60s,
       {paged("high", 10ms, gaps(590ms), 1), paged("low", 4ms, gaps(0us), 0)}},
      {"memory moves, high one back after 5 s",
       60s,
       {paged("high", 10ms, gaps(5s), 1), paged("low", 4ms, gaps(0us), 0)}},
      {"one cannot have its memory",
       60s,
       {{.name = "stuck", .step = 4ms, .gap = gaps(0us), .is_stuck = true}, busy, busy}},
      {"memory of one comes while the other works", 20s, {2, comes_early}, sched::PolicyKind::kFair, 200ms},
      {"one of four is obstructed at first, fifo",
       20s,
       {stuck_at_first, busy, busy, busy},
       sched::PolicyKind::kFifo,
       200ms},
      {"memory of two of three moves, 20 ms of 220", 20s, three_in_turn, sched::PolicyKind::kFair, 200ms},
      {"memory of two of three moves, fifo", 20s, three_in_turn, sched::PolicyKind::kFifo, 200ms},
  };
  for (const Setup& setup : all) Hands(setup).run();
}

}  // namespace
}  // namespace gpumux

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "sim") {
    gpumux::run_seeds(argc > 2 ? std::stoull(argv[2]) : 1, argc > 3 ? argv[3] : "");
  } else if (what == "hands") {
    gpumux::run_hands();
  } else {
    std::fprintf(stderr, "measure sim [DIVISOR [SCENARIO]] | measure hands\n");
    return 2;
  }
  return 0;
}
