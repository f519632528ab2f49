// SPDX-License-Identifier: Apache-2.0
// What the node's mover has of a chunk's content.
#pragma once

#include <cstdint>
#include <vector>

#include "base/block_size.h"

namespace gpumux::pager {

// 2 MiB of a chunk, as it was when it last was saved.
struct SavedBlock {
  enum class Kind : std::uint8_t {
    kNone,      // nothing is known, or the content was never defined
    kSlot,      // slot `value` of host memory holds the content
    kConstant,  // `value`, all over
  };
  Kind kind = Kind::kNone;
  std::uint32_t value = 0;
};

// All blocks of a chunk, in order; empty: it was never saved.
using Saved = std::vector<SavedBlock>;

inline std::uint64_t slot_bytes(const Saved& saved) {
  std::uint64_t bytes = 0;
  for (const SavedBlock& block : saved) bytes += block.kind == SavedBlock::Kind::kSlot ? base::kBlockBytes : 0;
  return bytes;
}

}  // namespace gpumux::pager
