// SPDX-License-Identifier: Apache-2.0
// A slab: one block of device memory that small allocations share, as the driver's own allocator does it. Only
// addresses: the owner of the block owns its memory. Belongs to the pager's lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "pager/sizes.h"

namespace gpumux::pager {

class Slab {
 public:
  struct Piece {
    std::uint64_t bytes = 0;  // as requested
    std::uint64_t id = 0;
    bool doomed = false;  // being freed
  };

  Slab() { free_.emplace(0, kBlockBytes); }

  // An offset for `bytes`, the lowest that fits; nothing: no room.
  std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t id);
  // The piece that begins at (find) or holds (holding) this offset; null: none.
  Piece* find(std::uint64_t offset);
  std::optional<std::uint64_t> holding(std::uint64_t offset) const;
  void give(std::uint64_t offset);

  bool empty() const { return pieces_.empty(); }
  // Larger allocations are sure to fail.
  std::uint64_t largest_free() const { return largest_free_; }
  const std::map<std::uint64_t, Piece>& pieces() const { return pieces_; }

 private:
  void measure();

  std::map<std::uint64_t, Piece> pieces_;        // by offset
  std::map<std::uint64_t, std::uint64_t> free_;  // offset to bytes; neighbours are merged
  std::uint64_t largest_free_ = kBlockBytes;
};

}  // namespace gpumux::pager
