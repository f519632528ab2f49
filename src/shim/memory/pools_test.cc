// SPDX-License-Identifier: Apache-2.0
// Goal: stream-ordered memory is never handed out while work that came before its free may still use it, unless what
// is handed out comes after that work by itself; pools keep their books; and whatever the driver or the pager refuses,
// nothing is lost.
//
// Method: streams that are two numbers, what was submitted and what is done, so a test says what runs. Each stream also
// knows how far of every other it is ordered behind (by waits for events), so for any allocation it can be said whether
// it is one too early. A random program does everything in any order, with failures; GPUMUX_TEST_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shim/memory/pools.h"

namespace gpumux::shim {
namespace {

using namespace cuda;
using pager::kMebibyte;
using pager::Placement;

// ---- a GPU that does what the test says

struct Gpu {
  // Streams that there have ever been; handles are used again, these are not.
  struct Stream {
    CUcontext context = nullptr;
    std::uint64_t submitted = 0;
    std::uint64_t done = 0;
    std::map<std::size_t, std::uint64_t> behind;  // how far of which others
    // What must be done of others before what was submitted here from some point on.
    std::vector<std::pair<std::uint64_t, std::map<std::size_t, std::uint64_t>>> waits;
  };
  struct Event {
    CUcontext context = nullptr;
    bool recorded = false;
    std::size_t stream = 0;
    std::uint64_t at = 0;
    std::map<std::size_t, std::uint64_t> behind;
  };

  std::vector<Stream> streams;
  std::map<CUstream, std::size_t> by_handle;
  std::map<CUevent, Event> events;
  std::vector<CUcontext> current;
  std::uintptr_t next_event = 0x1000;
  std::map<std::string, int> fail_next;
  std::map<std::string, int> calls;
  std::map<CUmemPool_attribute, std::uint64_t> set_with_driver;
  CUmemoryPool default_pool = reinterpret_cast<CUmemoryPool>(0x77);

  bool fails(const std::string& name) {
    ++calls[name];
    const auto found = fail_next.find(name);
    if (found == fail_next.end() || found->second == 0) return false;
    --found->second;
    return true;
  }
  void open(CUstream handle, CUcontext context) {
    by_handle[handle] = streams.size();
    streams.push_back({});
    streams.back().context = context;
  }
  Stream& at(CUstream handle) { return streams[by_handle.at(handle)]; }

  bool may_do(const Stream& stream, std::uint64_t upto) const {
    for (const auto& [from, needs] : stream.waits) {
      if (from >= upto) continue;
      for (const auto& [other, point] : needs) {
        if (streams[other].done < point) return false;
      }
    }
    return true;
  }
  // What is submitted to one stream from now on comes after what another has been given until then.
  void order(std::size_t later, std::size_t earlier, std::uint64_t at,
             std::map<std::size_t, std::uint64_t> needs = {}) {
    if (later == earlier) return;
    std::uint64_t& own = needs[earlier];
    own = std::max(own, at);
    // The wait is itself something that is submitted.
    streams[later].waits.emplace_back(streams[later].submitted++, needs);
    for (const auto& [other, point] : needs) {
      streams[later].behind[other] = std::max(streams[later].behind[other], point);
    }
  }
  // Does as much of one stream as can be done, up to a point.
  void run(std::size_t index, std::uint64_t upto) {
    Stream& stream = streams[index];
    while (stream.done < std::min(upto, stream.submitted) && may_do(stream, stream.done + 1)) ++stream.done;
  }
  void run_all() {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t i = 0; i < streams.size(); ++i) {
        const std::uint64_t before = streams[i].done;
        run(i, UINT64_MAX);
        any = any || streams[i].done != before;
      }
    }
  }
};

Gpu* g_gpu = nullptr;

