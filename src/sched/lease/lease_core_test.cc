// SPDX-License-Identifier: Apache-2.0
// Goal: each rule of a single seat's lease. Method: small scripts; the core's commands are compared as text, its
// invariants after each event.
#include "sched/lease/lease_core.h"

#include <gtest/gtest.h>

#include <set>

#include "sched/testing/one_gpu.h"
#include "settings/settings.gen.h"
#include "settings/test_texts.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

GpuSettings no_overlap(settings::Auto<Limit<Duration>> quantum = 10ms) {
  GpuSettings settings = fixed(quantum);
  settings.overlap = false;
  return settings;
}

struct FourOnOne : OneGpu {
  explicit FourOnOne(const GpuSettings& settings = fixed()) : OneGpu(settings, 4) {}
};

TEST(Lease, OfAFreeGpuIsGrantedAtOnce) {
  FourOnOne s;
  EXPECT_EQ(s.request(kA), "grant 1@0 e1 exclusive");
  EXPECT_EQ(s.request(kA), "") << "asking again changes nothing";
  EXPECT_EQ(s.wait(1h), "") << "nobody waits: nobody is revoked";
}

TEST(Lease, EndsWithItsQuantumOnceSomebodyWaits) {
  FourOnOne s;
  s.request(kA);
  s.wait(4ms);
  EXPECT_EQ(s.request(kB), "contention 1@0 yes 200000ns");
  EXPECT_EQ(s.wait(5ms), "");
  EXPECT_EQ(s.wait(1ms), "revoke 1@0 e1 quantum") << "the quantum runs from the grant, not from the request";
  EXPECT_EQ(s.seen(kA), "");
  EXPECT_EQ(s.closed(kA), "grant 2@0 e2 exclusive") << "beside the draining one";
  EXPECT_EQ(s.drained(kA), "");
  EXPECT_EQ(s.phase(kA), SeatPhase::kIdle);
}

TEST(Lease, ASwitchIsCountedForTheSeatThatGetsTheGpu) {
  FourOnOne s(no_overlap());
  const auto take_and_leave = [&](SeatId seat) {
    s.request(seat);
    s.closed(seat);
    s.drained(seat);
  };
  for (const SeatId seat : {kA, kA, kB, kA, kB, kB}) take_and_leave(seat);
  EXPECT_EQ(s.totals(kA).grants, 3u);
  EXPECT_EQ(s.totals(kA).switches, 2u);
  EXPECT_EQ(s.totals(kB).grants, 3u);
  EXPECT_EQ(s.totals(kB).switches, 2u);
  EXPECT_EQ(s.gpu(0).switches, 4u);
}

TEST(Lease, IsRevokedAtOnceWhenAWaiterComesAfterTheQuantum) {
  FourOnOne s;
  s.request(kA);
  s.wait(50ms);
  EXPECT_EQ(s.request(kB), "revoke 1@0 e1 quantum");
}

// The next seat is told when only a moment separates it from its grant, and no other seat is told.
TEST(HeadsUp, ComesWithTheRevocationOfThePredecessor) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  s.request(kC);
  EXPECT_EQ(s.hints(), "");
  s.wait(10ms);
  EXPECT_EQ(s.hints(), "heads_up 2@0");
  EXPECT_EQ(s.closed(kA), "grant 2@0 e2 exclusive contended");
  EXPECT_EQ(s.hints(), "") << "it has been granted, and 3 is not next for a while";
}

TEST(HeadsUp, ComesWithTheClosedGateWhereTheDrainIsWaitedFor) {
  FourOnOne s(no_overlap());
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  EXPECT_EQ(s.hints(), "");
  s.closed(kA);
  EXPECT_EQ(s.hints(), "heads_up 2@0");
  EXPECT_EQ(s.drained(kA), "grant 2@0 e2 exclusive");
}

