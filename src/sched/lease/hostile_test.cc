// SPDX-License-Identifier: Apache-2.0
// Goal: no sequence of events, however senseless, breaks an invariant, and the same sequence gives the same commands.
// Method: seeded random events over few tenants, GPUs and epochs, so that they collide; invariants after each.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "sched/testing/script.h"

namespace gpumux::sched {
namespace {

class Nonsense {
 public:
  explicit Nonsense(std::uint64_t seed) : random_(seed) {}

  // GPUs, tenants and seats, without which all later events would be senseless.
  std::vector<Event> start() {
    std::vector<Event> events;
    for (std::uint32_t gpu = 0; gpu < 3; ++gpu) events.emplace_back(GpuAdded{GpuIndex{gpu}, settings(), LeaseEpoch{1}});
    for (std::uint64_t tenant = 1; tenant < 6; ++tenant) {
      events.emplace_back(TenantConnected{TenantId{tenant}, 0});
      for (const std::uint32_t gpu : {0u, 1u}) {
        const SeatId seat{TenantId{tenant}, GpuIndex{gpu}};
        events.emplace_back(SeatOpened{.seat = seat, .can_freeze = tenant != 1 ? true : false});
      }
    }
    return events;
  }

  Event next(const LeaseCore& core, TimePoint now) {
    const SeatId seat = any_seat();
    switch (below(40)) {
      case 0: return TenantConnected{seat.tenant, below(2)};
      case 1: return below(4) == 0 ? Event(TenantGone{seat.tenant}) : Event(TimePassed{});
      case 2: return below(3) == 0 ? Event(GangJoined{seat.tenant, key(), below(4)}) : Event(TimePassed{});
      case 3:
      case 4: return SeatOpened{.seat = seat, .weight = below(4), .can_freeze = below(2) == 1};
      case 5:
        return SeatClaimed{seat, static_cast<Claim>(below(3)), static_cast<LeaseKind>(below(2)),
                           epoch(core, now, seat)};
      case 6: return below(3) == 0 ? Event(SeatClosed{seat}) : Event(TimePassed{});
      case 7: return SettingsChanged{seat.gpu, settings()};
      case 8:
        return below(8) == 0 ? Event(GrantsHeld{now + std::chrono::milliseconds(below(20))}) : Event(GrantsAllowed{});
      case 9: return GpuAdded{seat.gpu, settings(), LeaseEpoch{below(100)}};
      case 10:
      case 11:
      case 12: return RevokeSeen{seat, epoch(core, now, seat)};
      case 13:
      case 14:
      case 15:
      case 16: return GateClosed{seat, epoch(core, now, seat)};
      case 17:
      case 18:
      case 19:
      case 20: return Drained{seat, epoch(core, now, seat), below(50) == 0, below(3) == 0};
      case 21:
      case 22: return CannotFreeze{seat};
      case 23:
      case 24:
      case 25:
      case 26:
      case 27: return Requested{seat};
      case 28:
      case 29: return standing(seat);
      case 30: return MemoryNeed{seat, below(2) == 0};
      case 31: return Idling{seat, epoch(core, now, seat)};
      case 32:
      case 33: return MemoryExpected{seat, static_cast<MemoryOutlook>(below(8))};
      case 34: return below(4) == 0 ? Event(CannotFreeze{seat}) : Event(TimePassed{});
      case 35: return below(2) == 0 ? Event(SeatsSuspended{{seat}, below(3) == 0}) : Event(TimePassed{});
      default: return TimePassed{};
    }
  }

  std::uint32_t below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }

 private:
  SeatId any_seat() { return {TenantId{below(7)}, GpuIndex{below(4)}}; }
  std::string key() { return std::string(below(3), 'k'); }

  // Mostly the right one: nonsense that is refused at the door tests little.
  LeaseEpoch epoch(const LeaseCore& core, TimePoint now, SeatId seat) {
    if (below(20) == 0) return LeaseEpoch{below(2) == 0 ? below(50) : ~std::uint64_t{0} - below(2)};
    for (const GpuView& gpu : core.view(now)) {
      for (const SeatView& one : gpu.seats) {
        if (one.seat == seat) return one.epoch;
      }
    }
    return LeaseEpoch{1};
  }

