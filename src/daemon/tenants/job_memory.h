// SPDX-License-Identifier: Apache-2.0
// The most memory that the programs of each job have had allocated on one GPU at once. The job needs to ask for that
// much.
//
// Owned by the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "base/ids.h"

namespace gpumux::daemon {

class JobMemory {
 public:
  // One of the job's programs has `now` bytes on the GPU; before, it had `before`.
  void change(std::uint64_t job, base::GpuIndex gpu, std::uint64_t before, std::uint64_t now) {
    Use& use = uses_[{job, gpu}];
    use.now = use.now - before + now;
    use.peak = std::max(use.peak, use.now);
  }

  // The peaks that have grown since the last call, by job: the highest of its GPUs.
  std::map<std::uint64_t, std::uint64_t> take() {
    std::map<std::uint64_t, std::uint64_t> peaks;
    for (auto& [key, use] : uses_) {
      if (use.peak > use.taken) peaks[key.first] = std::max(peaks[key.first], use.peak);
      use.taken = use.peak;
    }
    std::erase_if(uses_, [](const auto& one) { return one.second.now == 0; });
    return peaks;
  }

 private:
  struct Use {
    std::uint64_t now = 0;
    std::uint64_t peak = 0;
    std::uint64_t taken = 0;
  };
  std::map<std::pair<std::uint64_t, base::GpuIndex>, Use> uses_;
};

}  // namespace gpumux::daemon
