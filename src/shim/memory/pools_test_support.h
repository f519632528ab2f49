// SPDX-License-Identifier: Apache-2.0
// For tests of pools: a GPU that does what the test says, a pager of limited memory, pools over both.
//
// The simulated driver cannot serve here. Its streams run by themselves. So a test could not say what is done and what
// is not, nor repeat a random program by its seed. Here a stream is two numbers, what was submitted and what is done.
// Each stream also knows how far it is ordered behind every other (by waits for events). So the test can tell for any
// allocation whether it comes too early.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shim/memory/pools.h"

namespace gpumux::shim {

using namespace cuda;  // the fake's functions are the driver's
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
    // The points that other streams must reach before submissions from some point on may run here.
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
  // Once: what another thread does before the next event is recorded, and before the recording thread goes on.
  std::function<void()> before_recording;
  std::function<void()> after_recording;
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
  // Submissions to `later` from now on come after what `earlier` has been given up to `at`.
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
  // Does what can be done of one stream, up to a point.
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

inline Gpu* g_gpu = nullptr;

inline Driver fake_driver() {
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
    if (const auto meanwhile = std::exchange(g_gpu->before_recording, nullptr)) meanwhile();
    Gpu::Event& its = g_gpu->events.at(event);
    const Gpu::Stream& stream = g_gpu->at(handle);
    EXPECT_EQ(its.context, stream.context) << "an event of another context";
    its.recorded = true;
    its.stream = g_gpu->by_handle.at(handle);
    its.at = stream.submitted;
    its.behind = stream.behind;
    if (const auto meanwhile = std::exchange(g_gpu->after_recording, nullptr)) meanwhile();
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

// ---- a pager of limited memory

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

inline const CUcontext kContext = reinterpret_cast<CUcontext>(0xc0);
inline const CUcontext kOther = reinterpret_cast<CUcontext>(0xc1);
inline const CUstream kA = reinterpret_cast<CUstream>(0xa00);
inline const CUstream kB = reinterpret_cast<CUstream>(0xb00);

class PoolsTest : public ::testing::Test {
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
  // All that the stream has been given up to now, except its last submission.
  void run_all_but_one(CUstream stream) { gpu_.run(gpu_.by_handle.at(stream), gpu_.at(stream).submitted - 1); }
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

}  // namespace gpumux::shim
