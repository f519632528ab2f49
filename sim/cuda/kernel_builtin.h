// SPDX-License-Identifier: Apache-2.0
// The kernels that the simulated GPU can run. An image names them; kernels.cu has the same in CUDA, for real GPUs.
//
//   gpumux_fill(u32* dst, u64 count, u32 value)              dst[i] = value
//   gpumux_saxpy(float* y, const float* x, float a, u64 n)   y[i] = a * x[i] + y[i]
//   gpumux_checksum(const u32* src, u64 count, u64* out)     *out = sum of src[i] * (2 i + 1), modulo 2^64
//   gpumux_spin(u64 nanoseconds)                             runs for that much time of its own
//   gpumux_increment(u32* data, u64 count)                   data[i] += 1
//   gpumux_rendezvous(u32* own_flag, volatile u32* peer_flag, u32 round)
//                                                            sets *own_flag = round, then runs until *peer_flag >=
//                                                            round
//   gpumux_hash_blocks(const u64* blocks, u64 count, result* out, u64 seed0, u64 seed1)
//                                                            the pager's hash of 2 MiB blocks; its source is
//                                                            src/mover/copier/block_hash.cu, and this is another
//                                                            one of the same function
//
// They compute on real bytes in pieces. Each piece is checked and done under the address space's lock, then paid for
// with time. Between pieces a kernel yields the GPU when its slice is over or it is frozen, and dies when its memory is
// gone or its context broken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cuda/abi.h"
#include "sim/cuda/context.h"
#include "sim/cuda/worker.h"

namespace gpumux::sim {

inline constexpr std::size_t kMaxParameters = 5;
inline constexpr std::size_t kMaxParameterBytes = 40;

struct BuiltinKernel {
  const char* name;
  std::size_t parameters;
  std::array<std::uint8_t, kMaxParameters> sizes;    // of each, in bytes
  std::array<std::uint8_t, kMaxParameters> offsets;  // in the parameter buffer
  cuda::CUresult (*run)(Worker& worker, Context& context, const std::byte* parameters);
};

// Null: no such kernel.
const BuiltinKernel* find_builtin(std::string_view name);

}  // namespace gpumux::sim
