// SPDX-License-Identifier: Apache-2.0
#include "sched/foreign_use.h"

#include <algorithm>

namespace gpumux::sched {
namespace {

// Less is noise, and would only make bounds change.
constexpr std::uint64_t kGrain = std::uint64_t{16} << 20;
// What a program's context comes to with its libraries' kernels loaded: 0.5 to 0.7 GB (H200, CUDA 13.0, PyTorch). On a
// small or simulated GPU in proportion.
constexpr std::uint64_t kMaxContextBytes = std::uint64_t{768} << 20;
constexpr std::uint64_t kContextDivisor = 64;

}  // namespace

bool ForeignUse::look(std::uint64_t beyond, bool is_quiet, std::uint64_t managed) {
  if (!is_quiet) {
    // The first look of all may be at a moment when tenants allocate: then the second one counts, as far as they agree.
    if (!has_looked_) last_ = beyond;
    has_looked_ = true;
    return false;
  }
  std::uint64_t agreed = has_looked_ ? std::min(beyond, std::max(last_, bytes_)) : beyond;
  if (managed > 0) agreed = std::min(agreed, std::max(bytes_, beyond - std::min(beyond, managed)));
  last_ = beyond;
  has_looked_ = true;
  const std::uint64_t change = agreed > bytes_ ? agreed - bytes_ : bytes_ - agreed;
  if (change < kGrain) return false;
  bytes_ = agreed;
  return true;
}

std::uint64_t expected_contexts(std::uint64_t capacity, std::size_t seats) {
  return seats * std::min(kMaxContextBytes, capacity / kContextDivisor);
}

}  // namespace gpumux::sched