Driver fake_driver() {
  Driver driver;
  driver.cuCtxPushCurrent_v2 = [](CUcontext context) {
    g_gpu->current.push_back(context);
    return CUDA_SUCCESS;
  };
  driver.cuCtxPopCurrent_v2 = [](CUcontext* context) {
    *context = g_gpu->current.back();
    g_gpu->current.pop_back();
    return CUDA_SUCCESS;
  };
  driver.cuEventCreate = [](CUevent* event, unsigned) {
    if (g_gpu->fails("cuEventCreate")) return CUDA_ERROR_OUT_OF_MEMORY;
    *event = reinterpret_cast<CUevent>(g_gpu->next_event += 16);
    g_gpu->events[*event].context = g_gpu->current.back();
    return CUDA_SUCCESS;
  };
  driver.cuEventDestroy_v2 = [](CUevent event) {
    EXPECT_EQ(g_gpu->events.erase(event), 1u);
    return CUDA_SUCCESS;
  };
  driver.cuEventRecord = [](CUevent event, CUstream handle) {
    if (g_gpu->fails("cuEventRecord")) return CUDA_ERROR_UNKNOWN;
    Gpu::Event& its = g_gpu->events.at(event);
    const Gpu::Stream& stream = g_gpu->at(handle);
    EXPECT_EQ(its.context, stream.context) << "an event of another context";
    its.recorded = true;
    its.stream = g_gpu->by_handle.at(handle);
    its.at = stream.submitted;
    its.behind = stream.behind;
    return CUDA_SUCCESS;
  };
  driver.cuEventQuery = [](CUevent event) {
    ++g_gpu->calls["cuEventQuery"];
    const auto found = g_gpu->events.find(event);
    if (found == g_gpu->events.end()) {
      ADD_FAILURE() << "asked about an event that there is not";
      return CUDA_ERROR_INVALID_HANDLE;
    }
    return g_gpu->streams[found->second.stream].done >= found->second.at ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  };
  driver.cuStreamWaitEvent = [](CUstream handle, CUevent event, unsigned) {
    if (g_gpu->fails("cuStreamWaitEvent")) return CUDA_ERROR_UNKNOWN;
    const Gpu::Event& its = g_gpu->events.at(event);
    g_gpu->order(g_gpu->by_handle.at(handle), its.stream, its.at, its.behind);
    return CUDA_SUCCESS;
  };
  driver.cuStreamSynchronize = [](CUstream handle) {
    ++g_gpu->calls["cuStreamSynchronize"];
    g_gpu->run_all();
    const Gpu::Stream& stream = g_gpu->at(handle);
    return stream.done == stream.submitted ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  };
  driver.cuDeviceGetDefaultMemPool = [](CUmemoryPool* pool, CUdevice) {
    *pool = g_gpu->default_pool;
    return CUDA_SUCCESS;
  };
  driver.cuDeviceGetMemPool = driver.cuDeviceGetDefaultMemPool;
  driver.cuMemPoolGetAttribute = [](CUmemoryPool, CUmemPool_attribute attribute, void* value) {
    const auto found = g_gpu->set_with_driver.find(attribute);
    if (found == g_gpu->set_with_driver.end()) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<std::uint64_t*>(value) = found->second;
    return CUDA_SUCCESS;
  };
  return driver;
}

// ---- a pager that has so much

class Pages final : public Pools::Port {
 public:
  CUresult take_segment(std::uint32_t slot, CUcontext context, std::uint64_t bytes, Placement,
                        CUdeviceptr* address) override {
    EXPECT_EQ(slot, 3u);
    EXPECT_EQ(bytes % pager::kBlockBytes, 0u);
    ++taken;
    if (used + bytes > capacity || refuse_next) {
      refuse_next = false;
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    used += bytes;
    // Freed addresses come again, as the pager's do.
    for (auto again = free.rbegin(); again != free.rend(); ++again) {
      if (again->second != bytes) continue;
      *address = again->first;
      free.erase(std::next(again).base());
      segments[*address] = {bytes, context};
      return CUDA_SUCCESS;
    }
    *address = next;
    next += bytes;
    segments[*address] = {bytes, context};
    return CUDA_SUCCESS;
  }
  void give_segment(std::uint32_t, CUdeviceptr address) override {
    const auto found = segments.find(address);
    ASSERT_NE(found, segments.end()) << "gives what it has not";
    if (on_give) on_give(address, found->second.bytes);
    used -= found->second.bytes;
    free.emplace_back(address, found->second.bytes);
    segments.erase(found);
  }
  struct Segment {
    std::uint64_t bytes;
    CUcontext context;
  };
  std::map<CUdeviceptr, Segment> segments;
  std::vector<std::pair<CUdeviceptr, std::uint64_t>> free;
  std::function<void(CUdeviceptr, std::uint64_t)> on_give;
  std::uint64_t capacity = UINT64_MAX;
  std::uint64_t used = 0;
  std::uint64_t taken = 0;
  bool refuse_next = false;
  CUdeviceptr next = CUdeviceptr{1} << 40;
};

const CUcontext kContext = reinterpret_cast<CUcontext>(0xc0);
const CUcontext kOther = reinterpret_cast<CUcontext>(0xc1);
const CUstream kA = reinterpret_cast<CUstream>(0xa00);
const CUstream kB = reinterpret_cast<CUstream>(0xb00);

class PoolsTest : public testing::Test {
 protected:
  PoolsTest() : driver_(fake_driver()), pools_(driver_, pages_, 0, 3) {
    g_gpu = &gpu_;
    gpu_.open(kA, kContext);
    gpu_.open(kB, kContext);
    EXPECT_TRUE(pools_.has(pool_));
  }
  void TearDown() override { EXPECT_STREQ(pools_.check(), nullptr); }

