// SPDX-License-Identifier: Apache-2.0
// Goal: every address has the value that was last said of it, and pieces end where something else is said. Method: at
// random, compared with an array that is written to address by address. GPUMUX_TEST_SEED repeats a run.
#include "base/interval_map.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace gpumux::base {
namespace {

constexpr std::uint64_t kAddresses = 64;

TEST(IntervalMap, SaysOfEachAddressWhatWasLastSaidOfIt) {
  const char* const chosen = std::getenv("GPUMUX_TEST_SEED");
  const unsigned seed =
      chosen != nullptr ? static_cast<unsigned>(std::strtoul(chosen, nullptr, 10)) : std::random_device()();
  std::printf("seed: GPUMUX_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  const auto pick = [&random](std::uint64_t below) { return random() % below; };
  IntervalMap<int> map;
  std::array<int, kAddresses> plain{};  // 0: nothing is said
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t begin = pick(kAddresses);
    const std::uint64_t end = begin + pick(kAddresses - begin + 1);
    const int value = pick(3) == 0 ? 0 : static_cast<int>(1 + pick(5));
    if (value == 0) {
      map.erase(begin, end);
    } else {
      map.set(begin, end, value);
    }
    for (std::uint64_t i = begin; i < end; ++i) plain[i] = value;
    for (std::uint64_t i = 0; i < kAddresses; ++i) {
      const auto piece = map.find(i);
      ASSERT_EQ(piece ? piece->value : 0, plain[i]) << "address " << i << " after step " << step;
      if (piece) {
        ASSERT_LE(piece->begin, i);
        for (std::uint64_t other = piece->begin; other < piece->end; ++other) ASSERT_EQ(plain[other], plain[i]);
      }
      const std::uint64_t next = map.next_begin(i, kAddresses);
      const std::uint64_t from = piece ? piece->end : i + 1;
      for (std::uint64_t other = from; other < next; ++other) ASSERT_EQ(plain[other], 0) << "between two pieces";
    }
  }
}

}  // namespace
}  // namespace gpumux::base
