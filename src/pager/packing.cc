// SPDX-License-Identifier: Apache-2.0
#include "pager/packing.h"

#include <algorithm>
#include <iterator>

namespace gpumux::pager {

std::optional<std::uint64_t> Slab::take(std::uint64_t bytes, std::uint64_t id) {
  const std::uint64_t size = round_up(bytes, kPackingBytes);
  if (size > largest_free_) return std::nullopt;
  const auto hole = std::find_if(free_.begin(), free_.end(), [size](const auto& h) { return h.second >= size; });
  if (hole == free_.end()) return std::nullopt;
  const auto [offset, room] = *hole;
  free_.erase(hole);
  if (room > size) free_.emplace(offset + size, room - size);
  pieces_.emplace(offset, Piece{bytes, id, false});
  if (room == largest_free_) measure();
  return offset;
}

Slab::Piece* Slab::find(std::uint64_t offset) {
  const auto found = pieces_.find(offset);
  return found == pieces_.end() ? nullptr : &found->second;
}

std::optional<std::uint64_t> Slab::holding(std::uint64_t offset) const {
  auto next = pieces_.upper_bound(offset);
  if (next == pieces_.begin()) return std::nullopt;
  --next;
  if (offset - next->first >= next->second.bytes) return std::nullopt;
  return next->first;
}

void Slab::give(std::uint64_t offset) {
  const auto piece = pieces_.find(offset);
  const std::uint64_t size = round_up(piece->second.bytes, kPackingBytes);
  pieces_.erase(piece);
  auto hole = free_.emplace(offset, size).first;
  if (const auto next = std::next(hole); next != free_.end() && offset + size == next->first) {
    hole->second += next->second;
    free_.erase(next);
  }
  if (hole != free_.begin()) {
    if (const auto before = std::prev(hole); before->first + before->second == offset) {
      before->second += hole->second;
      free_.erase(hole);
      hole = before;
    }
  }
  largest_free_ = std::max(largest_free_, hole->second);
}

void Slab::measure() {
  largest_free_ = 0;
  for (const auto& [offset, bytes] : free_) largest_free_ = std::max(largest_free_, bytes);
}

}  // namespace gpumux::pager
