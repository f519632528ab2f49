// SPDX-License-Identifier: Apache-2.0
// What host memory has of a chunk's content.
#pragma once

#include <cstdint>
#include <vector>

#include "mover/copier/block_hash.h"
#include "mover/copier/host_slots.h"

namespace gpumux::mover {

// 2 MiB of a chunk, as it was when it last was saved.
struct Block {
  enum class Kind : std::uint8_t {
    kNone,      // nothing is known, or the content was never defined
    kCopied,    // `slot` holds the content
    kConstant,  // `word`, all over
  };
  Kind kind = Kind::kNone;
  bool hashed = false;  // `hash` is the content's; without it nothing can be known to be unchanged
  std::uint32_t word = 0;
  BlockHash hash;
  HostSlot slot;  // may be there without kCopied: about to be written
};

// All blocks of a chunk, in order; empty: it was never saved.
using Content = std::vector<Block>;

}  // namespace gpumux::mover
