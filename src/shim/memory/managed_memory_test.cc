// SPDX-License-Identifier: Apache-2.0
// Goal: managed memory leaves and comes back as it is told to. Nothing that the program has said is lost, and no call
// names memory that has been freed. Method: on the simulated driver, which says where each page was asked to be; a
// table in between counts what it refuses. The test takes the pager thread's part, step by step.
#include "shim/memory/managed_memory.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "pager/pager_test_support.h"

namespace gpumux::shim {
namespace {

using namespace cuda;
using pager::kMebibyte;

constexpr std::uint64_t kEverything = UINT64_MAX;
constexpr CUmemLocation kHost{CU_MEM_LOCATION_TYPE_HOST, 0};
constexpr CUmemLocation kDevice{CU_MEM_LOCATION_TYPE_DEVICE, 0};
constexpr int kNowhere = kDeviceInvalid;

Driver g_watched = pager::simulated_driver();
sim::Tap& g_prefetch = sim::tap<&Driver::cuMemPrefetchAsync_v2>(g_watched);
sim::Tap& g_advice = sim::tap<&Driver::cuMemAdvise_v2>(g_watched);
sim::Tap& g_attribute = sim::tap<&Driver::cuMemRangeGetAttribute>(g_watched);
std::atomic<int> g_refused{0};  // calls for memory that is not there

class ManagedMemoryTest : public sim::SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    g_refused = 0;
    for (sim::Tap* const tap : {&g_prefetch, &g_advice, &g_attribute}) {
      tap->clear();
      tap->answered = [](CUresult result) {
        g_refused += result == CUDA_ERROR_INVALID_VALUE;
        return result;
      };
    }
    memory_ = std::make_unique<ManagedMemory>(g_watched, 0);
  }
  void TearDown() override {
    EXPECT_EQ(g_refused, 0) << "calls named memory that is not there";
    SimTest::TearDown();
  }

  CUdeviceptr get(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_CUDA(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
    memory_->add({address, bytes, context_});
    return address;
  }
  // False: the address was another thread's before this was over.
  bool release(CUdeviceptr address) {
    const auto freeing = memory_->begin_free(address);
    EXPECT_TRUE(freeing);
    EXPECT_CUDA(cuMemFree_v2(address));
    return freeing && memory_->end_free(*freeing, true);
  }
  CUresult advise(CUdeviceptr address, std::size_t bytes, CUmem_advise advice, CUmemLocation place) {
    const auto result =
        memory_->advise(address, bytes, advice, place, [&] { return cuMemAdvise_v2(address, bytes, advice, place); });
    return result.value_or(CUDA_ERROR_NOT_FOUND);
  }
  void move() {
    for (int i = 0; memory_->step(); ++i) {
      ASSERT_LT(i, 100'000) << "it never ends";
      sim::sleep_until(sim::now() + std::chrono::microseconds(20));
    }
  }
  void evict(std::uint64_t bytes = kEverything) {
    memory_->evict(bytes);
    move();
  }
  void come_back(std::uint64_t room = kEverything) {
    memory_->come_back(room);
    move();
  }
  static int ask(CUmem_range_attribute attribute, CUdeviceptr address, std::size_t bytes) {
    int answer = 77;
    EXPECT_CUDA(cuMemRangeGetAttribute(&answer, sizeof answer, attribute, address, bytes));
    return answer;
  }
  static int preferred(CUdeviceptr address, std::size_t bytes) {
    return ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, bytes);
  }
  static int prefetched(CUdeviceptr address, std::size_t bytes) {
    return ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, bytes);
  }

  std::unique_ptr<ManagedMemory> memory_;
};

TEST_F(ManagedMemoryTest, LeavesWhenToldAndComesBack) {
  const CUdeviceptr a = get(3 * kMebibyte);
  const CUdeviceptr b = get(5 * kMebibyte + 17);
  EXPECT_EQ(memory_->bytes(), 8 * kMebibyte + ManagedMemory::kPageBytes);
  EXPECT_TRUE(memory_->is_at_home());
  evict();
  EXPECT_FALSE(memory_->is_at_home());
  EXPECT_EQ(memory_->away_bytes(), 8 * kMebibyte);
  for (const auto& [address, bytes] : {std::pair{a, 3 * kMebibyte}, {b, 5 * kMebibyte}}) {
    EXPECT_EQ(preferred(address, bytes), kDeviceCpu);
    EXPECT_EQ(prefetched(address, bytes), kDeviceCpu);
  }
  EXPECT_EQ(prefetched(b + 5 * kMebibyte, 17), kNowhere) << "a page that it may share with others";
  come_back();
  EXPECT_TRUE(memory_->is_at_home());
  EXPECT_EQ(memory_->away_bytes(), 0u);
  for (const auto& [address, bytes] : {std::pair{a, 3 * kMebibyte}, {b, 5 * kMebibyte}}) {
    EXPECT_EQ(preferred(address, bytes), kNowhere);
    EXPECT_EQ(prefetched(address, bytes), 0);
  }
}