  static StreamName name(CUstream stream, CUcontext context = kContext) { return {context, stream, 0}; }
  CUdeviceptr allocate(std::uint64_t bytes, CUstream stream, CUmemoryPool pool = nullptr) {
    CUdeviceptr address = 0;
    EXPECT_EQ(try_allocate(bytes, stream, &address, pool), CUDA_SUCCESS);
    return address;
  }
  CUresult try_allocate(std::uint64_t bytes, CUstream stream, CUdeviceptr* address, CUmemoryPool pool = nullptr) {
    return pools_.allocate(pool == nullptr ? pool_ : pool, name(stream), bytes, Placement::kResident, address);
  }
  void free(CUdeviceptr address, CUstream stream) { EXPECT_EQ(pools_.free(address, name(stream)), CUDA_SUCCESS); }
  void submit(CUstream stream) { ++gpu_.at(stream).submitted; }
  std::uint64_t get(CUmemPool_attribute attribute, CUmemoryPool pool = nullptr) {
    std::uint64_t value = 0;
    EXPECT_EQ(pools_.get(pool == nullptr ? pool_ : pool, attribute, &value), CUDA_SUCCESS);
    return value;
  }
  template <class T>
  CUresult set(CUmemPool_attribute attribute, T value) {
    return pools_.set(pool_, attribute, &value);
  }

