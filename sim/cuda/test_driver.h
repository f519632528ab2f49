// SPDX-License-Identifier: Apache-2.0
// For tests of code that calls the driver: the simulated driver as a table of entries, linked into this program, and
// taps on entries. A tap counts the calls of its entry and makes calls fail. It also lets a test act at the moment when
// the driver has answered and the caller does not have the answer yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda/driver.h"

namespace gpumux::sim {

void* address_of(cuda::Entry entry);

inline const cuda::Driver& simulated_driver() {
  static const cuda::Driver driver = [] {
    const auto find = [](void*, const char* symbol) -> void* {
      for (std::size_t i = 0; i < cuda::kEntryCount; ++i) {
        if (std::strcmp(cuda::kEntries[i].symbol, symbol) == 0) return address_of(static_cast<cuda::Entry>(i));
      }
      return nullptr;
    };
    cuda::Driver made;
    cuda::load_driver(made, find, nullptr);
    return made;
  }();
  return driver;
}

// There is one for each entry in a test program, whichever tables have it.
struct Tap {
  std::atomic<std::uint64_t> calls{0};
  std::atomic<std::uint64_t> fail_at{0};                       // this call, counted from 1; 0: none
  std::atomic<std::uint32_t> per_million{0};                   // of all calls, by chance
  std::atomic<cuda::CUresult> code{cuda::CUDA_ERROR_UNKNOWN};  // of calls that fail, of which the driver hears nothing
  std::atomic<std::uint64_t> failed{0};
  // Is given the driver's answer and returns the caller's. Set while no thread calls the entry.
  std::function<cuda::CUresult(cuda::CUresult)> answered;

  void fail_all(cuda::CUresult with) {
    code = with;
    per_million = kMillion;
  }
  void clear() {
    calls = 0;
    fail_at = 0;
    per_million = 0;
    failed = 0;
    code = cuda::CUDA_ERROR_UNKNOWN;
    if (answered) answered = nullptr;
  }
  bool strikes();

  static constexpr std::uint32_t kMillion = 1'000'000;
};

inline std::atomic<std::uint64_t> the_chance{1};  // seed of the failures that come by chance

inline bool Tap::strikes() {
  const std::uint64_t call = calls.fetch_add(1) + 1;
  bool hit = call == fail_at.load();
  if (const std::uint32_t chance = per_million.load(); !hit && chance != 0) {
    std::uint64_t x = the_chance.fetch_add(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    hit = (x >> 20) % kMillion < chance;
  }
  if (hit) failed.fetch_add(1);
  return hit;
}

template <auto Member, class Function>
struct Tapped;
template <auto Member, class... Arguments>
struct Tapped<Member, cuda::CUresult (*)(Arguments...)> {
  static inline Tap tap;
  static cuda::CUresult call(Arguments... arguments) {
    if (tap.strikes()) return tap.code.load();
    const cuda::CUresult result = (simulated_driver().*Member)(arguments...);
    return tap.answered ? tap.answered(result) : result;
  }
};

// Puts the tap of an entry (&cuda::Driver::cuMemMap, say) into a table.
template <auto Member>
Tap& tap(cuda::Driver& driver) {
  using Entry = Tapped<Member, std::remove_reference_t<decltype(driver.*Member)>>;
  driver.*Member = &Entry::call;
  return Entry::tap;
}

}  // namespace gpumux::sim