TEST(HeadsUp, ComesWhenTheHolderIsAboutToGiveUp) {
  FourOnOne s;
  s.request(kA);
  s.tell(Idling{kA, s.epoch(kA)});
  EXPECT_EQ(s.hints(), "") << "nobody waits";
  s.request(kB);
  s.tell(Idling{kA, LeaseEpoch{s.epoch(kA).value + 1}});
  s.tell(Idling{kB, s.epoch(kB)});
  EXPECT_EQ(s.hints(), "") << "neither is a holder's word about its lease";
  EXPECT_EQ(s.tell(Idling{kA, s.epoch(kA)}), "");
  EXPECT_EQ(s.hints(), "heads_up 2@0");
  EXPECT_EQ(s.phase(kA), SeatPhase::kHolding) << "only a hint";
  EXPECT_EQ(s.drained(kA), "grant 2@0 e2 exclusive");
}

TEST(Lease, WithoutOverlapIsGivenOnlyOnAnEmptyGpu) {
  FourOnOne s(no_overlap());
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  EXPECT_EQ(s.closed(kA), "");
  EXPECT_EQ(s.drained(kA), "grant 2@0 e2 exclusive");
}

TEST(Lease, HasAtMostOneUndrainedPredecessor) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  s.request(kC);
  s.wait(10ms);
  EXPECT_EQ(s.closed(kA), "grant 2@0 e2 exclusive contended");
  EXPECT_EQ(s.wait(10ms), "revoke 2@0 e2 quantum");
  EXPECT_EQ(s.closed(kB), "") << "1 has not drained: a third would be beside two";
  EXPECT_EQ(s.drained(kA), "grant 3@0 e3 exclusive");
  EXPECT_EQ(s.drained(kB), "");
}

TEST(Lease, IsReleasedByDrainingUnasked) {
  FourOnOne s(fifo());
  s.request(kA);
  s.request(kB);
  s.request(kC);
  EXPECT_EQ(s.drained(kA), "grant 2@0 e2 exclusive contended");
  s.wait(1ms);
  EXPECT_EQ(s.request(kA), "");
  EXPECT_EQ(s.view(kC).queue_place, 1u);
  EXPECT_EQ(s.view(kA).queue_place, 2u) << "it asked again after 3 did";
}

TEST(Lease, IsNotGivenToASeatThatStillDrains) {
  FourOnOne s(fifo());
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  s.closed(kA);  // 2 holds
  EXPECT_EQ(s.request(kA), "") << "it has not drained: it cannot be granted, so it does not wait yet";
  EXPECT_EQ(s.wait(20ms), "");
  EXPECT_EQ(s.drained(kA), "revoke 2@0 e2 quantum") << "from now on it waits";
  EXPECT_EQ(s.closed(kB), "grant 1@0 e3 exclusive");
}

TEST(Lease, WithAnUnlimitedQuantumLastsUntilReleased) {
  GpuSettings settings = fixed(kUnlimited);
  settings.max_runtime = kUnlimited;
  FourOnOne s(settings);
  s.request(kA);
  s.request(kB);
  EXPECT_EQ(s.wait(24h), "");
  EXPECT_EQ(s.drained(kA), "grant 2@0 e2 exclusive");
}

// Seed 000: C waits for A to finish.
TEST(Lease, WithEverythingUnlimitedLastsUntilItsTenantEnds) {
  GpuSettings settings = fixed(kUnlimited);
  settings.max_runtime = kUnlimited;
  settings.idle_hold = kUnlimited;
  FourOnOne s(settings);
  s.request(kA);
  EXPECT_EQ(s.request(kB), "contention 1@0 yes unlimited");
  EXPECT_EQ(s.tell(Idling{kA, LeaseEpoch{1}}), "");
  EXPECT_EQ(s.wait(24h), "");
  // A seat that gives up its lease all the same (it ends its own turns) has a gap from that moment on.
  EXPECT_EQ(s.drained(kA), "grant 2@0 e2 exclusive");
  EXPECT_EQ(s.wait(1h), "");
  EXPECT_EQ(s.request(kA), "contention 2@0 yes unlimited");
  EXPECT_EQ(s.wait(24h), "");
  EXPECT_EQ(s.tell(TenantGone{TenantId{2}}), "grant 1@0 e3 exclusive");
}

