// SPDX-License-Identifier: Apache-2.0
// Goal: the rule of the idle hold pays (`idle_hold_of` in order.h; "Idle hold" in docs/order.md). Long gaps leave the
// GPU idle next to never. With short or mixed gaps no more is lost than with one hold for all. A program that pauses
// often has its share. Method: programs of steps and gaps in virtual time. A change of hands takes as long as on a real
// machine. The figures are how busy the GPU is, and how much of that is each program's work. The rows for priorities
// and for memory that moves are tested in standing_test.cc and paged_turns_test.cc.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "sched/testing/one_gpu.h"

namespace gpumux::sched {
namespace {

constexpr Duration kTick = 5us;
constexpr Duration kSeen = 30us;      // until idleness is looked at
constexpr Duration kHandOver = 50us;  // from a release to the next one's first kernel

struct Program {
  Duration step{};
  std::function<Duration()> gap;  // the next one
  std::uint32_t weight = 1;
  SeatId seat{};
  bool holds = false;
  LeaseEpoch epoch{};
  Limit<Duration> idle_hold = Duration::zero();
  TimePoint starts{};  // not before
  Duration work{};     // left of its step
  TimePoint idle_since = TimePoint::max();
  TimePoint back = TimePoint::max();  // from its gap
  Duration worked{};
};

// Each program's work, in thousandths of the work that one without pauses would get done alone.
std::vector<std::int64_t> together(std::vector<Program> all, settings::Auto<Limit<Duration>> idle_hold) {
  LeaseCore core;
  TimePoint now{};
  std::vector<Event> to_tell;
  const auto tell = [&](const Event& event) {
    std::vector<Command> commands;
    core.apply(now, event, commands);
    for (const Command& command : commands) {
      for (Program& one : all) {
        if (const auto* grant = std::get_if<Grant>(&command); grant != nullptr && grant->seat == one.seat) {
          one.holds = true;
          one.epoch = grant->epoch;
          one.idle_hold = grant->idle_hold;
          one.starts = now + kHandOver;
        }
        if (const auto* told = std::get_if<Contention>(&command); told != nullptr && told->seat == one.seat)
          one.idle_hold = told->idle_hold;
        if (const auto* revoke = std::get_if<Revoke>(&command); revoke != nullptr && revoke->seat == one.seat) {
          one.holds = false;
          to_tell.emplace_back(GateClosed{one.seat, one.epoch});
          to_tell.emplace_back(Drained{one.seat, one.epoch});
          if (one.work > Duration::zero()) to_tell.emplace_back(Requested{one.seat});
        }
      }
    }
  };
  GpuSettings settings = plain();
  settings.mode = Mode::kSerial;
  settings.idle_hold = idle_hold;
  tell(GpuAdded{GpuIndex{0}, settings, LeaseEpoch{1}});
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].seat = {TenantId{i + 1}, GpuIndex{0}};
    all[i].work = all[i].step;
    tell(TenantConnected{all[i].seat.tenant, 0});
    tell(SeatOpened{all[i].seat, all[i].weight});
    tell(Requested{all[i].seat});
  }
  constexpr Duration kTime = 4s;
  for (; now < TimePoint(kTime); now += kTick) {
    if (now.time_since_epoch() % 1ms == 0ms) tell(TimePassed{});
    for (Program& one : all) {
      if (now >= one.back) {
        one.back = one.idle_since = TimePoint::max();
        one.work = one.step;
        if (!one.holds) to_tell.emplace_back(Requested{one.seat});
      }
      if (!one.holds || now < one.starts) continue;
      if (one.work > Duration::zero()) {
        one.worked += kTick;
        one.work -= kTick;
        if (one.work > Duration::zero()) continue;
        one.idle_since = now;
        one.back = now + one.gap();
      } else if (one.idle_since != TimePoint::max() &&
                 now - one.idle_since >= std::max<Limit<Duration>>(one.idle_hold, kSeen)) {
        one.idle_since = TimePoint::max();
        one.holds = false;
        to_tell.emplace_back(Drained{one.seat, one.epoch});
      }
    }
    while (!to_tell.empty()) {
      const Event event = to_tell.front();
      to_tell.erase(to_tell.begin());
      tell(event);
    }
  }
  EXPECT_EQ(core.check_invariants(), "");
  std::vector<std::int64_t> worked;
  for (const Program& one : all) worked.push_back(1000 * one.worked / kTime);
  return worked;
}

// The part of the time, in thousandths, for which the GPU works. `gap`: of each program's next one.
std::int64_t busy(std::size_t programs, Duration step, const std::function<Duration()>& gap,
                  settings::Auto<Limit<Duration>> idle_hold) {
  const std::vector<std::int64_t> worked = together({programs, Program{.step = step, .gap = gap}}, idle_hold);
  return std::accumulate(worked.begin(), worked.end(), std::int64_t{0});
}

