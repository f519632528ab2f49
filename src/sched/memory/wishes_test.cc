// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/wishes.h"

#include "sched/testing/planner_test_support.h"

namespace gpumux::sched {
namespace {

TEST(Wishes, AreRefusedForTheFirstReasonThatHolds) {
  struct Row {
    const char* name;
    std::uint64_t room, commitment;  // that the seat waits for, GiB
    std::uint64_t kept, allocated;   // by the other seat
    std::uint64_t foreign, quota;
    Refusal refusal;
  };
  const Row rows[] = {
      {"it fits", 40, 40, 0, 40, 0, 0, Refusal::kNone},
      {"it fits when the other one is evicted", 80, 80, 0, 100, 0, 0, Refusal::kNone},
      {"the other one keeps too much", 80, 80, 1, 10, 0, 0, Refusal::kGpuMemory},
      {"other programs have too much", 80, 80, 0, 0, 1, 0, Refusal::kGpuMemory},
      {"its quota", 40, 40, 0, 20, 0, 50, Refusal::kQuota},
      {"a quota that leaves enough", 30, 30, 0, 20, 0, 50, Refusal::kNone},
      {"all together are more than GPU and host memory", 80, 80, 0, 101, 0, 0, Refusal::kHostMemory},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    SeatAccount& seat = one.add(1, TurnKind::kHolding, 0);
    SeatAccount& other = one.add(2, TurnKind::kIdle, 0, 0, row.kept);
    other.report.allocated = other.promised = row.allocated * kGiB;
    one.gpu.foreign.bytes = row.foreign * kGiB;
    if (row.quota != 0) seat.quota = other.quota = {.group = 1, .bytes = row.quota * kGiB};
    OneGpuAccounts::wish(seat, row.room, row.commitment, one.accounts.now);
    const Wishes wishes(one.accounts);
    EXPECT_EQ(wishes.refusal_of(one.gpu, seat, one.gpu.foreign.bytes), row.refusal);
    EXPECT_EQ(wishes.is_possible(one.gpu, seat), row.refusal == Refusal::kNone);
  }
}

// A wish for 40 GiB.
TEST(Wishes, AreAnsweredWhenTheyAreFulfilledOrHopelessOrNothingMoves) {
  struct Row {
    const char* name;
    TurnKind turn;
    std::uint64_t room, commitment;  // that it is told
    Duration waited;                 // since then, or since memory last became free
    std::uint64_t foreign;
    bool is_looked_at, awaits_tenants;
    Wishes::Answer::Kind answer;
    Refusal refusal;
  };
  using enum TurnKind;
  using enum Wishes::Answer::Kind;
  const Row rows[] = {
      {"it has all", kHolding, 40, 40, 1s, 0, false, false, kAll, Refusal::kNone},
      {"its room is on its way", kHolding, 10, 40, 1s, 0, false, false, kNone, Refusal::kNone},
      {"its promise is on its way", kIdle, 0, 30, 1s, 0, false, false, kNone, Refusal::kNone},
      {"without a lease the promise is enough", kIdle, 0, 40, 1s, 0, false, false, kCommitment, Refusal::kNone},
      {"nothing moves", kHolding, 10, 40, 10s, 0, false, false, kRefused, Refusal::kNothingMoves},
      {"it is hopeless", kHolding, 10, 10, 1s, 60, true, false, kRefused, Refusal::kGpuMemory},
      {"the look is older than the wish", kHolding, 10, 10, 1s, 60, false, false, kNone, Refusal::kNone},
      {"... and no new one comes", kHolding, 10, 10, 2s, 60, false, false, kRefused, Refusal::kGpuMemory},
      {"tenants may come back", kHolding, 10, 10, 1s, 60, true, true, kNone, Refusal::kNone},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    SeatAccount& seat = one.add(1, row.turn, 0);
    OneGpuAccounts::wish(seat, 40, 40, one.accounts.now - row.waited);
    one.gpu.foreign.bytes = row.foreign * kGiB;
    if (row.is_looked_at) one.gpu.foreign.seen_at = one.accounts.now;
    if (row.awaits_tenants) one.accounts.awaited_until = one.accounts.now + 1s;
    const auto answer = Wishes(one.accounts).answer(one.gpu, seat, row.room * kGiB, row.commitment * kGiB);
    EXPECT_EQ(answer.kind, row.answer);
    EXPECT_EQ(answer.refusal, row.refusal);
  }
}

TEST(Wishes, HaveALimitHoweverMuchMoves) {
  OneGpuAccounts one;
  SeatAccount& seat = one.add(1, TurnKind::kHolding, 0);
  const TimePoint now = one.accounts.now;
  OneGpuAccounts::wish(seat, 40, 40, now);
  const Wishes wishes(one.accounts);
  EXPECT_EQ(wishes.refused_at(one.gpu, seat), now + kRoomPatience);
  one.gpu.moved_at = now + 5s;
  EXPECT_EQ(wishes.refused_at(one.gpu, seat), now + 5s + kRoomPatience);
  one.gpu.moved_at = now + 15s;
  EXPECT_EQ(wishes.refused_at(one.gpu, seat), now + kLongestRoomWait);
}

}  // namespace
}  // namespace gpumux::sched