TEST(Lease, NeverOutlastsTheMaximumRuntimeWhileOthersWait) {
  FourOnOne s(fixed(kUnlimited));
  s.request(kA);
  EXPECT_EQ(s.wait(400s), "") << "nobody waits";
  EXPECT_EQ(s.request(kB), "revoke 1@0 e1 max_runtime");
}

// Seed 000: A and C share GPU 0, B has GPU 1.
TEST(Lease, OfOneGpuIsNothingToAnother) {
  Script s(2, fixed());
  s.tenant(1, {0});
  s.tenant(2, {1});
  s.tenant(3, {0});
  const SeatId a = seat(1, 0), b = seat(2, 1), c = seat(3, 0);
  EXPECT_EQ(s.request(a), "grant 1@0 e1 exclusive");
  EXPECT_EQ(s.request(b), "grant 2@1 e1 exclusive");
  EXPECT_EQ(s.request(c), "contention 1@0 yes 200000ns");
  for (int turn = 0; turn < 5; ++turn) {
    const SeatId holder = turn % 2 == 0 ? a : c, next = turn % 2 == 0 ? c : a;
    EXPECT_TRUE(says(s.wait(10ms), "revoke " + std::to_string(holder.tenant.value)));
    EXPECT_TRUE(says(s.closed(holder), "grant " + std::to_string(next.tenant.value)));
    s.drained(holder);
    s.request(holder);
    EXPECT_EQ(s.phase(b), SeatPhase::kHolding);
  }
}

TEST(Lease, OfADeadTenantIsFreeAtOnce) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  EXPECT_EQ(s.tell(TenantGone{TenantId{1}}), "grant 2@0 e2 exclusive");
  EXPECT_EQ(s.tell(TenantGone{TenantId{2}}), "");
  EXPECT_EQ(s.request(kA), "") << "nobody of that name";
}

TEST(Lease, OfATenantThatDiesWhileDrainingBlocksNobody) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  s.request(kC);
  s.wait(10ms);
  s.closed(kA);
  s.wait(10ms);
  s.closed(kB);
  EXPECT_EQ(s.tell(TenantGone{TenantId{1}}), "grant 3@0 e3 exclusive");
}

TEST(Lease, OfASeatThatIsClosedIsFree) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  EXPECT_EQ(s.tell(SeatClosed{kA}), "grant 2@0 e2 exclusive");
}

TEST(Lease, MessagesOfAnOlderEpochAreIgnored) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  s.drained(kA);  // 2 holds
  s.request(kA);
  s.wait(10ms);
  EXPECT_EQ(s.drained(kB), "grant 1@0 e3 exclusive");
  EXPECT_EQ(s.tell(Drained{kA, LeaseEpoch{1}}), "");
  EXPECT_EQ(s.tell(GateClosed{kA, LeaseEpoch{1}}), "");
  EXPECT_EQ(s.phase(kA), SeatPhase::kHolding);
}

TEST(Lease, OfAPoisonedSeatIsGivenLikeAnyOther) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  EXPECT_EQ(s.tell(Drained{kA, LeaseEpoch{1}, true}), "grant 2@0 e2 exclusive");
  EXPECT_TRUE(s.view(kA).poisoned);
  s.request(kA);
  EXPECT_EQ(s.drained(kB), "grant 1@0 e3 exclusive");
}

TEST(Contention, IsToldWhenTheFirstComesAndWhenTheLastGoes) {
  FourOnOne s;
  s.request(kA);
  EXPECT_EQ(s.request(kB), "contention 1@0 yes 200000ns");
  EXPECT_EQ(s.request(kC), "");
  EXPECT_EQ(s.tell(TenantGone{TenantId{2}}), "");
  EXPECT_EQ(s.tell(SeatClosed{kC}), "contention 1@0 no 200000ns");
}

TEST(Contention, IsToldAgainWhenTheIdleHoldChanges) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  GpuSettings settings = fixed();
  settings.idle_hold = 1ms;
  EXPECT_EQ(s.settings(GpuIndex{0}, settings),
            "contention 1@0 yes 1000000ns; contention 2@0 no 1000000ns; contention 3@0 no 1000000ns; contention 4@0 no "
            "1000000ns");
}

