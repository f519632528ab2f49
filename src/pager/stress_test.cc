// SPDX-License-Identifier: Apache-2.0
// Goal: a program reads what it wrote, after any of its own actions between and during switches, and any refusals of
// the driver. Method: random allocations, writes, kernels, pins and frees, and memory that is mapped by hand. Evictions
// and restorations of all or some, given up in the middle or not. Every call that the pager makes fails by chance.
// Every live allocation is compared with a copy. A run is told by its seed: GPUMUX_STRESS_SEED, GPUMUX_STRESS_ROUNDS.
#include <thread>

#include "pager/pager_test_support.h"

#ifdef __SANITIZE_THREAD__
// A program that is let in writes GPU memory while the pager copies it, as on a real GPU. The pager then discards the
// copy; that is what this test compares.
extern "C" const char* __tsan_default_suppressions() { return "race:gpumux::sim::run_copy"; }
#endif

namespace gpumux::pager {
namespace {

using namespace cuda;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class StressTest : public PagerTest {
 protected:
  struct Live {
    CUdeviceptr address;
    std::vector<std::uint32_t> words;
    std::vector<std::uint32_t> earlier = {};  // its content before that
    int pins = 0;
    std::uint64_t handle = 0;  // mapped by hand
    CUdeviceptr other = 0;     // mapped a second time, to be read

    std::uint64_t bytes() const { return words.size() * 4; }
  };

  // Copies are few of all calls.
  void set_failures(std::uint32_t per_million, std::uint32_t per_million_copies) {
    for (const auto& [name, fault] : the_faults()) {
      fault->per_million = name.starts_with("cuMemcpy") ? per_million_copies : per_million;
      fault->code = name == "cuMemCreate" ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN;
    }
  }
  static std::uint64_t copies_begun() { return the_faults()["cuMemcpyDtoHAsync_v2"]->calls.load(); }
  std::uint64_t pick(std::uint64_t below) { return random_() % below; }

  void allocate(Placement placement) {
    if (live_.size() >= 14) return;
    if (pick(3) == 0) return create(placement);
    const std::uint64_t bytes = 4 * (1 + pick(pick(2) == 0 ? 20'000 : 3 * kMebibyte / 2));
    CUdeviceptr address = 0;
    if (pager().allocate(context_, bytes, placement, &address) != CUDA_SUCCESS) return;
    live_.push_back({.address = address, .words = {}});
    live_.back().words.resize(bytes / 4);
    if (placement == Placement::kResident) write_to(live_.back());
  }
  // Until it does not fail by chance: the program is told, and nothing has changed.
  template <class Call>
  static void insist(Call call) {
    for (int i = 0; i < 50; ++i) {
      const CUresult result = call();
      if (result == CUDA_SUCCESS) return;
      ASSERT_EQ(result, CUDA_ERROR_UNKNOWN);
    }
    FAIL() << "it fails again and again";
  }
  CUdeviceptr map(std::uint64_t handle, std::uint64_t bytes, CUmemAccess_flags flags) {
    CUdeviceptr address = 0;
    EXPECT_CUDA(simulated_driver().cuMemAddressReserve(&address, bytes, 0, 0, 0));
    const CUmemAccessDesc right{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
    insist([&] { return pager().map_handle(handle, address); });
    insist([&] { return pager().set_access(address, &right, 1); });
    return address;
  }
  void unmap(CUdeviceptr address, std::uint64_t bytes) {
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
    insist([&] { return pager().unmap_handle(address); });
    // If a part could not be unmapped yet, the addresses stay reserved.
    simulated_driver().cuMemAddressFree(address, bytes);
  }
  void create(Placement placement) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    if (pick(3) == 0) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const std::uint64_t bytes = kBlockBytes * (1 + pick(5));
    std::uint64_t handle = 0;
    if (pager().create_handle(bytes, properties, placement, &handle) != CUDA_SUCCESS) return;
    live_.push_back({.address = map(handle, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), .words = {}, .handle = handle});
    live_.back().words.resize(bytes / 4);
    if (placement == Placement::kResident && pager().evicted_bytes() == 0) write_to(live_.back());
  }
  // Elsewhere, or at a second place, or no longer there.
  void move(Live& live) {
    if (live.other != 0) {
      unmap(live.other, live.bytes());
      live.other = 0;
    } else if (pick(2) == 0) {
      live.other = map(live.handle, live.bytes(), CU_MEM_ACCESS_FLAGS_PROT_READ);
    } else {
      unmap(live.address, live.bytes());
      live.address = map(live.handle, live.bytes(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
  // One word in each block, random words, or what it held before: a copy of that may still be in host memory.
  void write_to(Live& live) {
    const std::vector<std::uint32_t> before = live.words;
    const std::uint64_t what = pick(6);
    if (what == 0) {
      constexpr std::size_t kWords = kBlockBytes / 4;
      for (std::size_t first = 0; first < live.words.size(); first += kWords) {
        const auto begin = live.words.begin() + static_cast<std::ptrdiff_t>(first);
        const auto count = static_cast<std::ptrdiff_t>(std::min(kWords, live.words.size() - first));
        std::fill(begin, begin + count, static_cast<std::uint32_t>(pick(3)));
      }
    } else if (what < 4 && !live.earlier.empty()) {
      live.words = live.earlier;
    } else {
      live.words = random_words(live.words.size() * 4, random_());
    }
    live.earlier = before;
    write(live.address, live.words);
  }
  void touch(Live& live) {
    const std::uint64_t first = pick(live.words.size());
    const std::uint64_t count = 1 + pick(std::min<std::uint64_t>(live.words.size() - first, 5000));
    ASSERT_CUDA(increment(nullptr, live.address + 4 * first, count));
    for (std::uint64_t i = first; i < first + count; ++i) ++live.words[i];
  }
  void verify_all() {
    for (const Live& live : live_) {
      ASSERT_EQ(read(live.address, live.words.size()), live.words);
      if (live.other != 0) {
        ASSERT_EQ(read(live.other, live.words.size()), live.words);
      }
    }
  }
  // Memory that must not leave is there all the time.
  void verify_pinned() {
    for (const Live& live : live_) {
      if (live.pins == 0) continue;
      ASSERT_EQ(read(live.address, live.words.size()), live.words);
    }
  }
  void free_one() {
    if (live_.empty()) return;
    const std::size_t i = pick(live_.size());
    if (live_[i].handle != 0) {
      if (live_[i].other != 0) unmap(live_[i].other, live_[i].bytes());
      unmap(live_[i].address, live_[i].bytes());
      ASSERT_CUDA(pager().release_handle(live_[i].handle));
    } else {
      ASSERT_CUDA(release(live_[i].address));
    }
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void run_some() {
    for (std::uint64_t i = pick(6); i > 0; --i) {
      const std::uint64_t what = pick(11);
      if (what < 4) allocate(Placement::kResident);
      if (what == 4) free_one();
      if (live_.empty()) continue;
      Live& live = live_[pick(live_.size())];
      if (what == 5 && pager().pin(live.address, PinReason::kRegistered) == CUDA_SUCCESS) ++live.pins;
      if (what == 6 && live.pins > 0 && pager().unpin(live.address, PinReason::kRegistered) == CUDA_SUCCESS)
        --live.pins;
      if (what == 7) write_to(live);
      if (what == 8 || what == 9) touch(live);
      if (what == 10 && live.handle != 0) move(live);
    }
  }
  // The seat is let in again, and its program runs at once if all of its memory is there. No other thread may run.
  void let_in() {
    seat_.drained = false;
    if (pager().evicted_bytes() != 0) return;
    for (Live& live : live_) {
      if (pick(2) == 0) write_to(live);
    }
  }
  void switch_out() {
    ASSERT_CUDA(simulated_driver().cuCtxSynchronize());
    CUresult error = CUDA_SUCCESS;
    const auto job = pager().begin_eviction(seat_, pick(2) == 0 ? UINT64_MAX : pick(40 * kMebibyte), &error);
    if (job == nullptr) return;
    enum { kGoesOn, kIsCancelled, kIsLetIn } const what = std::array{kGoesOn, kGoesOn, kIsCancelled, kIsLetIn}[pick(4)];
    const std::uint64_t copies = copies_begun() + pick(6);       // how many before that
    const std::uint64_t frees = what == kIsLetIn ? 0 : pick(3);  // before the other thread picks
    std::thread other([&] {
      simulated_driver().cuCtxSetCurrent(context_);
      for (std::uint64_t i = 0; i < frees; ++i) {
        free_one();
        pager().counters();
        allocate(Placement::kEvicted);
        if (!live_.empty() && live_.back().handle != 0) move(live_.back());
        if (!live_.empty()) pager().find(live_.back().address);
      }
      finished_ = true;
    });
    for (bool goes_on = what == kGoesOn; !is_over(job->step());) {
      if (!goes_on && copies_begun() >= copies) {
        what == kIsLetIn ? let_in() : job->cancel();
        goes_on = true;
      }
      sim::sleep_until(sim::now() + base::Duration(30'000));
    }
    other.join();
    EXPECT_EQ(job->wrong_hashes(), 0u);
    seat_.drained = true;
  }
  void switch_in() {
    const std::uint64_t patience = 1000;
    CUresult last = CUDA_SUCCESS;
    for (std::uint64_t attempt = 0; attempt < patience && pager().evicted_bytes() != 0; ++attempt) {
      CUresult error = CUDA_SUCCESS;
      std::uint64_t room = pick(2) == 0 ? pager().bounds().used() : Bounds::kNone;
      pager().bounds().set(room, Bounds::kNone);
      const auto job = pager().begin_restoration(&error);
      if (job == nullptr) continue;
      for (JobState state = job->step(); !is_over(state); state = job->step()) {
        if (state == JobState::kStarved && room != Bounds::kNone)
          pager().bounds().set(room += 4 * kMebibyte, Bounds::kNone);
        if (state != JobState::kRunning) sim::sleep_until(sim::now() + base::Duration(30'000));
      }
      last = job->error();
    }
    pager().bounds().set(Bounds::kNone, Bounds::kNone);
    ASSERT_EQ(pager().evicted_bytes(), 0u) << "last error " << last;
  }

  std::mt19937_64 random_;
  std::vector<Live> live_;
  bool finished_ = false;
};

TEST_F(StressTest, WhatIsReadIsWhatWasWritten) {
  const std::uint64_t first_seed = from_environment("GPUMUX_STRESS_SEED", 1);
  const std::uint64_t rounds = from_environment("GPUMUX_STRESS_ROUNDS", 25);
  for (std::uint64_t seed = first_seed; seed < first_seed + 2; ++seed) {
    SCOPED_TRACE("GPUMUX_STRESS_SEED=" + std::to_string(seed));
    random_.seed(seed);
    sim::the_chance = seed;
    verifies_ = seed % 2 == 0;
    mover_fails_ = true;
    pager_.reset();
    connection_.reset();
    mover_.reset();
    for (std::uint64_t round = 0; round < rounds; ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      if (round % 4 == 1) set_failures(8000, 8000);
      if (round % 4 == 3) set_failures(0, 300'000);
      run_some();
      // Again, as long as the last one was given up before anything had gone.
      do switch_out();
      while (pager().evicted_bytes() == 0 && pick(8) != 0);
      ASSERT_STREQ(pager().check(), nullptr);
      verify_pinned();
      switch_in();
      ASSERT_STREQ(pager().check(), nullptr);
      set_failures(0, 0);
      // Memory that was allocated without a lease has no content yet.
      for (Live& live : live_) {
        if (std::all_of(live.words.begin(), live.words.end(), [](auto word) { return word == 0; })) write_to(live);
      }
      verify_all();
      if (HasFatalFailure()) return;
    }
    live_.clear();
    pager().trim(UINT64_MAX);
    pager_.reset();
  }
}

}  // namespace
}  // namespace gpumux::pager
