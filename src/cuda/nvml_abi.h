// SPDX-License-Identifier: Apache-2.0
// The part of NVML's ABI that the daemon and the CLI use, and that the simulated libnvidia-ml.so.1 provides. Names and
// values are NVML's.
//
// As with the driver (abi.h) the build needs no vendor header, and abi_test compares with one where there is one.
// Symbols are the versioned ones.
#pragma once

#include <cstddef>

namespace gpumux::cuda {

enum nvmlReturn_t : unsigned int {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_RESET_REQUIRED = 16,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

enum nvmlComputeMode_t : unsigned int {
  NVML_COMPUTEMODE_DEFAULT = 0,
  NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1,
  NVML_COMPUTEMODE_PROHIBITED = 2,
  NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
};

using nvmlDevice_t = struct nvmlDevice_st*;

using nvmlDeviceArchitecture_t = unsigned int;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureKepler = 2;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureMaxwell = 3;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitecturePascal = 4;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureVolta = 5;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureTuring = 6;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureAmpere = 7;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureAda = 8;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureHopper = 9;
inline constexpr nvmlDeviceArchitecture_t kNvmlArchitectureBlackwell = 10;

// Sizes that are enough for the strings that NVML writes, with their terminating zero.
inline constexpr std::size_t kNvmlUuidBytes = 96;  // a MIG instance's is the longest
inline constexpr std::size_t kNvmlNameBytes = 96;
inline constexpr std::size_t kNvmlDriverVersionBytes = 80;

// The modes that nvmlDeviceGetMigMode gives.
inline constexpr unsigned int kNvmlMigDisabled = 0;
inline constexpr unsigned int kNvmlMigEnabled = 1;

// A process's memory, where the driver cannot tell it.
inline constexpr unsigned long long kNvmlValueNotAvailable = ~0ull;

struct nvmlPciInfo_t {
  char busIdLegacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pciDeviceId;
  unsigned int pciSubSystemId;
  char busId[32];
};

struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// As nvmlMemory_t, but `used` is without the driver's own reserved memory.
struct nvmlMemory_v2_t {
  unsigned int version;  // kNvmlMemoryVersion2, set by the caller
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};
inline constexpr unsigned int kNvmlMemoryVersion2 = sizeof(nvmlMemory_v2_t) | 2u << 24;

// The _v3 functions fill in this struct: processes by the id that they have in the caller's pid namespace, 0 or foreign
// ones otherwise.
struct nvmlProcessInfo_t {
  unsigned int pid;
  unsigned long long usedGpuMemory;
  unsigned int gpuInstanceId;      // all ones: none
  unsigned int computeInstanceId;  // all ones: none
};

struct nvmlUtilization_t {
  unsigned int gpu;     // percent of the last sample's time in which a kernel ran
  unsigned int memory;  // percent in which device memory was read or written
};

enum nvmlTemperatureSensors_t : unsigned int {
  NVML_TEMPERATURE_GPU = 0,
};

using nvmlEventSet_t = struct nvmlEventSet_st*;

// nvmlEventTypeXidCriticalError.
inline constexpr unsigned long long kNvmlEventXid = 8;

struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;  // the Xid
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
};

// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: which of nvmlDeviceGpuRecoveryAction_t the GPU needs now. R570 and newer.
inline constexpr unsigned int kNvmlFieldRecoveryAction = 230;

enum nvmlDeviceGpuRecoveryAction_t : unsigned int {
  NVML_GPU_RECOVERY_ACTION_NONE = 0,
  NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1,
  NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2,
  NVML_GPU_RECOVERY_ACTION_DRAIN_P2P = 3,
  NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4,
};

union nvmlValue_t {
  double dVal;
  unsigned int uiVal;
  unsigned long long ullVal;
};

struct nvmlFieldValue_t {
  unsigned int fieldId;
  unsigned int scopeId;
  long long timestamp;
  long long latencyUsec;
  unsigned int valueType;
  nvmlReturn_t nvmlReturn;
  nvmlValue_t value;
};

// Every function that we call: result, symbol, parameters.
#define GPUMUX_NVML_FUNCTIONS(X)                                                                                       \
  X(nvmlReturn_t, nvmlInit_v2, ())                                                                                     \
  X(nvmlReturn_t, nvmlShutdown, ())                                                                                    \
  X(const char*, nvmlErrorString, (nvmlReturn_t result))                                                               \
  X(nvmlReturn_t, nvmlSystemGetDriverVersion, (char* version, unsigned int length))                                    \
  X(nvmlReturn_t, nvmlSystemGetNVMLVersion, (char* version, unsigned int length))                                      \
  X(nvmlReturn_t, nvmlSystemGetCudaDriverVersion_v2, (int* version))                                                   \
  X(nvmlReturn_t, nvmlDeviceGetCount_v2, (unsigned int* count))                                                        \
  X(nvmlReturn_t, nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t* device))                           \
  X(nvmlReturn_t, nvmlDeviceGetHandleByUUID, (const char* uuid, nvmlDevice_t* device))                                 \
  X(nvmlReturn_t, nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int* index))                                      \
  X(nvmlReturn_t, nvmlDeviceGetName, (nvmlDevice_t device, char* name, unsigned int length))                           \
  X(nvmlReturn_t, nvmlDeviceGetUUID, (nvmlDevice_t device, char* uuid, unsigned int length))                           \
  X(nvmlReturn_t, nvmlDeviceGetMinorNumber, (nvmlDevice_t device, unsigned int* minor_number))                         \
  X(nvmlReturn_t, nvmlDeviceGetPciInfo_v3, (nvmlDevice_t device, nvmlPciInfo_t * pci))                                 \
  X(nvmlReturn_t, nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                               \
  X(nvmlReturn_t, nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t * memory))                         \
  X(nvmlReturn_t, nvmlDeviceGetComputeMode, (nvmlDevice_t device, nvmlComputeMode_t * mode))                           \
  X(nvmlReturn_t, nvmlDeviceGetArchitecture, (nvmlDevice_t device, nvmlDeviceArchitecture_t * architecture))           \
  X(nvmlReturn_t, nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t device, int* major, int* minor))                   \
  X(nvmlReturn_t, nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t * utilization))               \
  X(nvmlReturn_t, nvmlDeviceGetPowerUsage, (nvmlDevice_t device, unsigned int* milliwatts))                            \
  X(nvmlReturn_t, nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice_t device, unsigned int* milliwatts))                    \
  X(nvmlReturn_t, nvmlDeviceGetTemperature,                                                                            \
    (nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* celsius))                                     \
  X(nvmlReturn_t, nvmlDeviceGetComputeRunningProcesses_v3,                                                             \
    (nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* processes))                                          \
  X(nvmlReturn_t, nvmlDeviceGetGraphicsRunningProcesses_v3,                                                            \
    (nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* processes))                                          \
  X(nvmlReturn_t, nvmlDeviceGetMPSComputeRunningProcesses_v3,                                                          \
    (nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t* processes))                                          \
  X(nvmlReturn_t, nvmlDeviceGetMigMode, (nvmlDevice_t device, unsigned int* current_mode, unsigned int* pending_mode)) \
  X(nvmlReturn_t, nvmlDeviceGetMaxMigDeviceCount, (nvmlDevice_t device, unsigned int* count))                          \
  X(nvmlReturn_t, nvmlDeviceGetMigDeviceHandleByIndex,                                                                 \
    (nvmlDevice_t device, unsigned int index, nvmlDevice_t* mig_device))                                               \
  X(nvmlReturn_t, nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t mig_device, nvmlDevice_t * device))      \
  X(nvmlReturn_t, nvmlDeviceIsMigDeviceHandle, (nvmlDevice_t device, unsigned int* is_mig_device))                     \
  X(nvmlReturn_t, nvmlDeviceGetFieldValues, (nvmlDevice_t device, int count, nvmlFieldValue_t* values))                \
  X(nvmlReturn_t, nvmlEventSetCreate, (nvmlEventSet_t * set))                                                          \
  X(nvmlReturn_t, nvmlEventSetFree, (nvmlEventSet_t set))                                                              \
  X(nvmlReturn_t, nvmlDeviceRegisterEvents, (nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set))       \
  X(nvmlReturn_t, nvmlEventSetWait_v2, (nvmlEventSet_t set, nvmlEventData_t * data, unsigned int timeout_ms))

}  // namespace gpumux::cuda