  Gpu gpu_;
  Driver driver_;
  Pages pages_;
  Pools pools_;
  const CUmemoryPool pool_ = gpu_.default_pool;
};

TEST_F(PoolsTest, TheSameStreamGetsItBackAtOnceAndOthersWhenItIsDone) {
  const CUdeviceptr first = allocate(4 * kMebibyte, kA);
  submit(kA);
  free(first, kA);
  const CUdeviceptr others = allocate(4 * kMebibyte, kB);
  EXPECT_NE(others, first) << "work of the stream that freed it may still use it";
  const int asked = gpu_.calls["cuEventQuery"];
  EXPECT_EQ(allocate(4 * kMebibyte, kA), first);
  EXPECT_EQ(gpu_.calls["cuEventQuery"], asked) << "its own stream needs to ask nobody";
  free(first, kA);
  gpu_.run_all();
  EXPECT_EQ(allocate(4 * kMebibyte, kB), first);
  EXPECT_EQ(pages_.taken, 2u);
}

TEST_F(PoolsTest, ALoopOfAllocationsAndFreesRecordsOneEventEachAndAsksForNothingElse) {
  for (int i = 0; i < 2; ++i) free(allocate(3 * kMebibyte, kA), kA);
  gpu_.calls.clear();
  for (int i = 0; i < 100; ++i) free(allocate(3 * kMebibyte, kA), kA);
  EXPECT_EQ(gpu_.calls["cuEventRecord"], 100);
  EXPECT_EQ(gpu_.calls.size(), 1u);
  EXPECT_EQ(pages_.taken, 1u);
}

TEST_F(PoolsTest, AStreamsNameIsNotItsHandle) {
  const CUdeviceptr first = allocate(4 * kMebibyte, kA);
  submit(kA);
  free(first, kA);
  // Another stream with the same handle is not behind the work of the one that was.
  pools_.stream_gone(kA);
  gpu_.open(kA, kContext);
  EXPECT_NE(allocate(4 * kMebibyte, kA), first);
  // Nor is another thread's own stream.
  CUdeviceptr own = 0;
  const StreamName one{kContext, kB, 1};
  const StreamName two{kContext, kB, 2};
  ASSERT_EQ(pools_.allocate(pool_, one, 4 * kMebibyte, Placement::kResident, &own), CUDA_SUCCESS);
  submit(kB);
  ASSERT_EQ(pools_.free(own, one), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_TRUE(!pools_.reuse(pool_, two, 4 * kMebibyte, &again) || again != own);
  EXPECT_TRUE(pools_.reuse(pool_, one, 4 * kMebibyte, &again));
  EXPECT_EQ(again, own);
}

TEST_F(PoolsTest, WhatNoPoolMadeGoesBackWhenTheStreamThatFreedItIsDone) {
  CUdeviceptr plain = 0;
  ASSERT_EQ(pages_.take_segment(3, kContext, 4 * kMebibyte, Placement::kResident, &plain), CUDA_SUCCESS);
  EXPECT_EQ(pools_.free(plain, name(kA)), CUDA_ERROR_INVALID_VALUE);
  ASSERT_TRUE(pools_.adopt(plain, 3 * kMebibyte, kContext));
  EXPECT_FALSE(pools_.adopt(plain, 3 * kMebibyte, kContext)) << "it is a pool's";
  submit(kA);
  free(plain, kA);
  EXPECT_EQ(pools_.free(plain, name(kA)), CUDA_ERROR_INVALID_VALUE) << "freed twice";
  EXPECT_FALSE(pools_.adopt(plain, 3 * kMebibyte, kContext)) << "freed, and not gone";
  const CUdeviceptr next = allocate(3 * kMebibyte, kA);
  EXPECT_NE(next, plain) << "nothing is allocated from it";
  pools_.release_surplus();
  EXPECT_TRUE(pages_.segments.contains(plain)) << "the stream may still use it";
  gpu_.run_all();
  ASSERT_TRUE(pools_.has_surplus());
  pools_.release_surplus();
  EXPECT_FALSE(pages_.segments.contains(plain));
  free(next, kA);
}

TEST_F(PoolsTest, WhatIsDividedBecomesWholeAgain) {
  const CUdeviceptr whole = allocate(8 * kMebibyte, kA);
  submit(kA);
  free(whole, kA);
  const CUdeviceptr low = allocate(3 * kMebibyte, kA);
  const CUdeviceptr high = allocate(5 * kMebibyte, kA);
  EXPECT_EQ(low, whole);
  EXPECT_EQ(high, whole + 3 * kMebibyte);
  free(low, kA);
  free(high, kA);
  EXPECT_EQ(allocate(8 * kMebibyte, kA), whole) << "of one stream, though nothing is done yet";
  free(whole, kA);
  const CUdeviceptr again = allocate(3 * kMebibyte, kA);
  const CUdeviceptr other = allocate(5 * kMebibyte, kA);
  submit(kB);
  free(again, kA);
  free(other, kB);
  EXPECT_NE(allocate(8 * kMebibyte, kA), whole) << "half of it is another stream's";
  gpu_.run_all();
  EXPECT_EQ(allocate(8 * kMebibyte, kA), whole);
  EXPECT_EQ(pages_.taken, 2u);
}

TEST_F(PoolsTest, WhatIsSmallSharesABlockAndLeavesLargeOnesWhole) {
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX), CUDA_SUCCESS);
  const CUdeviceptr large = allocate(64 * kMebibyte, kA);
  free(large, kA);
  const CUdeviceptr small = allocate(1000, kA);
  const CUdeviceptr second = allocate(1, kA);
  EXPECT_EQ(second - small, 1024u);
  EXPECT_EQ(pages_.used, 66 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1536u);
  const CUdeviceptr medium = allocate(kMebibyte, kA);
  EXPECT_FALSE(medium >= large && medium < large + 64 * kMebibyte) << "too little of it to divide it for";
  EXPECT_EQ(allocate(60 * kMebibyte, kA), large);
}

TEST_F(PoolsTest, SegmentsComeInStepsAsLongAsThereIsMemory) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 256; ++i) all.push_back(allocate(kMebibyte, kA));
  EXPECT_LE(pages_.taken, 12u) << "2, 2, 4, 8, 16 and then 32 MiB at a time";
  EXPECT_LE(pages_.used, (256 + 32) * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 256 * kMebibyte);
  // Where a step is too much, what is asked for may not be.
  while (get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
    all.push_back(allocate(kMebibyte, kA));
  pages_.capacity = pages_.used + 2 * kMebibyte;
  all.push_back(allocate(kMebibyte, kA));
  EXPECT_EQ(pages_.used, pages_.capacity);
  for (const CUdeviceptr address : all) free(address, kA);
  gpu_.run_all();
  EXPECT_EQ(pools_.trim(pool_, 0), pages_.capacity);
}