// A program that computes on the CPU between its steps runs with one that always has work queued.
std::vector<std::int64_t> beside_a_busy_one(Duration step, Duration gap, std::uint32_t weight) {
  const auto done = together({Program{.step = step, .gap = [gap] { return gap; }, .weight = weight},
                              Program{.step = 4ms, .gap = [] { return Duration::zero(); }}},
                             kAutomatic);
  std::printf("steps of %d ms and gaps of %d us, share %u: %.1f %%, the busy one %.1f %%\n",
              static_cast<int>(step / 1ms), static_cast<int>(gap / 1us), weight, static_cast<double>(done[0]) / 10,
              static_cast<double>(done[1]) / 10);
  return done;
}

// It gets its share of the time, its short gaps included, and the GPU is not kept idle for long ones.
TEST(IdleHold, WhoPausesOftenHasItsShare) {
  for (const Duration gap : {Duration(300us), Duration(500us)}) {
    EXPECT_GE(beside_a_busy_one(1ms, gap, 1)[0], 320);
    EXPECT_GE(beside_a_busy_one(4ms, gap, 1)[0], 440);
    EXPECT_GE(beside_a_busy_one(4ms, gap, 4)[0], 700);
    EXPECT_GE(beside_a_busy_one(20ms, gap, 4)[0], 770);
  }
  for (const Duration gap : {Duration(1ms), Duration(5ms)}) {
    for (const std::uint32_t weight : {1u, 4u}) {
      for (const Duration step : {1ms, 4ms, 20ms}) {
        const auto done = beside_a_busy_one(step, gap, weight);
        EXPECT_GE(done[0], step == 1ms ? 140 : step == 4ms ? 390 : weight == 1 ? 480 : 760);
        EXPECT_GE(done[0] + done[1], 975) << "a change of hands each few milliseconds at most";
      }
    }
  }
}

TEST(IdleHold, OfOneThatIsAlwaysLongInComingBackIsShort) {
  const auto long_gap = [] { return Duration(300us); };
  const std::int64_t kept = busy(2, 3100us, long_gap, 200us);
  const std::int64_t automatic = busy(2, 3100us, long_gap, kAutomatic);
  std::printf("two programs with gaps of 0.3 ms: kept for 0.2 ms %.1f %%, automatic %.1f %%\n",
              static_cast<double>(kept) / 10, static_cast<double>(automatic) / 10);
  EXPECT_LE(kept, 935);
  EXPECT_GE(automatic, 970);
}

// Keeping the GPU idle for a program that never comes back so soon is a loss each time.
TEST(IdleHold, FollowsTheLastGaps) {
  OneGpu s(automatic_hold());
  s.request(kA);
  const auto in_turn = [&s](Duration gap) {
    EXPECT_EQ(s.drained(kA).substr(0, 7), "grant 2");
    s.wait(gap);
    s.request(kA);
    EXPECT_EQ(s.drained(kB).substr(0, 7), "grant 1");
    s.wait(1ms);
  };
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(s.request(kB), "contention 1@0 yes 200000ns");
    in_turn(50us);  // and what it was kept for
  }
  EXPECT_EQ(s.request(kB), "contention 1@0 yes 25000ns");
  in_turn(10ms);
  EXPECT_EQ(s.request(kB), "contention 1@0 yes 25000ns");
  in_turn(50us);
  EXPECT_EQ(s.request(kB), "contention 1@0 yes 200000ns") << "it would have been back in time";
  in_turn(1ms);
  EXPECT_EQ(s.request(kB), "contention 1@0 yes 200000ns") << "once says nothing";
}

TEST(IdleHold, OfShortGapsIsLongEnough) {
  const auto short_gap = [] { return Duration(100us); };
  EXPECT_EQ(busy(2, 3100us, short_gap, kAutomatic), busy(2, 3100us, short_gap, 200us));
}

// Training loops: many short gaps, and a long one at the end of each step; and gaps of any length.
TEST(IdleHold, WhereGapsDifferNothingIsLost) {
  const auto compare = [](const char* name, Duration step, auto make_gap) {
    const std::int64_t kept = busy(3, step, make_gap(), 200us);
    const std::int64_t automatic = busy(3, step, make_gap(), kAutomatic);
    std::printf("%s: kept for 0.2 ms %.1f %%, automatic %.1f %%\n", name, static_cast<double>(kept) / 10,
                static_cast<double>(automatic) / 10);
    EXPECT_GE(automatic, kept - 5);
  };
  for (const int shorts : {1, 3, 9}) {
    compare("a long gap after some short ones", 600us, [shorts] {
      return [shorts, i = 0]() mutable { return ++i % (shorts + 1) == 0 ? Duration(1ms) : Duration(40us); };
    });
  }
  compare("gaps of 20 us to 1 ms", 600us, [] {
    return [random = std::mt19937(1)]() mutable {
      return Duration(20us) + kTick * static_cast<std::int64_t>(random() % 196);
    };
  });
}