TEST_F(ManagedMemoryTest, OnlySoMuchLeavesAsIsInTheWay) {
  const CUdeviceptr a = get(8 * kMebibyte);
  evict(3 * kMebibyte);
  EXPECT_EQ(memory_->away_bytes(), 3 * kMebibyte);
  EXPECT_EQ(prefetched(a, 3 * kMebibyte), kDeviceCpu);
  EXPECT_EQ(prefetched(a + 3 * kMebibyte, 5 * kMebibyte), kNowhere);
  evict(5 * kMebibyte);  // in all
  EXPECT_EQ(memory_->away_bytes(), 5 * kMebibyte);
  EXPECT_EQ(preferred(a, 5 * kMebibyte), kDeviceCpu);
  come_back();
  EXPECT_EQ(preferred(a, 8 * kMebibyte), kNowhere);
}

TEST_F(ManagedMemoryTest, OnlySoMuchIsFetchedAsTheGpuHolds) {
  const CUdeviceptr a = get(6 * kMebibyte);
  const CUdeviceptr b = get(4 * kMebibyte);
  evict(8 * kMebibyte);
  come_back(6 * kMebibyte);
  EXPECT_EQ(prefetched(a, 6 * kMebibyte), 0);
  EXPECT_EQ(prefetched(b, 2 * kMebibyte), kDeviceCpu);
  EXPECT_EQ(preferred(a, 6 * kMebibyte), kNowhere);
  EXPECT_EQ(preferred(b, 4 * kMebibyte), kNowhere) << "where it goes is the driver's again";
  EXPECT_EQ(memory_->away_bytes(), 0u);
  // It was our prefetch that left it with the host, not the program's: it may be on the GPU by now.
  g_prefetch.calls = 0;
  evict();
  EXPECT_EQ(memory_->away_bytes(), 10 * kMebibyte);
  come_back();
  EXPECT_EQ(prefetched(b, 4 * kMebibyte), 0);
}

