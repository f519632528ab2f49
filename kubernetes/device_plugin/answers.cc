// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/answers.h"

namespace gpumux::kubernetes {
namespace {

constexpr char kHealthy[] = "Healthy";
constexpr char kUnhealthy[] = "Unhealthy";
constexpr char kNvidiaDevice[] = "nvidia.com/gpu=";

std::string listed(const ContainerGpus& gpus) {
  std::string list;
  for (const auto& [gpu, shares] : gpus) list += (list.empty() ? "" : ",") + gpu;
  return list;
}

base::Status set_variable(v1beta1::ContainerAllocateResponse& given, const std::string& name,
                          const std::string& value) {
  if ((*given.mutable_envs()).insert({name, value}).second) return {};
  return base::fail(base::Code::kInvalid, "the injection sets " + name + ", by which the container's GPUs are named");
}

base::Status give_driver(v1beta1::ContainerAllocateResponse& given, const ContainerGpus& gpus, DriverSource source) {
  switch (source) {
    case DriverSource::kCdi:
      for (const auto& [gpu, shares] : gpus) given.add_cdi_devices()->set_name(kNvidiaDevice + gpu);
      return {};
    case DriverSource::kVariable: return set_variable(given, "NVIDIA_VISIBLE_DEVICES", listed(gpus));
    case DriverSource::kSimulated: return set_variable(given, "CUDA_VISIBLE_DEVICES", listed(gpus));
    case DriverSource::kNone: break;
  }
  return base::fail(
      base::Code::kUnavailable,
      "this node cannot give NVIDIA's driver to a container: neither a CDI specification of "
      "nvidia.com/gpu nor NVIDIA's container runtime was found; install NVIDIA's container toolkit on it");
}

}  // namespace

v1beta1::ListAndWatchResponse device_list(const std::vector<SharedGpu>& gpus, std::uint32_t shares_per_gpu) {
  v1beta1::ListAndWatchResponse list;
  for (const SharedGpu& gpu : gpus) {
    for (std::uint32_t number = 0; number < shares_per_gpu; ++number) {
      v1beta1::Device& device = *list.add_devices();
      device.set_id(share_id({gpu.id, number}));
      device.set_health(gpu.is_healthy ? kHealthy : kUnhealthy);
      if (gpu.numa_node) device.mutable_topology()->add_nodes()->set_id(*gpu.numa_node);
    }
  }
  return list;
}

base::Result<v1beta1::PreferredAllocationResponse> preferred_allocation(
    const v1beta1::PreferredAllocationRequest& request, Placement placement, const Seats& seats) {
  v1beta1::PreferredAllocationResponse answer;
  for (const auto& container : request.container_requests()) {
    if (container.allocation_size() < 0)
      return base::fail(base::Code::kInvalid, "a container asks for fewer than no shares");
    const auto ids =
        preferred_shares({{container.available_deviceids().begin(), container.available_deviceids().end()},
                          {container.must_include_deviceids().begin(), container.must_include_deviceids().end()},
                          static_cast<std::size_t>(container.allocation_size())},
                         placement, seats);
    if (!ids) return tl::unexpected(ids.error());
    auto& chosen = *answer.add_container_responses();
    for (const std::string& id : *ids) chosen.add_deviceids(id);
  }
  return answer;
}

base::Result<v1beta1::ContainerAllocateResponse> given_by_cdi(const ContainerGpus& gpus, const std::string& device,
                                                              DriverSource source) {
  v1beta1::ContainerAllocateResponse given;
  GPUMUX_TRY(give_driver(given, gpus, source));
  given.add_cdi_devices()->set_name(device);
  return given;
}

base::Result<v1beta1::ContainerAllocateResponse> given_by_environment(const ContainerGpus& gpus,
                                                                      const Injection& injection, DriverSource source) {
  const auto plain = environment_only(injection);
  if (!plain) return tl::unexpected(plain.error());
  v1beta1::ContainerAllocateResponse given;
  for (const Variable& variable : plain->variables) (*given.mutable_envs())[variable.name] = variable.value;
  for (const Mount& mount : plain->mounts) {
    v1beta1::Mount& made = *given.add_mounts();
    made.set_host_path(mount.host_path);
    made.set_container_path(mount.container_path);
    made.set_read_only(mount.access != Access::kWrite);
  }
  GPUMUX_TRY(give_driver(given, gpus, source));
  return given;
}

}  // namespace gpumux::kubernetes
