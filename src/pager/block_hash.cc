// SPDX-License-Identifier: Apache-2.0
#include "pager/block_hash.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "pager/block_hash.gen.h"
#include "pager/block_hash_function.h"

namespace gpumux::pager {

HashSeed HashSeed::random() {
  HashSeed seed;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof seed)) return seed;
  // A sandbox without the call: nobody attacks here, the seed only must not be something that data may depend on.
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  seed.low = hash_mix(static_cast<std::uint64_t>(time.tv_nsec) ^ (static_cast<std::uint64_t>(::getpid()) << 32));
  seed.high = hash_mix(static_cast<std::uint64_t>(time.tv_sec) ^ reinterpret_cast<std::uintptr_t>(&seed));
  return seed;
}

BlockFacts hash_block(const void* block, HashSeed seed) {
  // Two words to each 64-bit key of the sequence.
  HashWord keys[4 * kHashKeyQuads];
  for (unsigned i = 0; i < 2 * kHashKeyQuads; ++i) {
    const HashLong key = hash_key(seed.low, seed.high, i);
    keys[2 * i] = static_cast<HashWord>(key);
    keys[2 * i + 1] = static_cast<HashWord>(key >> 32);
  }
  const auto* bytes = static_cast<const std::byte*>(block);
  HashLong total[2] = {};
  BlockFacts facts;
  std::memcpy(&facts.first_word, bytes, sizeof facts.first_word);
  HashWord different = 0;
  for (unsigned thread = 0; thread < kHashThreads; ++thread) {
    HashLong sums[kHashLanes] = {};
    for (unsigned step = 0; step < kHashSteps; ++step) {
      HashWord m[4];
      std::memcpy(m, bytes + (std::size_t{step} * kHashThreads + thread) * sizeof m, sizeof m);
      for (const HashWord word : m) different |= word ^ facts.first_word;
      for (unsigned lane = 0; lane < kHashLanes; ++lane) {
        const HashWord* k = keys + 4 * (step + lane);
        sums[lane] += hash_quad(m[0], m[1], m[2], m[3], k[0], k[1], k[2], k[3]);
      }
    }
    for (unsigned which = 0; which < 2; ++which)
      total[which] = hash_add(total[which], hash_second_level(sums, thread, which, seed.low, seed.high));
  }
  HashLong low = 0;
  HashLong high = 0;
  hash_finish(total[0], total[1], &low, &high);
  facts.hash = {low, high};
  facts.constant = different == 0;
  return facts;
}

const void* block_hash_code(int major, int minor) {
  // Machine code runs on its own architecture and on later ones of the same major number.
  const void* best = nullptr;
  for (const BlockHashCode& code : kBlockHashCode) {
    if (code.architecture / 10 == major && code.architecture % 10 <= minor) best = code.image;
  }
  return best;
}

const void* block_hash_ptx() { return kBlockHashPtx; }

}  // namespace gpumux::pager