TEST(Quantum, IsChosenFromTheCostOfSwitching) {
  GpuSettings settings = fixed(kAutomatic);
  settings.overlap = false;
  FourOnOne s(settings);
  EXPECT_EQ(s.gpu(0).quantum, 40ms) << "nothing measured: the least";
  s.request(kA);
  s.request(kB);
  EXPECT_EQ(s.wait(40ms), "revoke 1@0 e1 quantum");
  s.closed(kA);
  s.wait(3ms);
  s.drained(kA);
  EXPECT_EQ(s.gpu(0).switch_cost, 3ms);
  const Duration quantum = s.gpu(0).quantum.value();
  EXPECT_LT(3ms / (1.0 * (quantum + 3ms)), 0.03);
  EXPECT_GT(3ms / (1.0 * (quantum + 6ms)), 0.027) << "and not longer than that needs";
}

TEST(Quantum, IsNotLongerForADrainThatKeepsNobodyWaiting) {
  FourOnOne s(fixed(kAutomatic));
  s.request(kA);
  s.request(kB);
  s.wait(40ms);
  EXPECT_EQ(s.closed(kA), "grant 2@0 e2 exclusive");
  s.wait(30ms);
  s.drained(kA);
  EXPECT_EQ(s.gpu(0).switch_cost, 0ms);
  EXPECT_EQ(s.gpu(0).quantum, 40ms);
}

TEST(Quantum, IsNeverChosenAboveHalfAMinute) {
  GpuSettings settings = fixed(kAutomatic);
  settings.stall_timeout = 1h;
  FourOnOne s(settings);
  s.request(kA);
  s.request(kB);
  s.wait(5ms);
  s.closed(kA);
  for (int i = 0; i < 200; ++i) {
    s.wait(300ms);
    s.seen(kA);
  }
  s.drained(kA);
  EXPECT_EQ(s.gpu(0).quantum, 30s);
}

TEST(Fifo, GoesByTheTimeOfRequest) {
  FourOnOne s(fifo());
  s.request(kA);
  s.wait(1ms);
  s.request(kC);
  s.wait(1ms);
  s.request(kB);
  EXPECT_EQ(s.drained(kA), "grant 3@0 e2 exclusive contended");
  EXPECT_EQ(s.drained(kC), "grant 2@0 e3 exclusive");
}

TEST(Fair, PrefersWhoeverHadLeast) {
  FourOnOne s(fixed());
  s.request(kA);
  s.wait(1ms);
  s.request(kB);
  s.wait(20ms);  // 1 is revoked after 10 ms, and closes after 21
  s.request(kA);
  s.closed(kA);  // 2 holds
  s.drained(kA);
  s.wait(2ms);
  s.request(kC);  // starts where the least of the others is
  EXPECT_EQ(s.drained(kB), "grant 3@0 e3 exclusive contended") << "1 has had 21 ms";
}

// Two seats that always have work, of weights 1 and 3.
TEST(Fair, GivesTimeByWeight) {
  Script s(1, fixed());
  s.tenant(1, {0}, 1);
  s.tenant(2, {0}, 3);
  s.request(kA);
  s.request(kB);
  for (int i = 0; i < 200; ++i) {
    s.wait(10ms);
    for (const SeatId one : {kA, kB}) {
      if (s.phase(one) != SeatPhase::kRevoked) continue;
      s.closed(one);
      s.drained(one);
      s.request(one);
    }
  }
  const double share = 1.0 * s.view(kB).held / (s.view(kA).held + s.view(kB).held);
  EXPECT_NEAR(share, 0.75, 0.02);
}