TEST_F(PoolsTest, AttributesAreThePoolsOwnNumbers) {
  const CUdeviceptr one = allocate(3 * kMebibyte, kA);
  const CUdeviceptr two = allocate(5 * kMebibyte, kA);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 10 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 8 * kMebibyte);
  free(one, kA);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 8 * kMebibyte);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, std::uint64_t{1}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, std::uint64_t{0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, std::uint64_t{0}), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 5 * kMebibyte);
  gpu_.run_all();
  EXPECT_EQ(pools_.trim(pool_, 6 * kMebibyte), 4 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 6 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 10 * kMebibyte);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, std::uint64_t{0}), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 6 * kMebibyte);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC), 0u);
  free(two, kA);
  gpu_.run_all();
  EXPECT_NE(allocate(6 * kMebibyte, kB), two) << "done, but only the stream that freed it may have it";
  EXPECT_EQ(allocate(6 * kMebibyte, kA), two);
}

TEST_F(PoolsTest, WhatWasSetBeforeTheFirstAllocationHolds) {
  gpu_.set_with_driver[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = 12345;
  const auto own = reinterpret_cast<CUmemoryPool>(0x99);
  pools_.add(own, 0);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, own), 12345u);
  EXPECT_FALSE(pools_.has(reinterpret_cast<CUmemoryPool>(0x98)));
}

TEST_F(PoolsTest, TheSurplusGoesWhenTheProgramSynchronises) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 8; ++i) all.push_back(allocate(16 * kMebibyte, kA));
  submit(kA);
  for (const CUdeviceptr address : all) free(address, kA);
  ASSERT_TRUE(pools_.has_surplus());
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 128 * kMebibyte) << "nothing is done yet";
  EXPECT_TRUE(pools_.has_surplus());
  gpu_.run_all();
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, Pools::kKept);
  EXPECT_FALSE(pools_.has_surplus());
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX), CUDA_SUCCESS);
  all.clear();
  for (int i = 0; i < 8; ++i) all.push_back(allocate(16 * kMebibyte, kA));
  for (const CUdeviceptr address : all) free(address, kA);
  EXPECT_FALSE(pools_.has_surplus()) << "the program wants to keep it";
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, std::uint64_t{64 * kMebibyte}), CUDA_SUCCESS);
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 64 * kMebibyte);
}

TEST_F(PoolsTest, OutOfMemoryTakesWhatIsDoneAndThenWhatWillBe) {
  pages_.capacity = 16 * kMebibyte;
  const CUdeviceptr first = allocate(16 * kMebibyte, kA);
  submit(kA);
  free(first, kA);
  CUdeviceptr address = 0;
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0), CUDA_SUCCESS);
  EXPECT_EQ(try_allocate(10 * kMebibyte, kB, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(pools_.has_pending());
  EXPECT_TRUE(pools_.has_pending(pools_.moment()));
  EXPECT_FALSE(pools_.has_pending(1)) << "what was freed later is not waited for";
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1), CUDA_SUCCESS);
  gpu_.fail_next["cuStreamWaitEvent"] = 1;
  EXPECT_EQ(try_allocate(10 * kMebibyte, kB, &address), CUDA_ERROR_UNKNOWN);
  EXPECT_STREQ(pools_.check(), nullptr);
  ASSERT_EQ(try_allocate(10 * kMebibyte, kB, &address), CUDA_SUCCESS);
  EXPECT_EQ(address, first);
  submit(kB);
  gpu_.run(1, UINT64_MAX);
  EXPECT_EQ(gpu_.at(kB).done, 0u) << "the other stream waits for the one that freed it";
  gpu_.run_all();
  EXPECT_FALSE(pools_.has_pending());
  free(address, kB);
  gpu_.run_all();
  // Another size: what is free is given back to take it.
  EXPECT_EQ(try_allocate(17 * kMebibyte, kB, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pages_.used, 0u);
  EXPECT_EQ(try_allocate(12 * kMebibyte, kB, &address), CUDA_SUCCESS);
}

TEST_F(PoolsTest, APoolHasNoMoreThanItMay) {
  const auto own = reinterpret_cast<CUmemoryPool>(0x99);
  pools_.add(own, 8 * kMebibyte);
  const CUdeviceptr first = allocate(4 * kMebibyte, kA, own);
  CUdeviceptr second = allocate(4 * kMebibyte, kA, own);
  CUdeviceptr third = 0;
  EXPECT_EQ(try_allocate(1, kA, &third, own), Pools::kBeyondLimit);
  EXPECT_EQ(try_allocate(1, kA, &third), CUDA_SUCCESS) << "other pools are other pools";
  free(first, kA);
  free(second, kA);
  EXPECT_EQ(try_allocate(6 * kMebibyte, kA, &second, own), CUDA_SUCCESS) << "what is free makes room";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, own), 6 * kMebibyte);
}

