// SPDX-License-Identifier: Apache-2.0
// Some of this machine's GPUs: one bit each. A value; iterates in ascending order of their indices.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/limits.h"

namespace gpumux::jobs {

class GpuSet {
 public:
  static constexpr std::size_t kWords = base::kMaxGpus / 64;

  constexpr GpuSet() = default;
  constexpr GpuSet(std::initializer_list<std::uint32_t> gpus) {
    for (const std::uint32_t gpu : gpus) insert(base::GpuIndex{gpu});
  }

  // An index beyond kMaxGpus is in no set, and inserting it changes nothing.
  constexpr bool contains(base::GpuIndex gpu) const {
    return gpu.value < base::kMaxGpus && (words_[gpu.value / 64] >> (gpu.value % 64) & 1) != 0;
  }
  constexpr void insert(base::GpuIndex gpu) {
    if (gpu.value < base::kMaxGpus) words_[gpu.value / 64] |= std::uint64_t{1} << (gpu.value % 64);
  }
  constexpr void erase(base::GpuIndex gpu) {
    if (gpu.value < base::kMaxGpus) words_[gpu.value / 64] &= ~(std::uint64_t{1} << (gpu.value % 64));
  }

  constexpr std::uint32_t size() const {
    int count = 0;
    for (const std::uint64_t word : words_) count += std::popcount(word);
    return static_cast<std::uint32_t>(count);
  }
  constexpr bool empty() const { return *this == GpuSet(); }
  constexpr bool is_subset_of(const GpuSet& other) const { return (*this & other) == *this; }

  constexpr auto operator<=>(const GpuSet&) const = default;
  friend constexpr GpuSet operator&(GpuSet a, const GpuSet& b) {
    for (std::size_t i = 0; i < kWords; ++i) a.words_[i] &= b.words_[i];
    return a;
  }
  friend constexpr GpuSet operator|(GpuSet a, const GpuSet& b) {
    for (std::size_t i = 0; i < kWords; ++i) a.words_[i] |= b.words_[i];
    return a;
  }

  class Iterator {
   public:
    constexpr Iterator(const GpuSet* set, std::uint32_t at) : set_(set), at_(at) { skip_unset(); }
    constexpr base::GpuIndex operator*() const { return base::GpuIndex{at_}; }
    constexpr Iterator& operator++() {
      ++at_;
      skip_unset();
      return *this;
    }
    constexpr bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    constexpr void skip_unset() {
      while (at_ < base::kMaxGpus) {
        const std::uint64_t rest = set_->words_[at_ / 64] >> (at_ % 64);
        if (rest != 0) {
          at_ += static_cast<std::uint32_t>(std::countr_zero(rest));
          return;
        }
        at_ = (at_ / 64 + 1) * 64;
      }
      at_ = base::kMaxGpus;
    }
    const GpuSet* set_;
    std::uint32_t at_;
  };
  constexpr Iterator begin() const { return Iterator(this, 0); }
  constexpr Iterator end() const { return Iterator(this, base::kMaxGpus); }

  // "0,2,3"; empty: "".
  std::string to_string() const {
    std::string text;
    for (const base::GpuIndex gpu : *this) text += (text.empty() ? "" : ",") + std::to_string(gpu.value);
    return text;
  }

 private:
  std::array<std::uint64_t, kWords> words_{};
};

}  // namespace gpumux::jobs
