// SPDX-License-Identifier: Apache-2.0
// Whether GPUs are healthy, as NVML says.
//
// The driver's own judgement counts if it gives one. R570 and newer name the action that a GPU needs to recover, and
// say that it needs none when it has recovered. An older driver reports errors (Xids) only. There a GPU with an Xid
// that is not a program's own fault is sick until the daemon starts again.
//
// A MIG instance is as healthy as its GPU. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cuda/nvml.h"

namespace gpumux::daemon {

// Xids by which a program ends itself, and no other: the GPU goes on. From NVIDIA's table of Xids:
//   13 graphics engine exception, 31 memory page fault, 43 the program's channel was stopped, 45 clean-up after an
//   earlier error, 68 video processor exception, 109 time-out of a context switch.
bool is_of_a_program(std::uint64_t xid);

class NvmlHealth {
 public:
  explicit NvmlHealth(const cuda::Nvml& nvml) : nvml_(nvml) {}
  ~NvmlHealth();
  NvmlHealth(const NvmlHealth&) = delete;
  NvmlHealth& operator=(const NvmlHealth&) = delete;

  // A whole GPU. A second time does nothing.
  void watch(cuda::nvmlDevice_t gpu);
  // Takes in what has happened since the last time.
  void look();
  // Why the GPU is sick, for people; empty: it is healthy.
  std::string why_sick(cuda::nvmlDevice_t gpu) const;

 private:
  const cuda::Nvml& nvml_;
  cuda::nvmlEventSet_t events_ = nullptr;
  std::map<cuda::nvmlDevice_t, std::uint64_t> last_xid_;  // of those watched; 0: none that counts
};

}  // namespace gpumux::daemon
