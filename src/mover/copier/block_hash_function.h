// SPDX-License-Identifier: Apache-2.0
// The hash of a 2 MiB block, as a function. block_hash.cu computes it on the GPU, block_hash_test.cc on the CPU.
//
// The problem: a block whose content is what it was when it was restored need not be copied out again. A wrong "equal"
// loses a program's data without a trace, so it must never happen in the life of all machines together. And hashing
// must run at the speed of the GPU's memory, or it is no gain.
//
// The idea: a keyed hash whose collision probability can be proved for every pair of blocks, however alike or
// structured. A hash that merely looks random has no such proof. The 128-bit seed is drawn once per process, and
// nothing that the program computes depends on it. Two levels:
//
//   1. NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, 1999). Thread t of 256 takes every 256th quad (16 bytes):
//      quad j*256 + t for j = 0..511, words m0..m3, and sums, for four lanes L,
//          (m0 + k[4(j+L)]) * (m1 + k[4(j+L)+1])  +  (m2 + k[4(j+L)+2]) * (m3 + k[4(j+L)+3])     modulo 2^64,
//      the inner sums modulo 2^32. For one lane and two different messages, at most 2^-32 of all keys give the same
//      sum. The lanes use the same keys moved on by four words. So in lane L the last differing quad uses keys that no
//      earlier lane has used with a differing quad. The lanes count as independent: 2^-128. Four multiplications per
//      lane and 16 bytes cost a third of the arithmetic that an H100 has time for while the 16 bytes arrive.
//   2. The 256 * 4 sums, as 2048 words x[i], are multiplied by random keys and added in the field of p = 2^61 - 1:
//          h[o] = sum of key[o][i] * x[i]   modulo p,   o = 0, 1.
//      Two different inputs collide with probability 1/p in each: 2^-122. Each i has its own keys: positions count.
//
// Together under 2^-121 for each comparison. A machine that switches 80 GB each second compares 2^31 blocks a day: one
// wrong answer in 2^90 days. One assumption goes beyond arithmetic: the keys, which are made from the seed by a 64-bit
// mixing function, behave as random ones do. The 122 bits are then spread over 128 by a bijection, so that every word
// of the block reaches every bit of the result.
//
// "Constant" is no matter of hashing: every word is compared with the first.
#pragma once

#ifdef __CUDACC__
#define GPUMUX_ON_BOTH __host__ __device__ __forceinline__
#else
#define GPUMUX_ON_BOTH inline
#endif

namespace gpumux::mover {

// The kernel's view of the types: CUDA's compiler is run without any C++ library.
using HashWord = unsigned int;
using HashLong = unsigned long long;

inline constexpr unsigned kHashThreads = 256;  // per block of memory, and per CUDA thread block
inline constexpr unsigned kHashSteps = 512;    // quads that each thread takes: 256 * 512 * 16 bytes are 2 MiB
inline constexpr unsigned kHashLanes = 4;
inline constexpr unsigned kHashKeyQuads = kHashSteps + kHashLanes - 1;
inline constexpr HashLong kHashPrime = (1ull << 61) - 1;
// Where the second level's keys begin in the sequence of keys; the first level's are far below.
inline constexpr HashLong kHashSecondLevel = 1ull << 20;

// One block's result, as the kernel writes it.
struct BlockHashResult {
  HashLong low;
  HashLong high;
  HashWord first_word;
  HashWord is_constant;  // 1: every word equals the first
  HashLong zero;         // pads to 32 bytes, so that a result is written in one transaction
};

// A 64-bit bijection with good avalanche (the finaliser of splitmix64).
GPUMUX_ON_BOTH HashLong hash_mix(HashLong x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Number `index` of the sequence of keys that a seed stands for.
GPUMUX_ON_BOTH HashLong hash_key(HashLong seed_low, HashLong seed_high, HashLong index) {
  return hash_mix(hash_mix(seed_low + (index + 1) * 0x9e3779b97f4a7c15ull) ^ seed_high);
}

// One lane's contribution of one quad.
GPUMUX_ON_BOTH HashLong hash_quad(HashWord m0, HashWord m1, HashWord m2, HashWord m3, HashWord k0, HashWord k1,
                                  HashWord k2, HashWord k3) {
  return static_cast<HashLong>(m0 + k0) * (m1 + k1) + static_cast<HashLong>(m2 + k2) * (m3 + k3);
}

GPUMUX_ON_BOTH HashLong hash_add(HashLong a, HashLong b) {
  const HashLong sum = a + b;  // both are below 2^61
  return sum >= kHashPrime ? sum - kHashPrime : sum;
}

// key * word modulo p, for key <= p and a word of 32 bits. 2^61 is 1 modulo p, so what is above bit 61 is added below.
GPUMUX_ON_BOTH HashLong hash_multiply(HashLong key, HashWord word) {
  const HashLong low = (key & 0xffffffffull) * word;       // 64 bits
  const HashLong high = (key >> 32) * word + (low >> 32);  // 29 + 32 bits and a carry, in units of 2^32
  const HashLong bottom = ((high & 0x1fffffffull) << 32) | (low & 0xffffffffull);  // bits 0..60
  return hash_add(bottom >= kHashPrime ? bottom - kHashPrime : bottom, high >> 29);
}

// The amount that thread `thread`'s four sums add to result `which` (0 or 1).
GPUMUX_ON_BOTH HashLong hash_second_level(const HashLong (&sums)[kHashLanes], unsigned thread, unsigned which,
                                          HashLong seed_low, HashLong seed_high) {
  HashLong total = 0;
  for (unsigned lane = 0; lane < kHashLanes; ++lane) {
    const HashLong index = kHashSecondLevel + 2ull * (2ull * (thread * kHashLanes + lane) + which);
    const HashLong first = hash_key(seed_low, seed_high, index) & kHashPrime;
    const HashLong second = hash_key(seed_low, seed_high, index + 1) & kHashPrime;
    total = hash_add(total, hash_multiply(first, static_cast<HashWord>(sums[lane])));
    total = hash_add(total, hash_multiply(second, static_cast<HashWord>(sums[lane] >> 32)));
  }
  return total;
}

// Spreads the two results over 128 bits: a Feistel network, which is a bijection.
GPUMUX_ON_BOTH void hash_finish(HashLong first, HashLong second, HashLong* low, HashLong* high) {
  HashLong left = first | (second << 61);
  HashLong right = second >> 3;
  left ^= hash_mix(right + 0x8ebc6af09c88c6e3ull);
  right ^= hash_mix(left + 0x589965cc75374cc3ull);
  left ^= hash_mix(right + 0x1d8e4e27c47d124full);
  *low = left;
  *high = right;
}

}  // namespace gpumux::mover
