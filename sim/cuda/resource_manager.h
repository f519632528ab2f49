// SPDX-License-Identifier: Apache-2.0
// Plays the kernel module behind libcuda: it keeps the process's objects, and freezes channels
// (cuda/resource_manager_abi.h).
//
// libcuda reaches it by `ioctl` of a descriptor of the machine's state file, which stands for the module's device file.
// In libcuda.so.1 the library's import `ioctl` leads here. In a program that links the driver's objects the import is
// the program's own, and a test points it here (test_resource_manager.h); otherwise a context has no channels.
#pragma once

#include <cstdint>

#include "cuda/resource_manager_abi.h"
#include "sim/cuda/freezer.h"

namespace gpumux::sim {

// The client of which all other objects are made.
inline constexpr std::uint32_t NV01_ROOT_CLIENT = 0x41;

// pAllocParms points to these, for a device and for a group of channels.
struct DeviceParameters {
  std::uint32_t gpu;  // in the machine
};
// The group's work stands still while all channels of all groups with this freezer are disabled. The freezer must
// outlive the group.
struct GroupParameters {
  cuda::NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS described;
  Freezer* freezer;
};

// Has the signature of `ioctl`, as far as the module's calls need it. Returns 0 for each call that the module knows;
// the call's structure has the status then. Other requests: -1 and EINVAL. Descriptors of other files are passed to the
// system. So is everything before cuInit and in a forked child.
//
// The module serialises its calls. A call that disables channels returns when their work stands still, and after
// `freeze_cost`; one that enables them lets the work go on after `thaw_cost`.
int resource_manager_ioctl(int fd, unsigned long request, void* argument);

}  // namespace gpumux::sim
