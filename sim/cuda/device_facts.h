// SPDX-License-Identifier: Apache-2.0
// A simulated GPU's properties. Numbers that nothing here depends on are those of a mid-size GPU of compute capability
// 9.0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/abi.h"

namespace gpumux::sim {

inline constexpr int kCudaVersion = 13000;
inline constexpr char kDriverVersion[] = "580.159.04 (simulated)";

// False: there is no such attribute.
bool device_attribute(std::uint32_t gpu, cuda::CUdevice_attribute attribute, int* value);

// "0000:01:00.0": each simulated GPU sits on a bus of its own.
std::string pci_bus_id_of(std::uint32_t gpu);
// Accepts any of the forms "domain:bus:device.function", "domain:bus:device", "bus:device.function".
bool same_pci_bus_id(std::uint32_t gpu, std::string_view text);
inline unsigned pci_bus_of(std::uint32_t gpu) { return gpu + 1; }

}  // namespace gpumux::sim
