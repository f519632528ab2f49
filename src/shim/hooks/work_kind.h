// SPDX-License-Identifier: Apache-2.0
// Submissions of one kind are likely to take the same time (gate/work_times.h). They have the same kernel and number of
// threads, the same size of copy, or the same graph. Addresses, streams and kernels' parameters do not count, and sizes
// only roughly. So a sequence that grows by a word each time keeps its kind.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "cuda/abi.h"
#include "cuda/entries.gen.h"
#include "gate/work_times.h"

namespace gpumux::shim {

class WorkKindOf {
 public:
  explicit WorkKindOf(cuda::Entry entry) : what_(static_cast<std::uint64_t>(entry)) {}

  WorkKindOf& with(cuda::CUfunction function) { return what(function); }
  WorkKindOf& with(cuda::CUgraphExec graph) { return what(graph); }
  WorkKindOf& with(unsigned int count) { return times(count); }
  WorkKindOf& with(std::size_t bytes) { return times(bytes); }
  WorkKindOf& with(const cuda::CUlaunchConfig* config) {
    if (config == nullptr) return *this;
    times(config->gridDimX).times(config->gridDimY).times(config->gridDimZ);
    return times(config->blockDimX).times(config->blockDimY).times(config->blockDimZ).times(config->sharedMemBytes);
  }
  WorkKindOf& with(const cuda::CUDA_MEMCPY2D* copy) {
    return copy == nullptr ? *this : times(copy->WidthInBytes).times(copy->Height);
  }
  WorkKindOf& with(const cuda::CUDA_MEMCPY3D* copy) {
    return copy == nullptr ? *this : times(copy->WidthInBytes).times(copy->Height).times(copy->Depth);
  }
  template <class Other>
  WorkKindOf& with(const Other&) {
    return *this;
  }

  gate::WorkKind kind() const {
    // Sign, exponent and two bits of the mantissa: by quarters of an octave.
    constexpr int kLeftOut = 50;
    return what_ * kFactor ^ std::bit_cast<std::uint64_t>(size_) >> kLeftOut;
  }

 private:
  static constexpr std::uint64_t kFactor = 0xD6E8'FEB8'6659'FD93;  // odd, half of its bits set

  WorkKindOf& what(const void* handle) {
    what_ = what_ * kFactor + reinterpret_cast<std::uintptr_t>(handle);
    return *this;
  }
  WorkKindOf& times(std::size_t count) {
    size_ *= static_cast<double>(std::max<std::size_t>(count, 1));
    return *this;
  }

  std::uint64_t what_;
  double size_ = 1;
};

// Of a driver's call with these arguments.
template <class... Parameters>
inline gate::WorkKind work_kind(cuda::Entry entry, const Parameters&... arguments) {
  WorkKindOf work(entry);
  (work.with(arguments), ...);
  return work.kind();
}

}  // namespace gpumux::shim
