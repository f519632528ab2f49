// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data. Goal: there is enough before it is asked for, the budget holds, and what is not needed
// any more goes back to the machine after a while. Method: an event loop that the test runs, a budget of 16 chunks.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include "daemon/tenants/host_memory.h"

namespace gpumux::daemon {
namespace {

constexpr std::uint64_t kBudget = std::uint64_t{64} << 20;

class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    memory.on_lent([this](std::uint64_t chunk) { EXPECT_TRUE(lent.insert(chunk).second); });
  }
  ~HostMemoryTest() override { pool.join(); }

  // Runs all jobs, and the jobs that follow from them. Chunks that are made only to be unmade would go on for ever.
  void rest() {
    for (int jobs = 0; memory.is_making(); ++jobs) {
      ASSERT_LT(jobs, 2000) << "the daemon makes and unmakes host memory that the mover has not asked for";
      loop.run_one();
    }
  }
  // One chunk. None: there is none now.
  std::optional<std::uint64_t> ask() {
    const std::set<std::uint64_t> before = lent;
    memory.wanted();
    while (memory.awaited() != 0) loop.run_one();
    for (const std::uint64_t chunk : lent) {
      if (!before.contains(chunk)) return chunk;
    }
    return std::nullopt;
  }
  void give_back(std::uint64_t chunk) {
    lent.erase(chunk);
    memory.returned(chunk);
  }
  // The next look is the first that forgets the earlier need.
  void look_for_long() {
    for (std::size_t looks = 0; looks + 1 < kKeptLooks; ++looks) memory.look();
  }

  boost::asio::io_context loop;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> goes_on{loop.get_executor()};
  boost::asio::thread_pool pool{2};
  HostMemory memory{loop, pool, kBudget};
  std::set<std::uint64_t> lent;
};

TEST_F(HostMemoryTest, ItIsReadyBeforeItIsAskedFor) {
  memory.set_demand(3 * memory.chunk_bytes(), memory.chunk_bytes());
  rest();
  EXPECT_GE(memory.ready(), 4 * memory.chunk_bytes());
  EXPECT_TRUE(ask());
  EXPECT_EQ(memory.loans().waited, 0u);
  EXPECT_EQ(memory.lent(), memory.chunk_bytes());
}

TEST_F(HostMemoryTest, WithoutDemandAChunkIsMadeWhenItIsAskedFor) {
  const auto chunk = ask();
  ASSERT_TRUE(chunk);
  EXPECT_EQ(memory.loans().waited, 1u);
  EXPECT_GE(memory.descriptor_of(*chunk), 0);
  give_back(*chunk);
  EXPECT_EQ(memory.descriptor_of(*chunk), -1);
  give_back(*chunk);  // a second time is ignored
  EXPECT_EQ(memory.lent(), 0u);
}

TEST_F(HostMemoryTest, BeyondTheBudgetNothingIsLent) {
  memory.set_demand(kBudget);
  std::uint64_t count = 0;
  while (ask()) ++count;
  EXPECT_EQ(count * memory.chunk_bytes(), kBudget);
  EXPECT_TRUE(memory.is_short());
  give_back(*lent.begin());
  EXPECT_TRUE(ask()) << "what comes back is lent again";
  memory.set_demand(kBudget / 2);
  EXPECT_FALSE(memory.is_short()) << "there is much less to be evicted";
}

TEST_F(HostMemoryTest, ARequestWaitsForWhatComesBack) {
  memory.set_demand(kBudget);
  while (ask()) continue;
  memory.set_demand(0);
  // A chunk is on its way back to the machine, so something may come.
  const std::uint64_t chunk = *lent.begin();
  look_for_long();
  memory.look();
  give_back(chunk);
  memory.wanted();
  while (memory.awaited() != 0) loop.run_one();
  EXPECT_EQ(memory.lent(), kBudget);
}

// The next switch may need again what the last one did.
TEST_F(HostMemoryTest, WhatWasNeededStaysForAWhileAndThenGoesBackToTheMachine) {
  memory.set_demand(kBudget);
  rest();
  EXPECT_EQ(memory.ready(), kBudget);
  memory.set_demand(memory.chunk_bytes());
  look_for_long();
  EXPECT_EQ(memory.ready(), kBudget) << "it was needed not long ago";
  memory.look();
  rest();
  EXPECT_LT(memory.ready(), kBudget / 4 * 3) << "only as much as there is to evict, and a little more";
  EXPECT_GT(memory.ready(), memory.chunk_bytes());
  memory.set_demand(0);
  look_for_long();
  memory.look();
  rest();
  EXPECT_EQ(memory.taken(), 0u);
  EXPECT_EQ(memory.made().bytes, kBudget) << "nothing was made in order to go";
}

TEST_F(HostMemoryTest, WhatAnEarlierDaemonHasLentCounts) {
  const auto file = HostFiles().make(memory.chunk_bytes());
  ASSERT_TRUE(file);
  const auto adopted = memory.adopt(os::FileDescriptor(::dup(file->fd.get())));
  ASSERT_TRUE(adopted);
  EXPECT_EQ(memory.lent(), memory.chunk_bytes());
  const auto small = HostFiles().make(memory.chunk_bytes() / 2);
  ASSERT_TRUE(small);
  EXPECT_FALSE(memory.adopt(os::FileDescriptor(::dup(small->fd.get()))));
  std::uint64_t count = 1;
  while (ask()) ++count;
  EXPECT_EQ(count * memory.chunk_bytes(), kBudget);
  memory.abandon();
  EXPECT_EQ(memory.lent(), 0u);
}

TEST_F(HostMemoryTest, WhatIsElsewhereLeavesSomeOfTheBudget) {
  memory.set_elsewhere(4 * kBudget);
  std::uint64_t count = 0;
  while (ask()) ++count;
  EXPECT_EQ(count * memory.chunk_bytes(), kBudget / 4);
  memory.set_elsewhere(0);
  EXPECT_TRUE(ask());
}

// Each moment counts what there is, whatever comes and goes.
TEST_F(HostMemoryTest, WhateverIsAskedForTheBudgetHolds) {
  const char* const text = std::getenv("GPUMUX_TEST_SEED");
  const unsigned seed = text != nullptr ? static_cast<unsigned>(std::atoi(text)) : std::random_device()();
  std::printf("seed: GPUMUX_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 4000; ++round) {
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: memory.wanted(); break;
      case 3:
      case 4:
        if (!lent.empty()) give_back(*std::next(lent.begin(), static_cast<std::ptrdiff_t>(random() % lent.size())));
        break;
      case 5: memory.look(); break;
      case 6: memory.set_elsewhere(random() % 2 == 0 ? 0 : random() % kBudget); break;
      default: memory.set_demand(random() % 3 == 0 ? 0 : random() % kBudget); break;
    }
    while (loop.poll_one() != 0 || (random() % 4 == 0 && loop.run_one_for(std::chrono::microseconds(200)) != 0)) {
    }
    ASSERT_LE(memory.taken(), kBudget);
    ASSERT_EQ(memory.lent(), lent.size() * memory.chunk_bytes());
  }
  memory.set_demand(0);
  while (!lent.empty()) give_back(*lent.begin());
  while (memory.awaited() != 0) loop.run_one();
  while (!lent.empty()) give_back(*lent.begin());
  look_for_long();
  memory.look();
  rest();
  EXPECT_EQ(memory.taken(), 0u);
}

}  // namespace
}  // namespace gpumux::daemon
