// SPDX-License-Identifier: Apache-2.0
// The ResourceSlices that tell the scheduler of a node's GPUs: one pool a node, one device a GPU. A device can be
// allocated several times. Its capacities `memory` and `cores` bound that.
//
// A pool has as few slices as hold its devices. The scheduler uses the pool once it has seen all slices of the newest
// generation.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::kubernetes {

inline constexpr char kDraDriver[] = "gpumux.io";
// Devices of one slice: the API's limit if a device has taints. Any GPU may get sick, so this limit always holds.
inline constexpr std::size_t kMostDevices = 64;
// Cores are hundredths of a GPU's time.
inline constexpr std::uint64_t kAllCores = 100;

struct DraGpu {
  std::string id;  // "GPU-..." or "MIG-...": the driver's
  std::string product;
  std::string pci_bus_id;      // "0000:01:00.0"; empty: unknown
  std::string pcie_root;       // "pci0000:00"; empty: unknown
  std::string driver_version;  // "580.159.04"; empty: unknown
  std::string cuda_version;    // "13.0"; empty: unknown
  std::uint64_t memory_bytes = 0;
  std::string sick;                  // why no new work belongs on it; empty: it is healthy
  std::string architecture{};        // "Hopper"; empty: unknown
  std::string compute_capability{};  // "9.0"; empty: unknown

  friend bool operator==(const DraGpu&, const DraGpu&) = default;
};

struct SliceSettings {
  std::string node;
  std::uint32_t memory_percent = 100;  // of the physical memory that claims may have together
  std::uint32_t shares = 10;           // a claim that names no capacity gets one part of as many
};

// "gpu-...": the device's name in the slice, a DNS label.
std::string device_name_of(const std::string& gpu_id);

// The devices as `version` of resource.k8s.io has them ("v1", "v1beta2", "v1beta1"). kInvalid: a GPU has no name for a
// device, or its memory is not known.
base::Result<nlohmann::json> slice_devices(const std::vector<DraGpu>& gpus, const SliceSettings& settings,
                                           const std::string& version);

// The slices, at least one: "NODE-gpumux.io", "NODE-gpumux.io-2", ... `generation`: of the pool; the highest one
// counts. `node_uid`: of the Node that owns them, so that they go with it; empty: no owner.
std::vector<nlohmann::json> resource_slices(const nlohmann::json& devices, const SliceSettings& settings,
                                            const std::string& version, std::int64_t generation,
                                            const std::string& node_uid);

}  // namespace gpumux::kubernetes
