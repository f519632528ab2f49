// SPDX-License-Identifier: Apache-2.0
// The objects that the driver makes in the kernel module (resource_manager.h): for each process a client, for each GPU
// a device and a subdevice, and for each context groups of channels.
//
// As with the real driver on an H200, a context's first group is for kernels, and three more are for copies. All copies
// of a context stand still when the channels of all three are disabled.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cuda/freezer.h"

namespace gpumux::sim {

class Process;

// A context's groups of channels. A context has none, and works all the same, if `ioctl` does not lead to the module.
class Channels {
 public:
  Channels() = default;
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // The freezers must outlive the channels. Keeps errno.
  void make(Process& process, std::uint32_t gpu, Freezer& kernels, Freezer& copies);
  // The groups with their channels go. Nothing to do the second time. Keeps errno.
  void free();

 private:
  std::uint32_t device_ = 0;
  std::vector<std::uint32_t> groups_;  // handles, below the device's
};

}  // namespace gpumux::sim