  StandingChanged standing(SeatId seat) {
    const std::int32_t priority =
        below(20) == 0 ? std::numeric_limits<std::int32_t>::min() : static_cast<std::int32_t>(below(4)) - 1;
    return {seat, priority, below(20) == 0 ? ~0u : below(5), below(2) == 0 ? kNoCap : below(1100)};
  }

  GpuSettings settings() {
    GpuSettings s = plain();
    s.mode = static_cast<Mode>(below(4) == 0);
    s.policy = static_cast<PolicyKind>(below(2));
    const auto limit = [this](std::uint32_t one_in, std::uint32_t milliseconds) -> Limit<Duration> {
      if (below(one_in) == 0) return kUnlimited;
      return std::chrono::milliseconds(below(milliseconds));
    };
    const settings::Auto<Limit<Duration>> quanta[] = {kAutomatic, kUnlimited, Duration(0), std::chrono::milliseconds(5),
                                                      Duration(-7)};
    s.quantum = quanta[below(5)];
    s.max_runtime = below(3) == 0 ? Duration(0) : std::chrono::milliseconds(below(100));
    s.stall_timeout = std::chrono::milliseconds(below(30));
    s.kill_stalled_after = limit(2, 100);
    s.gang_ageing = std::chrono::milliseconds(below(20));
    s.silence_limit = limit(4, 20).at_most(std::chrono::hours(1));
    s.kill_silent_after = limit(2, 50);
    s.priority_ageing = limit(2, 50);
    s.overlap = below(2) == 0;
    return s;
  }

  std::mt19937_64 random_;
};

// Returns the log of a run; fails at the first violation.
std::string run(std::uint64_t seed, int steps) {
  Nonsense nonsense(seed);
  LeaseCore core;
  TimePoint now{};
  std::string log;
  std::vector<Command> commands;
  std::vector<Event> sense = nonsense.start();
  for (int i = 0; i < steps; ++i) {
    if (nonsense.below(3) == 0) now += std::chrono::microseconds(nonsense.below(4000));
    const Event event =
        static_cast<std::size_t>(i) < sense.size() ? sense[static_cast<std::size_t>(i)] : nonsense.next(core, now);
    commands.clear();
    core.apply(now, event, commands);
    log += to_string(event) + '\n';
    for (const Command& command : commands) log += "  " + to_string(command) + '\n';
    if (commands.size() > 200)
      ADD_FAILURE() << "seed " << seed << " step " << i << ": one event made " << commands.size() << " commands";
    const std::string wrong = core.check_invariants();
    if (wrong.empty()) continue;
    ADD_FAILURE() << "seed " << seed << " step " << i << ": " << wrong << "\nlast events:\n"
                  << log.substr(log.size() < 4000 ? 0 : log.size() - 4000);
    return log;
  }
  return log;
}

TEST(Hostile, EventsKeepTheInvariants) {
  for (std::uint64_t seed = 1; seed <= 300 && !::testing::Test::HasFailure(); ++seed) run(seed, 400);
}

TEST(Hostile, EventsGiveTheSameCommandsAgain) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(run(seed, 500), run(seed, 500)) << "seed " << seed;
}

// A claim cannot use up the epochs.
TEST(Hostile, ClaimsOfImpossibleEpochsAreIgnored) {
  LeaseCore core;
  std::vector<Command> commands;
  const SeatId seat{TenantId{1}, GpuIndex{0}};
  for (const Event& event :
       {Event(GpuAdded{GpuIndex{0}, {}, LeaseEpoch{1}}), Event(TenantConnected{TenantId{1}, 0}),
        Event(SeatOpened{seat}),
        Event(SeatClaimed{seat, Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{~std::uint64_t{0}}}),
        Event(Requested{seat})}) {
    core.apply(TimePoint(), event, commands);
  }
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(to_string(commands[1]), "grant 1@0 e1 exclusive");
}

}  // namespace
}  // namespace gpumux::sched
