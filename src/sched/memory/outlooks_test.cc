// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/outlooks.h"

#include "sched/testing/planner_test_support.h"

namespace gpumux::sched {
namespace {

using enum TurnKind;
using enum MemoryOutlook;

// A seat of 60 GiB, as one that lacks part of it or all. The other one has 60 GiB, too.
TEST(Outlooks, OfASeatThatLacksMemory) {
  struct Row {
    const char* name;
    TurnKind turn;
    std::uint64_t evicted;  // of the 60
    std::uint64_t other_keeps, foreign;
    bool has_other_programs;
    Duration lacking, moved;  // since when, before now
    MemoryOutlook before, outlook;
  };
  const Row rows[] = {
      {"a holder's comes", kHolding, 60, 0, 0, false, 1s, 1s, kUnknown, kComes},
      {"the next seat's, too", kNext, 60, 0, 0, false, 1s, 1s, kUnknown, kComes},
      {"one that waits expects nothing", kWaiting, 60, 0, 0, false, 1s, 1s, kUnknown, kUnknown},
      {"nothing has moved for long", kHolding, 60, 0, 0, false, 3s, 3s, kComes, kNothingMoves},
      {"something has", kHolding, 60, 0, 0, false, 3s, 1s, kComes, kComes},
      {"the other tenant cannot give up its own", kHolding, 60, 30, 0, false, 3s, 1s, kComes, kOtherTenants},
      {"... which has to last", kHolding, 60, 30, 0, false, 1s, 1s, kUnknown, kComes},
      {"other programs have it", kHolding, 60, 0, 30, true, 3s, 1s, kComes, kOtherPrograms},
      {"only tenants are there: contexts have it", kHolding, 60, 0, 30, false, 3s, 1s, kComes, kContexts},
      {"the next seat lacks nothing, and keeps it", kNext, 0, 0, 0, false, 1s, 1s, kUnknown, kStays},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    const TimePoint now = one.accounts.now;
    SeatAccount& seat = one.add(1, row.turn, 60 - row.evicted, row.evicted);
    one.add(2, kIdle, 60 - row.other_keeps, 0, row.other_keeps);
    seat.outlook = row.before;
    seat.lacking_since = now - row.lacking;
    seat.next_since = now - row.lacking;
    one.gpu.moved_at = now - row.moved;
    one.gpu.foreign.bytes = row.foreign * kGiB;
    one.gpu.has_other_programs = row.has_other_programs;
    const auto plans = make_plan(one.accounts, one.gpu, one.order);
    const Together all = together(one.gpu, one.order, plans);
    EXPECT_EQ(outlook_of(now, one.gpu, seat, plans[0], all), row.outlook);
  }
}

TEST(Outlooks, ASeatThatIsTriedAgainIsTriedLessOften) {
  OneGpuAccounts one;
  SeatAccount& seat = one.add(1, kHolding, 0, 60);
  one.add(2, kIdle, 60);
  Duration last{};
  for (int tries = 0; tries < 3; ++tries) {
    seat.turn = kHolding;
    seat.outlook = kComes;
    seat.lacking_since = one.accounts.now - kHolderPatience;
    ResidencyCommands commands;
    note_outlooks(one.accounts.now, one.gpu, one.order, make_plan(one.accounts, one.gpu, one.order), commands);
    ASSERT_EQ(seat.outlook, kNothingMoves);
    EXPECT_GT(seat.retry->after, last);
    last = seat.retry->after;
    seat.turn = kWaiting;
    EXPECT_EQ(outlook_changes_at(one.gpu, seat), one.accounts.now + last);
  }
}

// Two seats keep what the other one lacks.
TEST(Outlooks, OfSeatsThatBlockEachOtherTheNewestIsStranded) {
  OneGpuAccounts one;
  for (const std::uint64_t tenant : {1u, 2u}) {
    SeatAccount& seat = one.add(tenant, kIdle, 0, 50, 40);
    seat.outlook = kOtherTenants;
    seat.opened_at = one.accounts.now + tenant * 1s;
  }
  const auto note = [&](Duration after) {
    ResidencyCommands commands;
    note_stranded(one.accounts.now + after, one.gpu, commands);
    return commands.expected.size();
  };
  EXPECT_EQ(note(0s), 0u);
  EXPECT_EQ(strands_at(one.gpu), one.accounts.now + kRoomPatience);
  EXPECT_EQ(note(kRoomPatience), 1u);
  EXPECT_FALSE(one.order[0]->is_stranded);
  EXPECT_TRUE(one.order[1]->is_stranded);
  EXPECT_EQ(strands_at(one.gpu), one.accounts.now + kRoomPatience + kStrandedPatience);
  EXPECT_EQ(note(kRoomPatience + kStrandedPatience), 1u);
  EXPECT_TRUE(one.order[0]->is_stranded);
  // A program that is no tenant may end.
  one.gpu.has_other_programs = true;
  note(kRoomPatience + kStrandedPatience);
  EXPECT_FALSE(strands_at(one.gpu));
}

}  // namespace
}  // namespace gpumux::sched
