// SPDX-License-Identifier: Apache-2.0
// Goal: as pools_test.cc. Method: a random program of several threads does everything in any order, with failures. One
// thread acts inside the calls of another, where that one holds no lock. GPUMUX_TEST_SEED repeats a run.
#include <array>
#include <cstdlib>
#include <random>

#include "shim/memory/pools_test_support.h"

namespace gpumux::shim {
namespace {

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
  // The last streams are default streams of threads: they have one handle, and each thread means its own by it.
  static bool is_a_threads(unsigned i) { return i >= kStreams - 2; }
  CUstream handle(unsigned i) const {
    return reinterpret_cast<CUstream>(is_a_threads(i) ? std::uintptr_t{2} : std::uintptr_t{0x10000} + 0x100 * i);
  }
  CUcontext context_of(unsigned i) const { return i % 4 == 3 ? kOther : kContext; }
  StreamName named(unsigned i) const { return {context_of(i), handle(i), is_a_threads(i) ? i : 0}; }
  void open(unsigned i) {
    gpu_.open(handle(i), context_of(i));
    opened_[i] = gpu_.by_handle.at(handle(i));
  }
  // From here on the thread that uses this stream acts.
  std::size_t enter(unsigned i) { return gpu_.by_handle[handle(i)] = opened_[i]; }

  void step() {
    const unsigned i = pick(kStreams);
    switch (pick(16)) {
      case 0:
      case 1:
      case 2:
      case 3: return allocate_one(i);
      case 4:
      case 5: return free_one(i);
      case 6:
        for (unsigned more = pick(8); more != 0; --more) free_one(i);
        return;
      case 7:
      case 8:
      case 9: ++gpu_.streams[enter(i)].submitted; return;
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
    const std::size_t stream = enter(i);
    if (pick(10) == 0) pages_.refuse_next = true;
    const int waits = gpu_.calls["cuStreamWaitEvent"];
    const CUresult result = pools_.allocate(pool, named(i), bytes, Placement::kResident, &address);
    pages_.refuse_next = false;
    seen_.depended += gpu_.calls["cuStreamWaitEvent"] - waits;
    seen_.refused += result == CUDA_ERROR_OUT_OF_MEMORY ? 1 : 0;
    if (result != CUDA_SUCCESS) {
      EXPECT_TRUE(result == CUDA_ERROR_OUT_OF_MEMORY || result == Pools::kBeyondLimit || result == CUDA_ERROR_UNKNOWN);
      return;
    }
    const auto segment = std::prev(pages_.segments.upper_bound(address));
    EXPECT_LE(address + bytes, segment->first + segment->second.bytes) << "beyond its segment";
    EXPECT_EQ(segment->second.context, context_of(i));
    for (const auto& [base, live] : live_) EXPECT_FALSE(overlap(address, bytes, base, live.bytes));
    std::map<CUdeviceptr, std::uint64_t> own;
    for (const Freed& freed : freed_) {
      if (!overlap(address, bytes, freed.address, freed.bytes)) continue;
      if (freed.stream == stream) {
        if (gpu_.streams[stream].done < freed.at) own[freed.address] = freed.bytes;
        continue;
      }
      const Gpu::Stream& its = gpu_.streams[stream];
      const auto behind = its.behind.find(freed.stream);
      const bool ordered = behind != its.behind.end() && behind->second >= freed.at;
      EXPECT_TRUE(ordered || gpu_.streams[freed.stream].done >= freed.at)
          << "stream " << stream << " got memory that stream " << freed.stream << " may still use";
    }
    seen_.reused += own.empty() ? 0 : 1;
    seen_.merged += own.size() > 1 && own.begin()->first + own.begin()->second <= own.rbegin()->first ? 1 : 0;
    live_[address] = {bytes, stream, gpu_.streams[stream].submitted, gpu_.streams[stream].behind};
  }

  void free_one(unsigned i) {
    if (live_.empty()) return;
    const auto chosen = std::next(live_.begin(), pick(static_cast<unsigned>(live_.size())));
    if (chosen->first == being_freed_) return;
    const std::size_t stream = enter(i);
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
    const std::uint64_t at = gpu_.streams[stream].submitted;
    if (being_freed_ == 0 && pick(4) == 0)
      (pick(2) == 0 ? gpu_.before_recording : gpu_.after_recording) = [this, i] {
        for (unsigned steps = 1 + pick(3); steps != 0; --steps) act_meanwhile(pick(3) == 0 ? pick(kStreams) : i);
        enter(i);
      };
    being_freed_ = being_freed_ == 0 ? chosen->first : being_freed_;
    const CUresult result = pools_.free(chosen->first, named(i));
    if (being_freed_ == chosen->first) {
      being_freed_ = 0;
      gpu_.before_recording = gpu_.after_recording = nullptr;  // nothing was recorded
    }
    if (result != CUDA_SUCCESS) return;
    freed_.push_back({chosen->first, chosen->second.bytes, stream, at});
    live_.erase(chosen);
    std::erase_if(freed_, [this](const Freed& old) { return gpu_.streams[old.stream].done >= old.at; });
  }

  // While another thread frees.
  void act_meanwhile(unsigned i) {
    ++seen_.meanwhile;
    switch (pick(4)) {
      case 0: return allocate_one(i);
      case 1: return free_one(i);
      case 2:
        if (pick(4) == 0) pools_.release(pick(64) * kMebibyte);
        return;
      default: ++gpu_.streams[enter(i)].submitted; return;
    }
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
        if (is_a_threads(i)) return;
        pools_.stream_gone(handle(i));
        return open(i);
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
    for (unsigned i = 3; i < kStreams; i += 4) open(i);
  }

  static bool overlap(CUdeviceptr a, std::uint64_t a_bytes, CUdeviceptr b, std::uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
  }

  static void TearDownTestSuite() {
    std::printf("reused at once %d, of several frees %d, behind another stream %d; refused %d; meanwhile %d\n",
                seen_.reused, seen_.merged, seen_.depended, seen_.refused, seen_.meanwhile);
    for (const int count : {seen_.reused, seen_.merged, seen_.depended, seen_.refused, seen_.meanwhile})
      EXPECT_GT(count, 0);
  }

  static constexpr unsigned kStreams = 7;
  // Counts over all programs.
  struct Seen {
    int reused, merged, depended, refused, meanwhile;
  };
  static inline Seen seen_{};
  std::mt19937_64 random_;
  std::array<std::size_t, kStreams> opened_{};  // the newest stream of each number
  CUdeviceptr being_freed_ = 0;                 // by a thread in whose call another thread acts
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
  for (unsigned i = 0; i < kStreams; ++i) open(i);
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
    gpu_.order(enter(0), live.stream, live.at, live.behind);
    EXPECT_EQ(pools_.free(live_.begin()->first, named(0)), CUDA_SUCCESS);
    live_.erase(live_.begin());
  }
  gpu_.run_all();
  pools_.release(UINT64_MAX);
  EXPECT_FALSE(pools_.has_pending());
  EXPECT_EQ(pages_.used, 0u) << "memory was lost";
  EXPECT_EQ(pools_.reserved_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPrograms, ::testing::Range(0u, 12u));

}  // namespace
}  // namespace gpumux::shim
