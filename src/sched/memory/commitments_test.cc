// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/commitments.h"

#include "sched/testing/planner_test_support.h"

namespace gpumux::sched {
namespace {

using enum Commitments::For;
using enum Commitments::Needs;

TEST(Commitments, CapacityIsWhatFitsOnTheGpuAndInHostMemory) {
  struct Row {
    const char* name;
    std::uint64_t chunk, reserved;  // of the host memory's budget, GiB
    std::uint64_t elsewhere;        // allocated on another GPU of 80 GiB
    bool free_only, is_suspended;
    Commitments::For whom;
    std::uint64_t capacity;
  };
  const Row rows[] = {
      {"all of both", 0, 0, 0, false, false, kAll, 180},
      {"a chunk of each seat may not be full", 4, 0, 0, false, false, kAll, 176},
      {"half of a small budget can be promised", 80, 0, 0, false, false, kAll, 130},
      {"the reserve is for accounts that begin", 0, 20, 0, false, false, kAll, 180},
      {"... and they may use it", 0, 20, 0, false, false, kThoseThatBegin, 200},
      {"another GPU's seats fit on that GPU", 0, 0, 80, false, false, kAll, 180},
      {"... or need host memory", 0, 0, 100, false, false, kAll, 160},
      {"without eviction only what fits", 0, 0, 0, true, false, kAll, 80},
      {"... and what is suspended", 0, 0, 0, true, true, kAll, 110},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    one.accounts.host = {.bytes = 100 * kGiB, .chunk = row.chunk * kGiB, .reserved = row.reserved * kGiB};
    one.gpu.free_only = row.free_only;
    one.add(1, TurnKind::kIdle, 30).suspended = row.is_suspended;
    if (row.elsewhere != 0) {
      GpuAccount& other = one.accounts.gpus[1];
      other.capacity = 80 * kGiB;
      SeatAccount& seat = other.seats[{TenantId{2}, GpuIndex{1}}];
      seat.voice = Voice::kSpeaks;
      seat.report.allocated = seat.promised = row.elsewhere * kGiB;
    }
    const Commitments commitments(one.accounts);
    EXPECT_EQ(commitments.capacity(one.gpu, one.gpu.available(), kCharged, row.whom) / kGiB, row.capacity);
  }
}

TEST(Commitments, ASeatThatReportsMoreIsBelievedAsFarAsMemoryIsLeft) {
  struct Row {
    const char* name;
    std::uint64_t reports, left;
    bool another_account_waits;
    std::uint64_t believed;
  };
  const Row rows[] = {
      {"no more than it was promised", 30, 100, false, 0},
      {"more", 50, 100, false, 20},
      {"more than there is", 50, 5, false, 5},
      {"beside another account", 150, 150, true, 60},  // half of 180, less the 30 that it has
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    SeatAccount& seat = one.add(1, TurnKind::kHolding, 30);
    seat.report.allocated = row.reports * kGiB;
    SeatAccount& other = one.add(2, TurnKind::kIdle, 0);
    other.account = 2;
    if (row.another_account_waits) OneGpuAccounts::wish(other, 1, 1, one.accounts.now);
    EXPECT_EQ(Commitments(one.accounts).believed(one.gpu, seat, 180 * kGiB, row.left * kGiB) / kGiB, row.believed);
  }
}

TEST(Commitments, AnAccountBeginsWhileItHasNoMoreThanIsReserved) {
  OneGpuAccounts one;
  one.accounts.host.reserved = 40 * kGiB;
  SeatAccount& seat = one.add(1, TurnKind::kHolding, 0);
  one.add(2, TurnKind::kIdle, 30);
  const Commitments commitments(one.accounts);
  EXPECT_EQ(commitments.begins_with(seat, 10 * kGiB, kAllocated), kThoseThatBegin);
  EXPECT_EQ(commitments.begins_with(seat, 11 * kGiB, kAllocated), kAll);
  one.order[1]->account = 2;
  EXPECT_EQ(commitments.begins_with(seat, 11 * kGiB, kAllocated), kThoseThatBegin);
}

TEST(Commitments, TheMostOfASeatIsBoundedByWhatStaysAndByItsQuota) {
  OneGpuAccounts one;
  SeatAccount& seat = one.add(1, TurnKind::kHolding, 10);
  SeatAccount& other = one.add(2, TurnKind::kIdle, 10, 0, 20);
  const auto most = [&] { return Commitments::most(one.gpu.eventual(), one.gpu, seat, one.gpu.kept()) / kGiB; };
  EXPECT_EQ(most(), 60u) << "all but what the other one cannot give up";
  seat.report.managed = 15 * kGiB;
  EXPECT_EQ(most(), 75u) << "managed memory may exceed the GPU";
  seat.quota = other.quota = {.group = 1, .bytes = 50 * kGiB};
  EXPECT_EQ(most(), 20u) << "what the quota's other seat leaves";
}

}  // namespace
}  // namespace gpumux::sched
