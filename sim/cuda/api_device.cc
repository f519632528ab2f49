// SPDX-License-Identifier: Apache-2.0
// Entry points: initialisation, versions, errors, devices.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "cuda/entries.h"
#include "sim/cuda/api.h"
#include "sim/cuda/device_facts.h"

namespace gpumux::sim {

namespace {

std::atomic<std::uint64_t> unsupported_calls[cuda::kEntryCount];

cuda::CUresult copy_text(char* to, int length, const std::string& text) {
  if (to == nullptr || length <= 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  const std::size_t n = std::min(text.size(), static_cast<std::size_t>(length) - 1);
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
  return cuda::CUDA_SUCCESS;
}

}  // namespace

// Called by the weak defaults of entries that are not simulated (exports.gen.cc). The first call of each is reported,
// with GPUMUX_SIM_VERBOSE.
void unsupported(cuda::Entry entry) {
  if (unsupported_calls[static_cast<std::size_t>(entry)].fetch_add(1) != 0) return;
  static const bool tell = ::secure_getenv("GPUMUX_SIM_VERBOSE") != nullptr;
  if (tell) std::fprintf(stderr, "simulated CUDA driver: %s is not simulated\n", cuda::info_of(entry).symbol);
}

}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;  // the entry points below are one line each around what is in there

extern "C" {

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult scripted = scripted_fault("cuInit"); scripted != CUDA_SUCCESS) return scripted;
  return Process::initialise();
}

CUresult cuDriverGetVersion(int* driver_version) {
  if (driver_version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *driver_version = kCudaVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** str) {
  if (str == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* text = error_text(error);
  *str = text == nullptr ? nullptr : text->name;
  return text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** str) {
  if (str == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* text = error_text(error);
  *str = text == nullptr ? nullptr : text->text;
  return text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  return driver_call("cuDeviceGetCount", [&](Process& process) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = process.device_count();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return device_call("cuDeviceGet", ordinal, [&](Device&) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int len, CUdevice device) {
  return device_call("cuDeviceGetName", device,
                     [&](Device&) { return copy_text(name, len, Process::get()->machine().settings().name); });
}

static CUresult device_uuid(const char* entry, CUuuid* uuid, CUdevice device) {
  return device_call(entry, device, [&](Device& found) {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const base::GpuUuid bytes = Process::get()->machine().uuid(found.gpu);
    std::memcpy(uuid->bytes, bytes.bytes.data(), sizeof uuid->bytes);
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return device_uuid("cuDeviceGetUuid", uuid, device); }
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return device_uuid("cuDeviceGetUuid_v2", uuid, device); }

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  return device_call("cuDeviceTotalMem_v2", device, [&](Device&) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = Process::get()->machine().settings().usable_bytes();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  return device_call("cuDeviceTotalMem", device, [&](Device&) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes =
        static_cast<unsigned>(std::min<std::uint64_t>(Process::get()->machine().settings().usable_bytes(), UINT32_MAX));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* pci_bus_id, int len, CUdevice device) {
  return device_call("cuDeviceGetPCIBusId", device,
                     [&](Device& found) { return copy_text(pci_bus_id, len, pci_bus_id_of(found.gpu)); });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* pci_bus_id) {
  return driver_call("cuDeviceGetByPCIBusId", [&](Process& process) {
    if (device == nullptr || pci_bus_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (int ordinal = 0; ordinal < process.device_count(); ++ordinal) {
      if (!same_pci_bus_id(process.device(ordinal)->gpu, pci_bus_id)) continue;
      *device = ordinal;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return device_call("cuDeviceGetAttribute", device, [&](Device& found) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return device_attribute(found.gpu, attribute, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return device_call("cuDeviceComputeCapability", device, [&](Device& found) {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    device_attribute(found.gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major);
    device_attribute(found.gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
  return device_call("cuDeviceGetProperties", device, [&](Device&) {
    if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *properties = CUdevprop{
        1024, {1024, 1024, 64}, {2147483647, 65535, 65535}, 48 * 1024, 64 * 1024, 32, 2147483647, 65536, 1'500'000,
        512};
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can_access_peer, CUdevice device, CUdevice peer_dev) {
  return device_call("cuDeviceCanAccessPeer", device, [&](Device&) {
    Process& process = *Process::get();
    if (process.device(peer_dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (can_access_peer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *can_access_peer = device != peer_dev && process.machine().settings().peers != 0 ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source_device,
                                 CUdevice destination_device) {
  return device_call("cuDeviceGetP2PAttribute", source_device, [&](Device&) {
    Process& process = *Process::get();
    if (process.device(destination_device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (value == nullptr || source_device == destination_device) return CUDA_ERROR_INVALID_VALUE;
    const bool peers = process.machine().settings().peers != 0;
    *value = peers && attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

// There is nothing to profile; a program that asks for it goes on.
CUresult cuProfilerStart() {
  return driver_call("cuProfilerStart", [](Process&) { return CUDA_SUCCESS; });
}
CUresult cuProfilerStop() {
  return driver_call("cuProfilerStop", [](Process&) { return CUDA_SUCCESS; });
}

}  // extern "C"
}  // namespace gpumux::cuda
