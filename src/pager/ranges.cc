// SPDX-License-Identifier: Apache-2.0
#include "pager/ranges.h"

#include <algorithm>
#include <atomic>

namespace gpumux::pager {

bool ProgramHandle::is_accessible() const {
  for (const Mapping& mapping : mappings) {
    for (const cuda::CUmemAccessDesc& right : mapping.rights) {
      if (right.flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE) return true;
    }
  }
  return false;
}

bool Range::pinned() const {
  return std::any_of(pins.begin(), pins.end(), [](std::uint32_t count) { return count != 0; });
}

std::uint64_t Range::resident_bytes() const {
  std::uint64_t total = 0;
  for (const Chunk& chunk : chunks) total += chunk.place == ChunkPlace::kDevice ? chunk.bytes : 0;
  return total;
}

std::vector<Chunk> make_chunks(cuda::CUdeviceptr base, std::uint64_t bytes, std::uint64_t chunk_bytes) {
  const std::uint64_t step = chunk_bytes;
  static std::atomic<std::uint64_t> last_number{0};
  std::vector<Chunk> chunks((bytes + step - 1) / step);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].address = base + i * step;
    chunks[i].bytes = std::min(step, bytes - i * step);
    chunks[i].number = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  return chunks;
}

Range* RangeTable::insert(std::unique_ptr<Range> range) {
  Range* inserted = range.get();
  by_id_.emplace(inserted->id, inserted);
  by_base_.emplace(inserted->base, std::move(range));
  return inserted;
}

std::unique_ptr<Range> RangeTable::remove(Range& range) {
  const auto found = by_base_.find(range.base);
  std::unique_ptr<Range> removed = std::move(found->second);
  by_base_.erase(found);
  by_id_.erase(removed->id);
  return removed;
}

Range* RangeTable::find(cuda::CUdeviceptr address) const {
  auto next = by_base_.upper_bound(address);
  if (next == by_base_.begin()) return nullptr;
  Range* range = std::prev(next)->second.get();
  return address - range->base < range->bytes ? range : nullptr;
}

Range* RangeTable::by_id(std::uint64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

}  // namespace gpumux::pager