// A quantum that is set is what every seat gets. Switches that are dear are not made more often for fairness.
TEST(IdleHold, ShortTurnsAreForWhereTheyAreCheap) {
  GpuSettings settings = automatic_hold();
  const auto grants_in_a_second = [&](Duration until_drained) {
    LeaseCore core;
    TimePoint now{};
    std::vector<Command> commands;
    const SeatId often{TenantId{1}, GpuIndex{0}};
    const SeatId busy{TenantId{2}, GpuIndex{0}};
    const auto tell = [&](const Event& event) { core.apply(now, event, commands); };
    tell(GpuAdded{GpuIndex{0}, settings, LeaseEpoch{1}});
    for (const SeatId seat : {often, busy}) {
      tell(TenantConnected{seat.tenant, 0});
      tell(SeatOpened{seat});
      tell(Requested{seat});
    }
    // The first one uses 1 ms of each turn, and comes back at once.
    std::int64_t turns = 0;
    std::map<SeatId, LeaseEpoch> held;
    TimePoint gives_up = TimePoint::max();
    std::vector<std::pair<TimePoint, Event>> to_come;
    for (; now < TimePoint(1s); now += 100us) {
      tell(TimePassed{});
      for (std::size_t i = 0; i < to_come.size();) {
        if (to_come[i].first > now) {
          ++i;
          continue;
        }
        const Event event = to_come[i].second;
        to_come.erase(to_come.begin() + static_cast<std::ptrdiff_t>(i));
        tell(event);
      }
      if (now >= gives_up) {
        gives_up = TimePoint::max();
        tell(Drained{often, held[often]});
        to_come.emplace_back(now + 300us, Requested{often});
      }
      for (const Command& command : std::exchange(commands, {})) {
        if (const auto* grant = std::get_if<Grant>(&command)) {
          held[grant->seat] = grant->epoch;
          ++turns;
          if (grant->seat == often) gives_up = now + 1ms;
        } else if (const auto* revoke = std::get_if<Revoke>(&command)) {
          const SeatId seat = revoke->seat;
          if (seat == often) gives_up = TimePoint::max();
          tell(GateClosed{seat, held[seat]});
          to_come.emplace_back(now + until_drained, Drained{seat, held[seat]});
          to_come.emplace_back(now + until_drained + 100us, Requested{seat});
        }
      }
    }
    EXPECT_EQ(core.check_invariants(), "");
    return turns;
  };
  settings.mode = Mode::kSerial;
  settings.overlap = false;
  const std::int64_t cheap = grants_in_a_second(100us);
  EXPECT_GE(cheap, 150);
  const std::int64_t dear = grants_in_a_second(10ms);
  EXPECT_LE(dear, 30) << "a turn of 20 times what a switch costs, and not 5 ms";
  settings.quantum = 100ms;
  const std::int64_t set = grants_in_a_second(100us);
  EXPECT_LE(set, 25) << "turns of 100 ms, and the others'";
  std::printf("turns in a second: cheap switches %d, dear ones %d, a set quantum %d\n", static_cast<int>(cheap),
              static_cast<int>(dear), static_cast<int>(set));
}

// A has had a turn. Then B is alone until A is behind by `by`, takes the GPU again, and A asks. How long B's turn is.
Duration turn_beside_one_that_is_behind(Duration by, Duration drain) {
  GpuSettings settings = automatic_hold();
  settings.overlap = false;
  OneGpu s(settings);
  const Duration quantum = s.gpu(0).quantum.value();
  s.request(kA);
  s.request(kB);
  s.wait(quantum);
  s.closed(kA);
  s.wait(drain);
  EXPECT_EQ(s.drained(kA).substr(0, 7), "grant 2");
  s.wait(quantum + drain + by);
  s.drained(kB);
  s.request(kB);
  s.request(kA);
  Duration turn{};
  for (; s.phase(kB) == SeatPhase::kHolding && turn < 1s; turn += 1ms) s.wait(1ms);
  return turn;
}

// By half a quantum of 40 ms. A change of hands and back may take a tenth of the turn.
TEST(IdleHold, TurnsAreShortFromHalfAQuantumOnAndAsLongAsTwentyDrains) {
  EXPECT_EQ(turn_beside_one_that_is_behind(19ms, 100us), 40ms);
  EXPECT_EQ(turn_beside_one_that_is_behind(21ms, 100us), 5ms);
  EXPECT_EQ(turn_beside_one_that_is_behind(21ms, 1ms), 20ms);
}

}  // namespace
}  // namespace gpumux::sched
