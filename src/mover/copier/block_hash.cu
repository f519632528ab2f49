// SPDX-License-Identifier: Apache-2.0
// The hash of 2 MiB blocks on the GPU; what it computes and how strong it is stands in block_hash_function.h.
// tools/gen_block_hash.py makes block_hash.gen.h from it.
//
// One thread block hashes one block of memory at a time, reading it once, coalesced, past the caches that it would only
// empty. It needs no memory of its own: the keys are made from the seed into shared memory (a thousandth of the work),
// the list of addresses and the results lie in pinned host memory. That matters: it runs when the GPU is full.
#include "block_hash_function.h"

using gpumux::mover::BlockHashResult;
using gpumux::mover::HashLong;
using gpumux::mover::HashWord;
using gpumux::mover::kHashKeyQuads;
using gpumux::mover::kHashLanes;
using gpumux::mover::kHashSteps;
using gpumux::mover::kHashThreads;

static __device__ HashLong sum_of_warp(HashLong value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = gpumux::mover::hash_add(value, __shfl_down_sync(0xffffffffu, value, distance));
  return value;
}

// Launch it with kHashThreads threads and any number of thread blocks.
extern "C" __global__ void __launch_bounds__(kHashThreads)
    gpumux_hash_blocks(const HashLong* blocks, HashLong count, BlockHashResult* results, HashLong seed_low,
                       HashLong seed_high) {
  __shared__ uint4 keys[kHashKeyQuads];
  __shared__ HashLong partial[2][kHashThreads / 32];
  const unsigned thread = threadIdx.x;
  for (unsigned i = thread; i < kHashKeyQuads; i += kHashThreads) {
    const HashLong first = gpumux::mover::hash_key(seed_low, seed_high, 2 * i);
    const HashLong second = gpumux::mover::hash_key(seed_low, seed_high, 2 * i + 1);
    keys[i] = make_uint4(static_cast<HashWord>(first), static_cast<HashWord>(first >> 32),
                         static_cast<HashWord>(second), static_cast<HashWord>(second >> 32));
  }
  __syncthreads();
  for (HashLong block = blockIdx.x; block < count; block += gridDim.x) {
    const uint4* quads = reinterpret_cast<const uint4*>(blocks[block]);
    const HashWord first_word = quads[0].x;
    HashLong sums[kHashLanes] = {};
    HashWord different = 0;
    uint4 window[kHashLanes];  // the keys of this step; they move on by one quad each step
#pragma unroll
    for (unsigned lane = 0; lane + 1 < kHashLanes; ++lane) window[lane] = keys[lane];
#pragma unroll 8
    for (unsigned step = 0; step < kHashSteps; ++step) {
      window[kHashLanes - 1] = keys[step + kHashLanes - 1];
      const uint4 m = __ldcs(quads + step * kHashThreads + thread);
      different |= (m.x ^ first_word) | (m.y ^ first_word) | (m.z ^ first_word) | (m.w ^ first_word);
#pragma unroll
      for (unsigned lane = 0; lane < kHashLanes; ++lane) {
        const uint4 k = window[lane];
        sums[lane] += gpumux::mover::hash_quad(m.x, m.y, m.z, m.w, k.x, k.y, k.z, k.w);
      }
#pragma unroll
      for (unsigned lane = 0; lane + 1 < kHashLanes; ++lane) window[lane] = window[lane + 1];
    }
    for (unsigned which = 0; which < 2; ++which) {
      const HashLong sum = sum_of_warp(gpumux::mover::hash_second_level(sums, thread, which, seed_low, seed_high));
      if (thread % 32 == 0) partial[which][thread / 32] = sum;
    }
    const int constant = __syncthreads_and(different == 0);
    if (thread == 0) {
      HashLong total[2] = {};
      for (unsigned which = 0; which < 2; ++which)
        for (unsigned warp = 0; warp < kHashThreads / 32; ++warp)
          total[which] = gpumux::mover::hash_add(total[which], partial[which][warp]);
      BlockHashResult result = {};
      gpumux::mover::hash_finish(total[0], total[1], &result.low, &result.high);
      result.first_word = first_word;
      result.is_constant = constant != 0 ? 1u : 0u;
      results[block] = result;
    }
    __syncthreads();  // before `partial` is written again
  }
}
