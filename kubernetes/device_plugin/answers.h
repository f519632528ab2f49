// SPDX-License-Identifier: Apache-2.0
// The device plugin's words, from what it knows of the node's GPUs: shares.h in the kubelet's messages.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kubernetes/cdi/injection.h"
#include "kubernetes/kubelet_api/device_plugin.pb.h"
#include "kubernetes/shares/shares.h"

namespace gpumux::kubernetes {

struct SharedGpu {
  std::string id;  // "GPU-..." or "MIG-..."
  bool is_healthy = true;
  std::optional<std::int64_t> numa_node;  // none: the system does not say

  friend bool operator==(const SharedGpu&, const SharedGpu&) = default;
};

// Each GPU as `shares_per_gpu` devices. A share of a sick GPU stays in the list. The kubelet keeps new pods from it,
// and knows it again when the GPU has recovered. REQUIRES: 0 < shares_per_gpu <= kMaxSharesPerGpu.
v1beta1::ListAndWatchResponse device_list(const std::vector<SharedGpu>& gpus, std::uint32_t shares_per_gpu);

// One answer for each container of the request. Errors as preferred_shares().
base::Result<v1beta1::PreferredAllocationResponse> preferred_allocation(
    const v1beta1::PreferredAllocationRequest& request, Placement placement, const Seats& seats);

// How the driver and the device nodes of its GPUs come into a container.
enum class DriverSource {
  kCdi,        // NVIDIA's toolkit has written a specification of its devices, nvidia.com/gpu=UUID
  kVariable,   // NVIDIA's container runtime reads NVIDIA_VISIBLE_DEVICES
  kSimulated,  // the injection has the simulated driver
  kNone,       // neither was found
};

// A container's GPUs, each with its number of shares, in the order in which they were asked for.
using ContainerGpus = std::vector<std::pair<std::string, std::uint32_t>>;

// The answer for a container with these GPUs. kUnavailable: there is no way to give it the driver (kNone); the message
// is for the pod's author. kInvalid: the injection cannot be used, or sets a variable that names the GPUs.
//
// By CDI: `device` is device_name() of a specification that is there already.
base::Result<v1beta1::ContainerAllocateResponse> given_by_cdi(const ContainerGpus& gpus, const std::string& device,
                                                              DriverSource source);
// For runtimes without CDI.
base::Result<v1beta1::ContainerAllocateResponse> given_by_environment(const ContainerGpus& gpus,
                                                                      const Injection& injection, DriverSource source);

}  // namespace gpumux::kubernetes
