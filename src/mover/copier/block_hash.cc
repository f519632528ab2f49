// SPDX-License-Identifier: Apache-2.0
#include "mover/copier/block_hash.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "mover/copier/block_hash.gen.h"
#include "mover/copier/block_hash_function.h"

namespace gpumux::mover {

HashSeed HashSeed::random() {
  HashSeed seed;
  if (::getrandom(&seed, sizeof seed, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof seed)) return seed;
  // A sandbox without the call. The seed need not be secret: data only must not depend on it.
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  seed.low = hash_mix(static_cast<std::uint64_t>(time.tv_nsec) ^ (static_cast<std::uint64_t>(::getpid()) << 32));
  seed.high = hash_mix(static_cast<std::uint64_t>(time.tv_sec) ^ reinterpret_cast<std::uintptr_t>(&seed));
  return seed;
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

}  // namespace gpumux::mover