TEST_F(ManagedMemoryTest, WhatTheProgramPrefersStays) {
  const CUdeviceptr data = get(8 * kMebibyte);
  const auto part = [data](std::uint64_t i) { return data + i * kMebibyte; };
  EXPECT_CUDA(advise(part(1), kMebibyte, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice));
  EXPECT_CUDA(advise(part(3), kMebibyte, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
  const CUdeviceptr left = get(kMebibyte);
  EXPECT_CUDA(cuMemPrefetchAsync(left, kMebibyte, kDeviceCpu, nullptr));
  EXPECT_CUDA(advise(part(6), kMebibyte, CU_MEM_ADVISE_SET_READ_MOSTLY, kDevice));
  evict();
  EXPECT_EQ(preferred(part(0), kMebibyte), kDeviceCpu);
  EXPECT_EQ(preferred(part(1), kMebibyte), 0);
  EXPECT_EQ(prefetched(part(1), kMebibyte), kDeviceCpu) << "it makes way all the same";
  EXPECT_EQ(preferred(part(3), kMebibyte), kDeviceCpu);
  EXPECT_EQ(prefetched(part(3), kMebibyte), kNowhere) << "the program has it where it wants it";
  EXPECT_EQ(preferred(left, kMebibyte), kNowhere) << "the program has put it there";
  // The program then changes its mind.
  EXPECT_CUDA(advise(part(0) + 4096, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
  EXPECT_CUDA(advise(part(1), kMebibyte, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, kHost));
  EXPECT_CUDA(advise(part(2), kMebibyte, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDevice));
  come_back();
  EXPECT_EQ(preferred(part(0), 4096), kNowhere);
  EXPECT_EQ(preferred(part(0) + 4096, 4096), kDeviceCpu);
  EXPECT_EQ(prefetched(part(0) + 4096, 4096), kDeviceCpu);
  EXPECT_EQ(preferred(part(0) + 8192, kMebibyte - 8192), kNowhere);
  EXPECT_EQ(preferred(part(1), kMebibyte), kNowhere);
  EXPECT_EQ(preferred(part(2), kMebibyte), 0);
  EXPECT_EQ(prefetched(part(1), 2 * kMebibyte), 0);
  EXPECT_EQ(preferred(part(3), kMebibyte), kDeviceCpu);
  EXPECT_EQ(prefetched(left, kMebibyte), kDeviceCpu);
  EXPECT_EQ(prefetched(part(6), 2 * kMebibyte), 0);
}

TEST_F(ManagedMemoryTest, AdviceForOthersMemoryIsNotOurs) {
  CUdeviceptr other = 0;
  ASSERT_CUDA(cuMemAllocManaged(&other, kMebibyte, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(advise(other, kMebibyte, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost), CUDA_ERROR_NOT_FOUND);
  EXPECT_FALSE(memory_->begin_free(other));
  EXPECT_CUDA(cuMemFree_v2(other));
}

TEST_F(ManagedMemoryTest, FreedMemoryIsNotSpokenOfAnyMore) {
  const CUdeviceptr a = get(2 * kMebibyte);
  const CUdeviceptr b = get(2 * kMebibyte);
  evict();
  EXPECT_TRUE(release(a));
  EXPECT_EQ(memory_->away_bytes(), 2 * kMebibyte);
  EXPECT_EQ(memory_->bytes(), 2 * kMebibyte);
  // While a thread frees it, it is left alone; the free may fail, and then it is as it was.
  const auto freeing = memory_->begin_free(b);
  ASSERT_TRUE(freeing);
  EXPECT_FALSE(memory_->begin_free(b)) << "twice at once";
  come_back();
  EXPECT_EQ(preferred(b, 2 * kMebibyte), kDeviceCpu);
  EXPECT_FALSE(memory_->end_free(*freeing, false));
  come_back();
  EXPECT_EQ(preferred(b, 2 * kMebibyte), kNowhere);
  EXPECT_TRUE(release(b));
  EXPECT_TRUE(memory_->is_at_home());
  EXPECT_EQ(memory_->bytes(), 0u);
}

// The driver gives the address again before the thread that has freed it is back.
TEST_F(ManagedMemoryTest, AnAddressMayBeSomebodyElsesBeforeItsFreeIsOver) {
  const CUdeviceptr a = get(kMebibyte);
  EXPECT_CUDA(advise(a, kMebibyte, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kHost));
  const auto freeing = memory_->begin_free(a);
  ASSERT_TRUE(freeing);
  EXPECT_CUDA(cuMemFree_v2(a));
  CUdeviceptr again = 0;
  ASSERT_CUDA(cuMemAllocManaged(&again, 2 * kMebibyte, CU_MEM_ATTACH_GLOBAL));
  ASSERT_EQ(again, a) << "the simulated driver gives a freed address again; without that this shows nothing";
  EXPECT_EQ(memory_->add({again, 2 * kMebibyte, context_}), kMebibyte);
  EXPECT_FALSE(memory_->end_free(*freeing, true));
  EXPECT_EQ(memory_->bytes(), 2 * kMebibyte);
  evict();
  EXPECT_EQ(memory_->away_bytes(), 2 * kMebibyte) << "the other one's preference has gone with it";
  EXPECT_TRUE(release(again));
}

TEST_F(ManagedMemoryTest, AContextTakesItsMemoryWithIt) {
  const CUdeviceptr a = get(kMebibyte);
  evict();
  EXPECT_EQ(memory_->context_gone(nullptr), 0u);
  EXPECT_EQ(memory_->context_gone(context_), kMebibyte);
  EXPECT_TRUE(memory_->is_at_home());
  EXPECT_FALSE(memory_->begin_free(a));
  EXPECT_EQ(memory_->bytes(), 0u);
}

// Turning round half way: nothing is forgotten.
TEST_F(ManagedMemoryTest, ATurnMayBeOverBeforeAllIsBack) {
  const CUdeviceptr a = get(kMebibyte);
  std::vector<CUdeviceptr> many;
  for (int i = 0; i < 40; ++i) many.push_back(get(2 * kMebibyte));
  evict();
  memory_->come_back(kEverything);
  ASSERT_TRUE(memory_->step());  // one bite
  EXPECT_LT(memory_->away_bytes(), 81 * kMebibyte);
  EXPECT_GT(memory_->away_bytes(), 0u);
  memory_->stop_coming_back();
  move();
  EXPECT_FALSE(memory_->is_at_home());
  evict();
  EXPECT_EQ(memory_->away_bytes(), 81 * kMebibyte);
  come_back();
  EXPECT_EQ(prefetched(a, kMebibyte), 0);
  for (const CUdeviceptr address : many) EXPECT_EQ(preferred(address, 2 * kMebibyte), kNowhere);
}

TEST_F(ManagedMemoryTest, ACaptureIsNotDisturbed) {
  const CUdeviceptr a = get(kMebibyte);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_CUDA(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CUDA(increment(stream, a, 16));
  evict();
  come_back();
  EXPECT_CUDA(cuStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  EXPECT_CUDA(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1u) << "and is not joined";
  EXPECT_CUDA(cuGraphDestroy(graph));
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
}

TEST_F(ManagedMemoryTest, WhatTheDriverRefusesIsLeft) {
  const CUdeviceptr a = get(4 * kMebibyte);
  g_prefetch.fail_all(CUDA_ERROR_OUT_OF_MEMORY);
  evict();
  EXPECT_TRUE(memory_->is_at_home());
  EXPECT_EQ(preferred(a, 4 * kMebibyte), kNowhere) << "where it does not go it is not preferred";
  g_prefetch.per_million = 0;
  g_advice.fail_all(CUDA_ERROR_UNKNOWN);
  evict();
  EXPECT_EQ(prefetched(a, 4 * kMebibyte), kDeviceCpu);
  g_advice.per_million = 0;
  g_prefetch.fail_all(CUDA_ERROR_OUT_OF_MEMORY);
  come_back();
  EXPECT_TRUE(memory_->is_at_home());
  EXPECT_EQ(preferred(a, 4 * kMebibyte), kNowhere);
}

// A program at work in several threads while its memory goes and comes.
TEST_F(ManagedMemoryTest, ProgramsAllocateAdviseAndFreeMeanwhile) {
  const char* const chosen = std::getenv("GPUMUX_TEST_SEED");
  const unsigned seed =
      chosen != nullptr ? static_cast<unsigned>(std::strtoul(chosen, nullptr, 10)) : std::random_device()();
  std::printf("seed: GPUMUX_TEST_SEED=%u\n", seed);
  std::atomic<int> working{3};
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      EXPECT_CUDA(cuCtxSetCurrent(context_));
      std::mt19937 random(seed + thread);
      const auto pick = [&random](unsigned below) { return static_cast<unsigned>(random() % below); };
      struct Mine {
        CUdeviceptr address;
        std::size_t bytes;
        std::uint32_t value;
      };
      std::vector<Mine> mine;
      const auto drop = [&](std::size_t i) {
        auto* const words = reinterpret_cast<std::uint32_t*>(mine[i].address);
        EXPECT_EQ(words[0], mine[i].value);
        EXPECT_EQ(words[mine[i].bytes / 4 - 1], mine[i].value);
        release(mine[i].address);
        mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i));
      };
      for (int step = 0; step < 600; ++step) {
        if (mine.size() < 4 || pick(3) == 0) {
          const std::size_t bytes =
              pick(3) == 0 ? 4 + std::size_t{pick(2000)} * 4 : kMebibyte + std::size_t{pick(kMebibyte)} / 4 * 4;
          mine.push_back({get(bytes), bytes, static_cast<std::uint32_t>(random())});
          auto* const words = reinterpret_cast<std::uint32_t*>(mine.back().address);
          words[0] = words[bytes / 4 - 1] = mine.back().value;
        }
        const std::size_t i = pick(static_cast<unsigned>(mine.size()));
        const std::size_t offset = pick(static_cast<unsigned>(mine[i].bytes));
        const std::size_t bytes = 1 + pick(static_cast<unsigned>(mine[i].bytes - offset));
        switch (pick(4)) {
          case 0: drop(i); break;
          case 1:
            EXPECT_CUDA(advise(mine[i].address + offset, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                               pick(2) == 0 ? kHost : kDevice));
            break;
          case 2:
            EXPECT_CUDA(advise(mine[i].address + offset, bytes, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, kHost));
            break;
          default: break;
        }
        if (mine.size() > 8) drop(0);
      }
      while (!mine.empty()) drop(0);
      working.fetch_sub(1);
    });
  }
  std::mt19937 random(seed + 100);
  std::uint64_t left = 0;
  while (working != 0) {
    switch (random() % 3) {
      case 0: memory_->evict(random() % (24 * kMebibyte)); break;
      case 1: memory_->come_back(random() % (24 * kMebibyte)); break;
      default: memory_->stop_coming_back(); break;
    }
    for (int i = 0; i < 4; ++i) memory_->step();
    left = std::max(left, memory_->away_bytes());
  }
  for (std::thread& thread : threads) thread.join();
  come_back();
  EXPECT_GT(left, 0u);
  EXPECT_EQ(memory_->bytes(), 0u);
  EXPECT_EQ(memory_->away_bytes(), 0u);
  EXPECT_TRUE(memory_->is_at_home());
}

}  // namespace
}  // namespace gpumux::shim
