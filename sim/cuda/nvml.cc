// SPDX-License-Identifier: Apache-2.0
// The simulated NVML: the same machine as the simulated driver's, seen from outside. It joins nothing and holds
// nothing, so a daemon may keep it open for ever; CUDA_VISIBLE_DEVICES does not concern it.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "base/ids.h"
#include "sim/cuda/device_facts.h"
#include "sim/cuda/machine.h"

#pragma GCC visibility push(default)
#include "cuda/nvml_prototypes.h"
#pragma GCC visibility pop

namespace gpumux::sim {
namespace {

using cuda::nvmlReturn_t;

std::atomic<Machine*> the_machine{nullptr};
std::atomic<unsigned> initialised{0};

// A device's handle is its index + 1: never null, never an address.
cuda::nvmlDevice_t handle(std::uint32_t gpu) { return reinterpret_cast<cuda::nvmlDevice_t>(std::uintptr_t{gpu} + 1); }

template <class Body>
nvmlReturn_t machine_call(Body body) {
  Machine* machine = the_machine.load();
  if (machine == nullptr || initialised.load() == 0) return cuda::NVML_ERROR_UNINITIALIZED;
  return body(*machine);
}

// body(Machine&, gpu)
template <class Body>
nvmlReturn_t device_call(cuda::nvmlDevice_t device, const void* out, Body body) {
  return machine_call([&](Machine& machine) {
    const std::uint64_t gpu = reinterpret_cast<std::uintptr_t>(device) - 1;
    if (gpu >= machine.settings().gpus || out == nullptr) return cuda::NVML_ERROR_INVALID_ARGUMENT;
    return static_cast<nvmlReturn_t>(body(machine, static_cast<std::uint32_t>(gpu)));
  });
}

nvmlReturn_t put_text(const std::string& text, char* to, unsigned length) {
  if (to == nullptr) return cuda::NVML_ERROR_INVALID_ARGUMENT;
  if (text.size() >= length) return cuda::NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return cuda::NVML_SUCCESS;
}

// NVML's way with lists: the caller says how many fit and hears how many there are.
nvmlReturn_t put_processes(const std::vector<ProcessView>& found, unsigned* count, cuda::nvmlProcessInfo_t* processes) {
  const auto room = *count;
  *count = static_cast<unsigned>(found.size());
  if (found.size() > room || (processes == nullptr && !found.empty())) return cuda::NVML_ERROR_INSUFFICIENT_SIZE;
  for (std::size_t i = 0; i < found.size(); ++i) {
    constexpr unsigned kNone = 0xffffffff;
    processes[i] = {static_cast<unsigned>(found[i].pid), found[i].used, kNone, kNone};
  }
  return cuda::NVML_SUCCESS;
}

constexpr unsigned kIdleMilliwatts = 70'000;
constexpr unsigned kMostMilliwatts = 700'000;
constexpr unsigned kIdleCelsius = 30;
constexpr unsigned kMostCelsius = 75;

struct Text {
  nvmlReturn_t code;
  const char* text;
};
constexpr Text kTexts[] = {
    {cuda::NVML_SUCCESS, "Success"},
    {cuda::NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {cuda::NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {cuda::NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {cuda::NVML_ERROR_NOT_FOUND, "Not Found"},
    {cuda::NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {cuda::NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {cuda::NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
};

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

// Looked up, never called (cuda::kSimulatedNvmlSymbol).
[[gnu::visibility("default")]] void gpumux_sim_is_simulated() {}

nvmlReturn_t nvmlInit_v2() {
  const auto machine = Machine::get();
  if (!machine) {
    std::fprintf(stderr, "simulated NVML: %s\n", machine.error().message().c_str());
    return NVML_ERROR_DRIVER_NOT_LOADED;
  }
  the_machine.store(*machine);
  initialised.fetch_add(1);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown() {
  unsigned count = initialised.load();
  while (count != 0 && !initialised.compare_exchange_weak(count, count - 1)) {
  }
  return count == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t result) {
  for (const Text& text : kTexts) {
    if (text.code == result) return text.text;
  }
  return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return machine_call([&](Machine&) { return put_text(kDriverVersion, version, length); });
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  return machine_call([&](Machine&) { return put_text("13.580.159.04", version, length); });
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  return machine_call([&](Machine& machine) {
    if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *count = machine.settings().gpus;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return machine_call([&](Machine& machine) {
    if (device == nullptr || index >= machine.settings().gpus) return NVML_ERROR_INVALID_ARGUMENT;
    *device = handle(index);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return machine_call([&](Machine& machine) {
    if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    for (std::uint32_t gpu = 0; gpu < machine.settings().gpus; ++gpu) {
      if (machine.uuid(gpu).to_string() != uuid) continue;
      *device = handle(gpu);
      return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
  });
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  return sim::device_call(device, index, [&](Machine&, std::uint32_t gpu) {
    *index = gpu;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor_number) {
  return nvmlDeviceGetIndex(device, minor_number);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  return sim::device_call(
      device, name, [&](Machine& machine, std::uint32_t) { return put_text(machine.settings().name, name, length); });
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  return sim::device_call(device, uuid, [&](Machine& machine, std::uint32_t gpu) {
    return put_text(machine.uuid(gpu).to_string(), uuid, length);
  });
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return sim::device_call(device, pci, [&](Machine&, std::uint32_t gpu) {
    *pci = nvmlPciInfo_t{};
    pci->bus = pci_bus_of(gpu);
    std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02x:00.0", pci->bus & 0xff);
    std::snprintf(pci->busId, sizeof pci->busId, "00000000:%02x:00.0", pci->bus & 0xff);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  return sim::device_call(device, memory, [&](Machine& machine, std::uint32_t gpu) {
    const MemoryInfo info = machine.memory(gpu);
    *memory = {info.total + info.reserved, info.total - info.used, info.used + info.reserved};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  return sim::device_call(device, memory, [&](Machine& machine, std::uint32_t gpu) {
    if (memory->version != kNvmlMemoryVersion2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const MemoryInfo info = machine.memory(gpu);
    *memory = {kNvmlMemoryVersion2, info.total + info.reserved, info.reserved, info.total - info.used, info.used};
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return sim::device_call(device, mode, [&](Machine&, std::uint32_t) {
    *mode = NVML_COMPUTEMODE_DEFAULT;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* architecture) {
  return sim::device_call(device, architecture, [&](Machine&, std::uint32_t) {
    *architecture = kNvmlArchitectureHopper;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  return sim::device_call(device, major, [&](Machine&, std::uint32_t gpu) {
    if (minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    device_attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major);
    device_attribute(gpu, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  return sim::device_call(device, utilization, [&](Machine& machine, std::uint32_t gpu) {
    // Memory is in use whenever a kernel runs: nothing finer is modelled.
    const std::uint32_t percent = machine.utilization(gpu);
    *utilization = {percent, percent};
    return NVML_SUCCESS;
  });
}

// Between an idle and a busy H100's, by utilization.
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts) {
  return sim::device_call(device, milliwatts, [&](Machine& machine, std::uint32_t gpu) {
    *milliwatts = kIdleMilliwatts + (kMostMilliwatts - kIdleMilliwatts) / 100 * machine.utilization(gpu);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* milliwatts) {
  return sim::device_call(device, milliwatts, [&](Machine&, std::uint32_t) {
    *milliwatts = kMostMilliwatts;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* celsius) {
  return sim::device_call(device, celsius, [&](Machine& machine, std::uint32_t gpu) {
    if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = kIdleCelsius + (kMostCelsius - kIdleCelsius) * machine.utilization(gpu) / 100;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* processes) {
  return sim::device_call(device, count, [&](Machine& machine, std::uint32_t gpu) {
    return put_processes(machine.processes(gpu), count, processes);
  });
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_t* processes) {
  return sim::device_call(device, count, [&](Machine&, std::uint32_t) { return put_processes({}, count, processes); });
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_t* processes) {
  return sim::device_call(device, count, [&](Machine& machine, std::uint32_t gpu) {
    std::vector<ProcessView> clients = machine.processes(gpu);
    std::erase_if(clients, [](const ProcessView& process) { return !process.is_client; });
    return put_processes(clients, count, processes);
  });
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* current_mode, unsigned int* pending_mode) {
  return sim::device_call(device, current_mode, [&](Machine&, std::uint32_t) {
    if (pending_mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    *current_mode = kNvmlMigDisabled;
    *pending_mode = kNvmlMigDisabled;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  return sim::device_call(device, count, [&](Machine&, std::uint32_t) {
    *count = 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int, nvmlDevice_t* mig_device) {
  return sim::device_call(device, mig_device, [](Machine&, std::uint32_t) { return NVML_ERROR_NOT_FOUND; });
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device, nvmlDevice_t* device) {
  return sim::device_call(mig_device, device, [](Machine&, std::uint32_t) { return NVML_ERROR_INVALID_ARGUMENT; });
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is_mig_device) {
  return sim::device_call(device, is_mig_device, [&](Machine&, std::uint32_t) {
    *is_mig_device = 0;
    return NVML_SUCCESS;
  });
}

// The action that a GPU needs is in the file recovery-N of the machine's directory; without a file it is none.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  return sim::device_call(device, values, [&](Machine& machine, std::uint32_t gpu) {
    for (int i = 0; i < count; ++i) {
      values[i].nvmlReturn = values[i].fieldId == kNvmlFieldRecoveryAction ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
      values[i].value.uiVal = NVML_GPU_RECOVERY_ACTION_NONE;
      std::ifstream(machine.directory() + "/recovery-" + std::to_string(gpu)) >> values[i].value.uiVal;
    }
    return NVML_SUCCESS;
  });
}

// Its GPUs report no Xids.
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t*) { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t) { return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t) {
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t*, unsigned int) { return NVML_ERROR_NOT_SUPPORTED; }

}  // extern "C"
}  // namespace gpumux::cuda
