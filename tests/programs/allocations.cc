// SPDX-License-Identifier: Apache-2.0
// A program that allocates and frees at random, from several threads, in three ways: cuMemAlloc, cuMemAllocAsync and
// cuMemCreate. It never holds more than --kib, so a driver that has this much must never refuse it. It counts refusals
// instead of ending at the first one. Each allocation carries a mark of its own, which is read back before it is freed.
//
// The sizes span six orders of magnitude: most allocations are small, most bytes are in large ones.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;
constexpr std::size_t in_granules(std::size_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

// The state that all threads of the program share.
struct Shared {
  const Api& api;
  CUdevice device = 0;
  CUcontext context = nullptr;
  std::size_t largest = 0;                // bytes of one allocation
  std::atomic<std::int64_t> left{0};      // bytes that may still be allocated, in granules
  std::atomic<std::uint64_t> made{0};     // allocations
  std::atomic<std::uint64_t> refused{0};  // of them, CUDA_ERROR_OUT_OF_MEMORY
};

class Allocator {
 public:
  Allocator(Shared& shared, std::uint32_t seed) : shared_(shared), api_(shared.api), random_(seed) {
    GPUMUX_CALL(api_.cuCtxSetCurrent(shared_.context));
    GPUMUX_CALL(api_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }

  void step() {
    if (live_.empty() || pick(20) < 11) return allocate();
    release(pick(live_.size()));
  }
  void finish() {
    while (!live_.empty()) release(live_.size() - 1);
    GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
    GPUMUX_CALL(api_.cuStreamDestroy_v2(stream_));
  }

 private:
  enum class Way { kPlain, kInOrder, kMapped };
  struct Live {
    Way way = Way::kPlain;
    CUdeviceptr data = 0;
    CUmemGenericAllocationHandle handle = 0;
    std::size_t bytes = 0;
    std::uint32_t mark = 0;
  };

  std::uint32_t pick(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }

  // 256 bytes to `largest`, each power of two as likely as the next.
  std::size_t pick_bytes() {
    std::size_t powers = 0;
    while ((std::size_t{256} << (powers + 1)) <= shared_.largest) ++powers;
    const std::size_t base = std::size_t{256} << pick(powers + 1);
    return std::min(shared_.largest, base + std::size_t{256} * (pick(base) / 256));
  }

  bool reserve(std::size_t bytes) {
    const auto wanted = static_cast<std::int64_t>(bytes);
    std::int64_t left = shared_.left.load();
    while (left >= wanted) {
      if (shared_.left.compare_exchange_weak(left, left - wanted)) return true;
    }
    return false;
  }

  void allocate() {
    Live live{.way = static_cast<Way>(pick(3)), .bytes = pick_bytes(), .mark = pick(UINT32_MAX)};
    if (live.way == Way::kMapped) live.bytes = in_granules(live.bytes);
    if (!reserve(in_granules(live.bytes))) {
      if (!live_.empty()) release(pick(live_.size()));
      return;
    }
    const CUresult result = make(live);
    if (shared_.made.fetch_add(1) % 10'000 == 9'999)
      say("progress allocations=%llu", static_cast<unsigned long long>(shared_.made.load()));
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      shared_.left += static_cast<std::int64_t>(in_granules(live.bytes));
      ++shared_.refused;
      say("refused way=%d bytes=%zu left=%lld after=%llu", static_cast<int>(live.way), live.bytes,
          static_cast<long long>(shared_.left.load()), static_cast<unsigned long long>(shared_.made.load()));
      return;
    }
    check(result, "an allocation");
    for (const CUdeviceptr end : {live.data, live.data + live.bytes - 4})
      GPUMUX_CALL(api_.cuMemsetD32Async(end, live.mark, 1, stream_));
    live_.push_back(live);
  }

  CUresult make(Live& live) {
    if (live.way == Way::kPlain) return api_.cuMemAlloc_v2(&live.data, live.bytes);
    if (live.way == Way::kInOrder) return api_.cuMemAllocAsync(&live.data, live.bytes, stream_);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, shared_.device};
    if (const CUresult made = api_.cuMemCreate(&live.handle, live.bytes, &properties, 0); made != CUDA_SUCCESS)
      return made;
    GPUMUX_CALL(api_.cuMemAddressReserve(&live.data, live.bytes, 0, 0, 0));
    GPUMUX_CALL(api_.cuMemMap(live.data, live.bytes, 0, live.handle, 0));
    const CUmemAccessDesc right{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    GPUMUX_CALL(api_.cuMemSetAccess(live.data, live.bytes, &right, 1));
    return CUDA_SUCCESS;
  }

  void verify(const Live& live) {
    for (const CUdeviceptr end : {live.data, live.data + live.bytes - 4}) {
      std::uint32_t word = 0;
      GPUMUX_CALL(api_.cuMemcpyDtoHAsync_v2(&word, end, 4, stream_));
      GPUMUX_CALL(api_.cuStreamSynchronize(stream_));
      if (word != live.mark) wrong("the mark of an allocation of " + std::to_string(live.bytes) + " bytes has changed");
    }
  }

  void release(std::size_t i) {
    Live& live = live_[i];
    verify(live);
    switch (live.way) {
      case Way::kPlain: GPUMUX_CALL(api_.cuMemFree_v2(live.data)); break;
      case Way::kInOrder: GPUMUX_CALL(api_.cuMemFreeAsync(live.data, stream_)); break;
      case Way::kMapped:
        GPUMUX_CALL(api_.cuMemUnmap(live.data, live.bytes));
        GPUMUX_CALL(api_.cuMemRelease(live.handle));
        GPUMUX_CALL(api_.cuMemAddressFree(live.data, live.bytes));
        break;
    }
    shared_.left += static_cast<std::int64_t>(in_granules(live.bytes));
    std::swap(live, live_.back());
    live_.pop_back();
  }

  Shared& shared_;
  const Api& api_;
  std::mt19937 random_;
  CUstream stream_ = nullptr;
  std::vector<Live> live_;
};

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"gpu", "0"},
                         {"seed", "1"},
                         {"threads", "3"},
                         {"allocations", "10000"},
                         {"kib", "131072"},
                         {"largest-kib", "4096"}});
  const Api api = open_driver(options.door());
  GPUMUX_CALL(api.cuInit(0));
  Shared shared{.api = api, .largest = options.number("largest-kib") * 1024};
  shared.left = static_cast<std::int64_t>(options.number("kib") * 1024);
  GPUMUX_CALL(api.cuDeviceGet(&shared.device, options.list("gpu").front()));
  GPUMUX_CALL(api.cuCtxCreate_v2(&shared.context, 0, shared.device));
  say("ready");
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < options.number("threads"); ++i) {
    threads.emplace_back([&shared, &options, i] {
      Allocator allocator(shared, static_cast<std::uint32_t>(options.number("seed") * 1000 + i));
      while (shared.made.load() < options.number("allocations") || !options.may_end()) allocator.step();
      allocator.finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  GPUMUX_CALL(api.cuCtxDestroy_v2(shared.context));
  say("done allocations=%llu refused=%llu", static_cast<unsigned long long>(shared.made.load()),
      static_cast<unsigned long long>(shared.refused.load()));
  return 0;
}
