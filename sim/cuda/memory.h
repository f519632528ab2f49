// SPDX-License-Identifier: Apache-2.0
// Allocations that belong to a context: plain device memory, managed memory, pinned host memory, imported memory.
#pragma once

#include <cstdint>

#include "cuda/abi.h"
#include "sim/cuda/context.h"

namespace gpumux::sim {

// Device memory, at a new address. CUDA_ERROR_OUT_OF_MEMORY when the GPU is full.
cuda::CUresult allocate_device(Context& context, std::uint64_t bytes, std::uint64_t* address);
// Memory that host and devices reach at the same address. Charged to no GPU.
cuda::CUresult allocate_managed(Context& context, std::uint64_t bytes, std::uint64_t* address);
cuda::CUresult allocate_host(Context& context, std::uint64_t bytes, unsigned flags, void** address);
cuda::CUresult register_host(Context& context, void* address, std::uint64_t bytes, unsigned flags);
cuda::CUresult unregister_host(Process& process, void* address);
// Maps another process's memory.
cuda::CUresult map_imported(Context& context, std::shared_ptr<PhysicalMemory> memory, std::uint64_t allocation_bytes,
                            std::uint64_t* address);

// Gives back any of these, at once; the caller has waited for all work that may use it. False: no such allocation.
bool free_allocation(Process& process, std::uint64_t address);

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t step);

}  // namespace gpumux::sim
