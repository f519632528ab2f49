// SPDX-License-Identifier: Apache-2.0
// Goal: an allocation that was refused is known with its reason until another one takes its place, and never more than
// one of each seat. Method: a residency planner with seats that report by hand.
#include "daemon/gpus/refusals.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr base::GpuIndex kGpu{0};

base::SeatId seat(std::uint64_t tenant) { return {{tenant}, kGpu}; }
base::TimePoint at(base::Duration time) { return base::TimePoint(time); }
node::RoomWanted wish(base::SeatId seat, std::uint64_t commitment, bool again = false) {
  return {.seat = seat, .ticket = 1, .room = 0, .commitment = commitment, .managed = 0, .again = again};
}

class RefusalsTest : public ::testing::Test {
 protected:
  RefusalsTest()
      : refusals([](base::TenantId tenant) {
          return TenantLabel::make(static_cast<pid_t>(100 + tenant.value), 7, "program");
        }) {
    memory.add_gpu(kGpu, 16 * kGiB, kGiB);
  }

  Refusals refusals;
  sched::Residency memory;
};

TEST_F(RefusalsTest, TheLastOneOfEachSeatIsKept) {
  EXPECT_TRUE(refusals.on(kGpu).empty());
  refusals.wanted(wish(seat(1), 20 * kGiB));
  refusals.refused(at(1s), seat(1), sched::Refusal::kGpuMemory, memory);
  refusals.refused(at(2s), seat(2), sched::Refusal::kNothingMoves, memory);
  refusals.wanted(wish(seat(1), 30 * kGiB));
  refusals.refused(at(3s), seat(1), sched::Refusal::kHostMemory, memory);
  const auto all = refusals.on(kGpu);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].tenant.value, 1u);
  EXPECT_EQ(all[0].why, sched::Refusal::kHostMemory);
  EXPECT_EQ(all[0].wanted, 30 * kGiB);
  EXPECT_EQ(all[0].label->pid, 101);
  EXPECT_EQ(all[1].tenant.value, 2u);
  EXPECT_TRUE(refusals.on({1}).empty());
}

TEST_F(RefusalsTest, ACallThatAsksAgainIsToldOnce) {
  refusals.wanted(wish(seat(1), 20 * kGiB));
  EXPECT_NE(refusals.refused(at(1s), seat(1), sched::Refusal::kGpuMemory, memory), nullptr);
  refusals.wanted(wish(seat(1), 10 * kGiB, true));
  EXPECT_EQ(refusals.refused(at(2s), seat(1), sched::Refusal::kGpuMemory, memory), nullptr);
  EXPECT_EQ(refusals.on(kGpu)[0].wanted, 20 * kGiB);
  refusals.wanted(wish(seat(1), 10 * kGiB));
  ASSERT_NE(refusals.refused(at(3s), seat(1), sched::Refusal::kGpuMemory, memory), nullptr);
  EXPECT_EQ(refusals.on(kGpu)[0].wanted, 10 * kGiB);
}

TEST_F(RefusalsTest, OfSeatsThatAreGoneTheLastOneIsKept) {
  for (std::uint64_t tenant = 1; tenant <= 1000; ++tenant) {
    refusals.wanted(wish(seat(tenant), tenant * kGiB));
    refusals.refused(at(tenant * 1s), seat(tenant), sched::Refusal::kGpuMemory, memory);
  }
  for (std::uint64_t tenant = 1000; tenant >= 1; --tenant) refusals.gone(seat(tenant));
  refusals.gone(seat(5));
  const auto all = refusals.on(kGpu);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].tenant.value, 1000u);
  EXPECT_EQ(all[0].wanted, 1000 * kGiB);
  EXPECT_EQ(all[0].limit, 16 * kGiB);
  EXPECT_EQ(all[0].others, kGiB) << "what is kept free";
}

}  // namespace
}  // namespace gpumux::daemon
