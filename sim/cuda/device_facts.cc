// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/device_facts.h"

#include <cinttypes>
#include <cstdio>

namespace gpumux::sim {
namespace {

struct Fact {
  cuda::CUdevice_attribute attribute;
  int value;
};

// Attributes that are not listed are 0: there are no textures, surfaces or arrays.
constexpr Fact kFacts[] = {
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 * 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {cuda::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1'500'000},
    {cuda::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {cuda::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {cuda::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_TCC_DRIVER, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1'500'000},
    {cuda::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 128},
    {cuda::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {cuda::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {cuda::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {cuda::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 * 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {cuda::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {cuda::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 * 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {cuda::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {cuda::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 1},
    {cuda::CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {cuda::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
};

}  // namespace

bool device_attribute(std::uint32_t gpu, cuda::CUdevice_attribute attribute, int* value) {
  if (attribute == 0 || attribute > cuda::CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED) return false;
  *value = 0;
  if (attribute == cuda::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = static_cast<int>(pci_bus_of(gpu));
  for (const Fact& fact : kFacts) {
    if (fact.attribute == attribute) *value = fact.value;
  }
  return true;
}

std::string pci_bus_id_of(std::uint32_t gpu) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02x:00.0", pci_bus_of(gpu));
  return text;
}

bool same_pci_bus_id(std::uint32_t gpu, std::string_view text) {
  const std::string copy(text);
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  unsigned function = 0;
  if (std::sscanf(copy.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3) {
    domain = 0;
    if (std::sscanf(copy.c_str(), "%x:%x.%x", &bus, &device, &function) < 2) return false;
  }
  return domain == 0 && bus == pci_bus_of(gpu) && device == 0 && function == 0;
}

}  // namespace gpumux::sim