TEST_F(PoolsTest, ADestroyedPoolsAllocationsLiveUntilTheyAreFreed) {
  const auto own = reinterpret_cast<CUmemoryPool>(0x99);
  pools_.add(own, 0);
  const CUdeviceptr one = allocate(4 * kMebibyte, kA, own);
  const CUdeviceptr two = allocate(4 * kMebibyte, kA, own);
  submit(kA);
  free(one, kA);
  pools_.destroyed(own);
  EXPECT_FALSE(pools_.has(own));
  CUdeviceptr address = 0;
  EXPECT_EQ(try_allocate(1, kA, &address, own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(pools_.owns(two));
  EXPECT_EQ(pages_.used, 8 * kMebibyte);
  gpu_.run_all();
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 4 * kMebibyte);
  // The driver may give another pool the same handle.
  pools_.add(own, 0);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, own), 0u);
  free(two, kA);
  EXPECT_TRUE(pools_.has_surplus());
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 0u);
  EXPECT_FALSE(pools_.has_surplus());
}

TEST_F(PoolsTest, OnlyAllocationsAreFreedAndOnlyOnce) {
  const CUdeviceptr address = allocate(4 * kMebibyte, kA);
  EXPECT_EQ(pools_.free(address + 512, name(kA)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(pools_.begin_free(address + 512));
  const auto found = pools_.find(address + 5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->base, address);
  EXPECT_EQ(found->bytes, 4 * kMebibyte);
  EXPECT_EQ(found->pool, pool_);
  free(address, kA);
  EXPECT_EQ(pools_.free(address, name(kA)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(pools_.find(address));
  EXPECT_TRUE(pools_.covers(address));
  const CUdeviceptr again = allocate(4 * kMebibyte, kA);
  EXPECT_NE(pools_.find(again)->id, found->id);
  // cuMemFree: nobody needs to be asked afterwards.
  const auto freeing = pools_.begin_free(again);
  ASSERT_TRUE(freeing);
  EXPECT_EQ(freeing->context, kContext);
  EXPECT_EQ(pools_.free(again, name(kA)), CUDA_ERROR_INVALID_VALUE);
  pools_.end_free(*freeing, false);
  EXPECT_TRUE(pools_.owns(again));
  pools_.end_free(*pools_.begin_free(again), true);
  EXPECT_EQ(allocate(4 * kMebibyte, kB), again);
}

TEST_F(PoolsTest, AFreeThatTheDriverRefusesFreesNothing) {
  const CUdeviceptr address = allocate(4 * kMebibyte, kA);
  gpu_.fail_next["cuEventCreate"] = 1;
  submit(kA);
  // Without an event the work is waited for.
  free(address, kA);
  EXPECT_EQ(gpu_.calls["cuStreamSynchronize"], 1);
  EXPECT_EQ(allocate(4 * kMebibyte, kB), address);
  // A capture is not: it would be broken by that.
  driver_.cuEventRecord = [](CUevent, CUstream) { return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; };
  EXPECT_EQ(pools_.free(address, name(kB)), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(gpu_.calls["cuStreamSynchronize"], 1);
  EXPECT_TRUE(pools_.owns(address));
}

TEST_F(PoolsTest, AContextTakesItsMemoryAndItsEventsWithIt) {
  const CUstream other = reinterpret_cast<CUstream>(0xd00);
  gpu_.open(other, kOther);
  CUdeviceptr theirs = 0;
  ASSERT_EQ(pools_.allocate(pool_, name(other, kOther), 4 * kMebibyte, Placement::kResident, &theirs), CUDA_SUCCESS);
  const CUdeviceptr ours = allocate(4 * kMebibyte, kA);
  submit(other);
  ASSERT_EQ(pools_.free(ours, name(other, kOther)), CUDA_SUCCESS);
  gpu_.run_all();
  std::erase_if(gpu_.events, [](const auto& item) { return item.second.context == kOther; });
  pools_.context_going(kOther);
  EXPECT_FALSE(pools_.covers(theirs));
  EXPECT_EQ(allocate(4 * kMebibyte, kA), ours);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 * kMebibyte);
}

// ---- everything at once

class RandomPrograms : public PoolsTest, public testing::WithParamInterface<unsigned> {
 protected:
  struct Freed {
    CUdeviceptr address;
    std::uint64_t bytes;
    std::size_t stream;
    std::uint64_t at;
  };
  struct Live {
    std::uint64_t bytes;
    std::size_t stream;  // for which it was allocated, and from where on
    std::uint64_t at;
    std::map<std::size_t, std::uint64_t> behind;
  };

  unsigned pick(unsigned below) { return static_cast<unsigned>(random_() % below); }
  CUstream handle(unsigned i) const { return reinterpret_cast<CUstream>(std::uintptr_t{0x10000} + 0x100 * i); }
  CUcontext context_of(unsigned i) const { return i % 4 == 3 ? kOther : kContext; }
  StreamName named(unsigned i) const { return name(handle(i), context_of(i)); }

  void step() {
    const unsigned i = pick(kStreams);
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
      case 3: return allocate_one(i);
      case 4:
      case 5:
      case 6: return free_one(i);
      case 7:
      case 8:
      case 9: ++gpu_.at(handle(i)).submitted; return;
      case 10:
      case 11: {
        const std::size_t stream = pick(static_cast<unsigned>(gpu_.streams.size()));
        return gpu_.run(stream, gpu_.streams[stream].done + pick(4));
      }
      case 12: pools_.release_surplus(); return;
      case 13: return change();
      case 14:
        if (pick(8) == 0) pools_.release(pick(64) * kMebibyte);
        if (pick(8) == 0) gpu_.run_all();
        return;
      default: return break_something(i);
    }
  }

  void allocate_one(unsigned i) {
    const std::uint64_t bytes = 1 + random_() % (pick(3) == 0 ? 400'000 : 12 * kMebibyte);
    CUdeviceptr address = 0;
    const CUmemoryPool pool = pick(3) == 0 ? small_ : pool_;
    if (pick(10) == 0) pages_.refuse_next = true;
    const CUresult result = pools_.allocate(pool, named(i), bytes, Placement::kResident, &address);
    pages_.refuse_next = false;
    if (result != CUDA_SUCCESS) {
      EXPECT_TRUE(result == CUDA_ERROR_OUT_OF_MEMORY || result == Pools::kBeyondLimit || result == CUDA_ERROR_UNKNOWN);
      return;
    }
    const std::size_t stream = gpu_.by_handle.at(handle(i));
    const auto segment = std::prev(pages_.segments.upper_bound(address));
    EXPECT_LE(address + bytes, segment->first + segment->second.bytes) << "beyond its segment";
    EXPECT_EQ(segment->second.context, context_of(i));
    for (const auto& [base, live] : live_) EXPECT_FALSE(overlap(address, bytes, base, live.bytes));
    for (const Freed& freed : freed_) {
      if (!overlap(address, bytes, freed.address, freed.bytes) || freed.stream == stream) continue;
      const Gpu::Stream& its = gpu_.streams[stream];
      const auto behind = its.behind.find(freed.stream);
      const bool ordered = behind != its.behind.end() && behind->second >= freed.at;
      EXPECT_TRUE(ordered || gpu_.streams[freed.stream].done >= freed.at)
          << "stream " << stream << " got memory that stream " << freed.stream << " may still use";
    }
    live_[address] = {bytes, stream, gpu_.streams[stream].submitted, gpu_.streams[stream].behind};
  }

  void free_one(unsigned i) {
    if (live_.empty()) return;
    const auto chosen = std::next(live_.begin(), pick(static_cast<unsigned>(live_.size())));
    const std::size_t stream = gpu_.by_handle.at(handle(i));
    if (pick(8) == 0) {
      // cuMemFree, which waits.
      const auto freeing = pools_.begin_free(chosen->first);
      ASSERT_TRUE(freeing);
      const bool freed = pick(4) != 0;
      if (freed) gpu_.run_all();
      pools_.end_free(*freeing, freed);
      if (freed) live_.erase(chosen);
      return;
    }
    // A program frees in another stream what it has allocated in one only behind the allocation.
    const Live& live = chosen->second;
    gpu_.order(stream, live.stream, live.at, live.behind);
    const CUresult result = pools_.free(chosen->first, named(i));
    if (result != CUDA_SUCCESS) return;
    freed_.push_back({chosen->first, chosen->second.bytes, stream, gpu_.streams[stream].submitted});
    live_.erase(chosen);
    std::erase_if(freed_, [this](const Freed& old) { return gpu_.streams[old.stream].done >= old.at; });
  }

  void change() {
    const std::uint64_t threshold = pick(3) == 0 ? UINT64_MAX : pick(40) * kMebibyte;
    int flag = pick(4) != 0 ? 1 : 0;
    EXPECT_EQ(pools_.set(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
    EXPECT_EQ(pools_.set(pool_, static_cast<CUmemPool_attribute>(1 + pick(3)), &flag), CUDA_SUCCESS);
    if (pick(4) == 0) pools_.trim(pool_, pick(40) * kMebibyte);
    if (pick(10) != 0) return;
    pools_.destroyed(small_);
    pools_.add(small_, 24 * kMebibyte);
  }

  void break_something(unsigned i) {
    switch (pick(4)) {
      case 0: gpu_.fail_next[std::array{"cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"}[pick(3)]] = 1; return;
      case 1:
        // A stream ends, its work goes on; another one gets the handle.
        pools_.stream_gone(handle(i));
        return gpu_.open(handle(i), context_of(i));
      case 2:
        if (pick(30) == 0) end_context();
        return;
      default: return;
    }
  }

  void end_context() {
    gpu_.run_all();
    std::erase_if(gpu_.events, [](const auto& item) { return item.second.context == kOther; });
    pools_.context_going(kOther);
    for (auto segment = pages_.segments.begin(); segment != pages_.segments.end();) {
      if (segment->second.context != kOther) {
        ++segment;
        continue;
      }
      std::erase_if(live_, [&](const auto& live) {
        return overlap(live.first, live.second.bytes, segment->first, segment->second.bytes);
      });
      pages_.used -= segment->second.bytes;
      segment = pages_.segments.erase(segment);
    }
    for (unsigned i = 3; i < kStreams; i += 4) gpu_.open(handle(i), kOther);
  }

  static bool overlap(CUdeviceptr a, std::uint64_t a_bytes, CUdeviceptr b, std::uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
  }

  static constexpr unsigned kStreams = 6;
  std::mt19937_64 random_;
  std::map<CUdeviceptr, Live> live_;
  std::vector<Freed> freed_;
  const CUmemoryPool small_ = reinterpret_cast<CUmemoryPool>(0x55);
};

TEST_P(RandomPrograms, NothingIsHandedOutTooEarlyOrTwice) {
  const char* chosen = std::getenv("GPUMUX_TEST_SEED");
  const auto seed = chosen != nullptr ? static_cast<unsigned>(std::strtoul(chosen, nullptr, 10))
                                      : std::random_device()() + GetParam();
  std::printf("seed: GPUMUX_TEST_SEED=%u\n", seed);
  random_.seed(seed);
  pages_.capacity = (16 + pick(100)) * kMebibyte;
  for (unsigned i = 0; i < kStreams; ++i) gpu_.open(handle(i), context_of(i));
  pools_.add(small_, 24 * kMebibyte);
  pages_.on_give = [this](CUdeviceptr address, std::uint64_t bytes) {
    for (const auto& [base, live] : live_) EXPECT_FALSE(overlap(address, bytes, base, live.bytes));
    for (const Freed& freed : freed_) {
      if (!overlap(address, bytes, freed.address, freed.bytes)) continue;
      EXPECT_GE(gpu_.streams[freed.stream].done, freed.at) << "given away while a stream may use it";
    }
  };
  for (int i = 0; i < 4000 && !HasFailure(); ++i) {
    step();
    const char* wrong = pools_.check();
    ASSERT_EQ(wrong, nullptr) << wrong << " after step " << i;
  }
  while (!live_.empty()) {
    gpu_.fail_next.clear();
    const Live& live = live_.begin()->second;
    gpu_.order(gpu_.by_handle.at(handle(0)), live.stream, live.at, live.behind);
    EXPECT_EQ(pools_.free(live_.begin()->first, named(0)), CUDA_SUCCESS);
    live_.erase(live_.begin());
  }
  gpu_.run_all();
  pools_.release(UINT64_MAX);
  EXPECT_FALSE(pools_.has_pending());
  EXPECT_EQ(pages_.used, 0u) << "memory was lost";
  EXPECT_EQ(pools_.reserved_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPrograms, testing::Range(0u, 12u));

}  // namespace
}  // namespace gpumux::shim