// Drains take four quanta, and the next seat works during them. A seat asks again while it drains.
TEST(Fair, GivesTimeByWeightBesideLongDrains) {
  Script s(1, fixed());
  s.tenant(1, {0}, 1);
  s.tenant(2, {0}, 3);
  s.request(kA);
  s.request(kB);
  for (int turn = 0; turn < 200; ++turn) {
    while (s.phase(kA) != SeatPhase::kRevoked && s.phase(kB) != SeatPhase::kRevoked) s.wait(1ms);
    const SeatId one = s.phase(kA) == SeatPhase::kRevoked ? kA : kB;
    s.closed(one);
    s.request(one);
    s.wait(40ms);
    s.drained(one);
  }
  const double share = 1.0 * s.view(kB).held / (s.view(kA).held + s.view(kB).held);
  EXPECT_NEAR(share, 0.75, 0.02);
}

TEST(Fair, DoesNotBankIdleTime) {
  Script s(1, fixed());
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(kA);
  s.drained(kA);
  s.request(kB);
  s.wait(100s);  // 1 was idle
  EXPECT_EQ(s.request(kA), "revoke 2@0 e2 quantum");
  s.drained(kB);  // 1 holds
  s.request(kB);
  EXPECT_EQ(s.wait(25ms), "revoke 1@0 e3 quantum") << "ahead by one quantum at most, not by 100 s";
}

TEST(Concurrent, GrantsAllAtOnce) {
  GpuSettings settings = plain();
  settings.mode = Mode::kConcurrent;
  FourOnOne s(settings);
  EXPECT_EQ(s.request(kA), "grant 1@0 e1 shared");
  EXPECT_EQ(s.request(kB), "grant 2@0 e2 shared");
  EXPECT_EQ(s.wait(1h), "");
}

TEST(Concurrent, AfterSerialSharesTheHoldersLeaseInPlace) {
  FourOnOne s;
  s.request(kA);
  s.request(kB);
  GpuSettings settings = fixed();
  settings.mode = Mode::kConcurrent;
  EXPECT_EQ(s.settings(GpuIndex{0}, settings),
            "grant 1@0 e2 shared contended; grant 2@0 e3 shared contended; contention 1@0 no 200000ns; contention 2@0 "
            "no 200000ns");
}

TEST(Concurrent, BeforeSerialIsEndedForAllBeforeAnyoneStarts) {
  GpuSettings settings = fixed();
  settings.mode = Mode::kConcurrent;
  FourOnOne s(settings);
  s.request(kA);
  s.request(kB);
  settings.mode = Mode::kSerial;
  EXPECT_EQ(s.settings(GpuIndex{0}, settings), "revoke 1@0 e1 mode; revoke 2@0 e2 mode");
  s.request(kA);
  EXPECT_EQ(s.request(kC), "");
  s.closed(kA);
  s.closed(kB);
  EXPECT_EQ(s.drained(kA), "") << "2 has not drained";
  EXPECT_EQ(s.drained(kB), "grant 1@0 e3 exclusive contended") << "it asked first";
}

TEST(Concurrent, BeforeSerialLeavesASoleHolderAlone) {
  GpuSettings settings = fixed();
  settings.mode = Mode::kConcurrent;
  FourOnOne s(settings);
  s.request(kA);
  settings.mode = Mode::kSerial;
  EXPECT_EQ(s.settings(GpuIndex{0}, settings), "grant 1@0 e2 exclusive");
}

TEST(Settings, OfAPolicyReorderThoseWhoWait) {
  FourOnOne s(fixed());
  s.request(kA);
  s.wait(20ms);
  s.request(kB);  // revokes 1
  s.wait(20ms);
  s.drained(kA);  // 2 holds
  s.request(kA);  // has had 20 ms
  s.wait(1ms);
  s.request(kC);  // has had nothing
  EXPECT_EQ(s.view(kC).queue_place, 1u);
  s.settings(GpuIndex{0}, fifo());
  EXPECT_EQ(s.view(kA).queue_place, 1u);
}

