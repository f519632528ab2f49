// SPDX-License-Identifier: Apache-2.0
// Copies and fills, and their execution.
//
// Copies between host and device use the GPU's engine for their direction, whose bandwidth all transfers of all
// processes share. While both directions are busy each keeps `duplex_percent` of its bandwidth. Copies do not take part
// in time slicing; fills do, they are kernels. A frozen copy stops between two pieces of 1 MiB.
#pragma once

#include <cstdint>

#include "cuda/abi.h"
#include "sim/cuda/context.h"
#include "sim/cuda/worker.h"

namespace gpumux::sim {

// A block of bytes: `depth` slices of `height` rows of `width` bytes. A flat copy is one row.
struct Copy {
  std::uint64_t source = 0;
  std::uint64_t destination = 0;
  std::uint64_t source_pitch = 0;  // from row to row
  std::uint64_t destination_pitch = 0;
  std::uint64_t source_slice = 0;  // from slice to slice
  std::uint64_t destination_slice = 0;
  std::uint64_t width = 0;
  std::uint64_t height = 1;
  std::uint64_t depth = 1;

  std::uint64_t bytes() const { return width * height * depth; }
};
Copy flat_copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes);

// The driver resolves a copy's addresses when it is submitted: CUDA_ERROR_INVALID_VALUE if one is not mapped then.
cuda::CUresult check_copy(const AddressSpace& space, const Copy& copy);
cuda::CUresult run_copy(Worker& worker, Context& context, const Copy& copy);

// From the descriptors of the API. CUDA_ERROR_INVALID_VALUE for senseless copies, CUDA_ERROR_NOT_SUPPORTED for arrays.
cuda::CUresult copy_of(const cuda::CUDA_MEMCPY3D& described, Copy* copy);
cuda::CUresult copy_of(const cuda::CUDA_MEMCPY2D& described, Copy* copy);

struct Fill {
  std::uint64_t destination = 0;
  std::uint64_t pitch = 0;
  std::uint32_t value = 0;
  std::uint32_t element_bytes = 1;  // 1, 2 or 4
  std::uint64_t width = 0;          // elements
  std::uint64_t height = 1;
};
cuda::CUresult check_fill(const Fill& fill);
// A fill that begins where something is mapped and goes past its end is refused at once. One that begins nowhere fails
// when it runs.
cuda::CUresult check_fill_ends(const AddressSpace& space, const Fill& fill);
cuda::CUresult run_fill(Worker& worker, Context& context, const Fill& fill);

// Host memory that no context pinned or registered; the driver copies it by way of its own.
bool is_pageable(const AddressSpace& space, std::uint64_t address);

}  // namespace gpumux::sim
