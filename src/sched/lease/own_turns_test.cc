// SPDX-License-Identifier: Apache-2.0
// Goal: a program that ends its own turns has them as long as it likes, within max_runtime, while all programs of its
// GPU are of one account. Seats that wait for its GPU are served in order of arrival then. A program that takes turns
// with others is told how much work it may have queued.
#include <gtest/gtest.h>

#include "sched/testing/one_gpu.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

GpuSettings fair(Duration quantum) {
  GpuSettings settings = plain();
  settings.quantum = quantum;
  settings.overlap = false;
  settings.max_runtime = 10s;
  return settings;
}

void open(Script& script, SeatId seat, bool ends_own_turns, std::uint64_t account = 0) {
  script.tell(TenantConnected{seat.tenant, 0});
  script.tell(SeatOpened{.seat = seat, .ends_own_turns = ends_own_turns, .account = account});
}

TEST(OwnTurns, AreEndedByNoQuantum) {
  Script script(1, fair(20ms));
  open(script, kA, true);
  open(script, kB, false);
  script.request(kA);
  script.request(kB);
  EXPECT_EQ(script.view(kB).waits_for, "turn of tenant 1, which ends it itself");
  EXPECT_EQ(script.wait(9s), "");
  EXPECT_EQ(script.wait(1s), "revoke 1@0 e1 max_runtime");
  script.drained(kA);
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
  // The other one's are.
  script.request(kA);
  EXPECT_EQ(script.wait(20ms), "revoke 2@0 e2 quantum");
}

// Another account's programs have their share of the time, whatever a program says of its turns.
TEST(OwnTurns, AreForProgramsOfOneAccount) {
  Script script(1, fair(20ms));
  open(script, kA, true, 1);
  open(script, kB, false, 2);
  script.request(kA);
  script.request(kB);
  EXPECT_EQ(script.view(kB).waits_for, "quantum of tenant 1");
  EXPECT_EQ(script.wait(20ms), "revoke 1@0 e1 quantum");
  script.request(kA);
  script.drained(kA);
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
  // A suspended program takes no part.
  script.tell(SeatsSuspended{{kB}, true});
  script.drained(kB);
  open(script, kC, false, 1);
  script.request(kC);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  EXPECT_EQ(script.view(kC).waits_for, "turn of tenant 1, which ends it itself");
  script.tell(SeatsSuspended{{kB}, false});
  EXPECT_EQ(script.view(kC).waits_for, "quantum of tenant 1");
  EXPECT_EQ(script.wait(20ms), "revoke 1@0 e3 quantum");
}

TEST(OwnTurns, EndForWhoIsMoreUrgent) {
  Script script(1, fair(20ms));
  open(script, kA, true);
  open(script, kB, false);
  script.tell(StandingChanged{kB, 5});
  script.request(kA);
  EXPECT_EQ(script.request(kB), "revoke 1@0 e1 urgent");
}

// B has had more than A, and asks before A while C holds.
TEST(OwnTurns, AreWaitedForInOrderOfArrival) {
  for (const bool ends_own_turns : {false, true}) {
    Script script(1, fair(1s));
    open(script, kA, false);
    open(script, kB, ends_own_turns);
    open(script, kC, false);
    for (const auto& [seat, time] : {std::pair{kB, 500ms}, {kA, 100ms}}) {
      script.request(seat);
      script.wait(time);
      script.drained(seat);
    }
    for (const SeatId seat : {kC, kB, kA}) {
      script.request(seat);
      script.wait(1ms);
    }
    script.drained(kC);
    EXPECT_EQ(script.phase(ends_own_turns ? kB : kA), SeatPhase::kHolding) << ends_own_turns;
  }
}

TEST(OwnTurns, LeaveTheGpuAsItWas) {
  Script script(1, fair(20ms));
  open(script, kA, false);
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
  open(script, kB, true);
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
  script.tell(TenantGone{kB.tenant});
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
}

TEST(InFlightBound, IsToldWhileASeatIsNotAlone) {
  GpuSettings settings = fair(20ms);
  settings.in_flight = 4ms;
  Script script(1, settings);
  script.tell(TenantConnected{kA.tenant, 0});
  EXPECT_EQ(script.tell(SeatOpened{kA}), "contention 1@0 no 200000ns");
  script.tell(TenantConnected{kB.tenant, 0});
  const std::string both =
      "contention 1@0 no 200000ns in_flight=4000000ns; contention 2@0 no 200000ns in_flight=4000000ns";
  EXPECT_EQ(script.tell(SeatOpened{kB}), both + "; contention 2@0 no 200000ns in_flight=4000000ns");
  // All at once: no seat waits for a turn.
  const std::string neither = "contention 1@0 no 200000ns; contention 2@0 no 200000ns";
  settings.mode = Mode::kConcurrent;
  EXPECT_EQ(script.settings(GpuIndex{0}, settings), neither);
  settings.mode = Mode::kSerial;
  EXPECT_EQ(script.settings(GpuIndex{0}, settings), both);
  settings.in_flight = kUnlimited;
  EXPECT_EQ(script.settings(GpuIndex{0}, settings), neither);
  settings.in_flight = 4ms;
  EXPECT_EQ(script.settings(GpuIndex{0}, settings), both);
  EXPECT_EQ(script.tell(TenantGone{kB.tenant}), "contention 1@0 no 200000ns");
}

// A holder that is told of waiting seats is told the bound, too.
TEST(InFlightBound, IsPartOfWhatAHolderIsTold) {
  GpuSettings settings = fair(20ms);
  settings.in_flight = 4ms;
  OneGpu script(settings);
  script.request(kA);
  EXPECT_EQ(script.request(kB), "contention 1@0 yes 200000ns in_flight=4000000ns");
}

}  // namespace
}  // namespace gpumux::sched