// Time that a seat was idle before it gave its lease up, and the waits of each seat by how long they were.
TEST(Statistics, OfASeat) {
  GpuSettings settings = plain();
  settings.quantum = 10ms;
  settings.idle_hold = 2ms;
  Script script(1, settings);
  const SeatId a = seat(1, 0), b = seat(2, 0);
  script.tenant(1, {0});
  script.tenant(2, {0});
  script.request(a);
  script.wait(5ms);
  script.tell(Idling{a, script.epoch(a)});
  script.wait(1ms);  // it has found work again
  script.tell(Idling{a, script.epoch(a)});
  script.wait(2ms);
  script.drained(a);
  EXPECT_EQ(script.view(a).held, 8ms);
  EXPECT_EQ(script.view(a).idle, 2ms);
  EXPECT_EQ(script.view(a).wait_p99, 0ms);
  for (int i = 0; i < 100; ++i) {
    script.request(a);
    script.wait(1ms);
    script.request(b);
    script.wait(i == 0 ? 5ms : 1ms);
    script.drained(a);
    script.drained(b);
  }
  EXPECT_EQ(script.view(a).idle, 2ms) << "nobody has said that it idled";
  EXPECT_NEAR(static_cast<double>(script.view(b).wait_p50.count()), 1e6, 0.25e6);
  EXPECT_NEAR(static_cast<double>(script.view(b).wait_p99.count()), 1e6, 0.25e6);
  script.request(a);
  script.request(b);
  script.wait(7ms);
  script.drained(a);
  EXPECT_GE(script.view(b).wait_p99, 5ms);
}

// A seat that says that it idles may work on without a further report. Then it has not idled since.
TEST(Statistics, ASeatThatWorkedOnHasIdledForItsHold) {
  GpuSettings settings = plain();
  settings.idle_hold = 2ms;
  Script script(1, settings);
  const SeatId a = seat(1, 0);
  script.tenant(1, {0});
  script.request(a);
  script.wait(1ms);
  script.tell(Idling{a, script.epoch(a)});
  script.wait(20ms);
  script.drained(a);
  EXPECT_EQ(script.view(a).idle, 2ms);
}

// A program that gives its lease up itself, as at its end, closes its gate first. An old report says nothing then.
TEST(Statistics, AProgramThatEndsHasNotIdledForItsHold) {
  GpuSettings settings = plain();
  settings.idle_hold = 2ms;
  Script script(1, settings);
  const SeatId a = seat(1, 0);
  script.tenant(1, {0});
  script.request(a);
  script.wait(1ms);
  script.tell(Idling{a, script.epoch(a)});
  script.wait(20ms);
  EXPECT_EQ(script.tell(GateClosed{a, script.epoch(a)}), "");
  script.drained(a);
  EXPECT_EQ(script.view(a).held, 21ms);
  EXPECT_EQ(script.view(a).idle, 0ms);
}

// A member of a gang that has drained while the others go on does not use its GPU.
TEST(Statistics, AMemberThatRestsIsIdle) {
  Script script(2, {});
  script.tenant(1, {0, 1});
  script.tell(GangJoined{TenantId{1}, "", 0});
  script.request(seat(1, 0));
  script.wait(1ms);
  script.drained(seat(1, 1));
  script.wait(3ms);
  EXPECT_EQ(script.view(seat(1, 1)).idle, 3ms);
  script.request(seat(1, 1));
  script.wait(1ms);
  EXPECT_EQ(script.view(seat(1, 1)).idle, 3ms);
  EXPECT_EQ(script.view(seat(1, 1)).held, 5ms);
  EXPECT_EQ(script.view(seat(1, 0)).idle, 0ms);
}

// A setting that is new must not be missing in logs, which are what a run is replayed and compared by.
TEST(SettingsText, ShowsEverySettingOfTheCore) {
  GpuSettings settings;
  const auto text = [&] { return to_string(Event(SettingsChanged{GpuIndex{0}, settings})); };
  settings::visit_leases(settings, [&](const settings::Setting& setting, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    std::set<std::string> texts;
    for (const std::string& value : settings::good_texts(setting)) {
      field = settings::field_of<Field>(*settings::parse(setting.type, setting.name, value), value);
      texts.insert(text());
    }
    EXPECT_GT(texts.size(), 1u) << "text(const GpuSettings&) in events.cc does not show " << setting.name;
  });
}

}  // namespace
}  // namespace gpumux::sched
