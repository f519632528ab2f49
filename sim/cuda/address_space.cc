// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>

namespace gpumux::sim {
namespace {

// Room for many times the memory of kMaxGpus simulated GPUs, and little enough for any 47-bit address space with a
// sanitizer.
constexpr std::uint64_t kReservationBytes = std::uint64_t{1} << 40;

constexpr int kEmptyFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }

// An aligned range without access rights; 0 if the system refuses.
std::uint64_t reserve_range(std::uint64_t bytes) {
  void* raw = ::mmap(nullptr, bytes + kPageBytes, PROT_NONE, kEmptyFlags, -1, 0);
  if (raw == MAP_FAILED) return 0;
  // Neither a core dump nor a forked child needs it; managed memory is mapped over it and undone again below.
  ::madvise(raw, bytes + kPageBytes, MADV_DONTDUMP);
  const auto address = reinterpret_cast<std::uint64_t>(raw);
  return (address + kPageBytes - 1) & ~(kPageBytes - 1);
}

bool clear_pages(std::uint64_t address, std::uint64_t bytes) {
  return ::mmap(pointer(address), bytes, PROT_NONE, kEmptyFlags | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace

AddressSpace* AddressSpace::create() {
  std::uint64_t bytes = kReservationBytes;
  std::uint64_t base = 0;
  std::uint64_t view = 0;
  // A limit on address space (ulimit -v) may allow only less.
  constexpr std::uint64_t kSmallest = std::uint64_t{1} << 32;
  for (; bytes >= kSmallest; bytes /= 4) {
    base = reserve_range(bytes);
    view = base == 0 ? 0 : reserve_range(bytes);
    if (view != 0) break;
    if (base != 0) ::munmap(pointer(base), bytes);
  }
  if (view == 0) return nullptr;
  auto* space = new AddressSpace;
  space->base_ = base;
  space->bytes_ = bytes;
  space->view_offset_ = view - base;
  space->free_.emplace(base, bytes);
  return space;
}

std::uint64_t AddressSpace::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint) {
  const std::unique_lock lock(mutex_);
  if (bytes == 0 || bytes > bytes_) return 0;
  const std::uint64_t step = std::max(alignment, kPageBytes);
  const auto take = [&](std::map<std::uint64_t, std::uint64_t>::iterator range, std::uint64_t start) {
    const std::uint64_t base = range->first;
    const std::uint64_t end = base + range->second;
    free_.erase(range);
    if (start > base) free_.emplace(base, start - base);
    if (start + bytes < end) free_.emplace(start + bytes, end - start - bytes);
    reserved_.emplace(start, bytes);
    return start;
  };
  if (hint != 0 && hint % step == 0) {
    auto range = free_.upper_bound(hint);
    if (range != free_.begin()) {
      --range;
      if (hint - range->first < range->second && range->second - (hint - range->first) >= bytes)
        return take(range, hint);
    }
  }
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const std::uint64_t start = (range->first + step - 1) / step * step;
    if (start - range->first < range->second && range->second - (start - range->first) >= bytes)
      return take(range, start);
  }
  return 0;
}

bool AddressSpace::unreserve(std::uint64_t base, std::uint64_t bytes) {
  const std::unique_lock lock(mutex_);
  const auto range = reserved_.find(base);
  if (range == reserved_.end() || range->second != bytes) return false;
  const auto mapping = mappings_.lower_bound(base);
  if (mapping != mappings_.end() && mapping->first - base < bytes) return false;
  reserved_.erase(range);
  auto [freed, inserted] = free_.emplace(base, bytes);
  if (const auto next = std::next(freed); next != free_.end() && freed->first + freed->second == next->first) {
    freed->second += next->second;
    free_.erase(next);
  }
  if (freed != free_.begin()) {
    if (const auto before = std::prev(freed); before->first + before->second == freed->first) {
      before->second += freed->second;
      free_.erase(freed);
    }
  }
  return true;
}

bool AddressSpace::reserved(std::uint64_t base, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  auto range = reserved_.upper_bound(base);
  if (range == reserved_.begin()) return false;
  --range;
  return base - range->first < range->second && range->second - (base - range->first) >= bytes;
}

bool AddressSpace::map_pages(const Mapping& mapping) {
  const auto offset = static_cast<off_t>(mapping.memory->offset() + mapping.offset);
  const int fd = mapping.memory->fd();
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  void* view = pointer(mapping.base + view_offset_);
  if (::mmap(view, mapping.bytes, kAccess, MAP_SHARED | MAP_FIXED, fd, offset) == MAP_FAILED) return false;
  // A forked child has no use for it, and would keep the memory of its dead parent.
  ::madvise(view, mapping.bytes, MADV_DONTFORK);
  if (mapping.kind != MemoryKind::kManaged) return true;
  if (::mmap(pointer(mapping.base), mapping.bytes, kAccess, MAP_SHARED | MAP_FIXED, fd, offset) != MAP_FAILED)
    return true;
  clear_pages(mapping.base + view_offset_, mapping.bytes);
  return false;
}

AddressSpace::MapResult AddressSpace::map(Mapping mapping) {
  const std::unique_lock lock(mutex_);
  auto next = mappings_.lower_bound(mapping.base);
  if (next != mappings_.end() && next->first - mapping.base < mapping.bytes) return MapResult::kOverlap;
  if (next != mappings_.begin()) {
    const Mapping& before = std::prev(next)->second;
    if (mapping.base - before.base < before.bytes) return MapResult::kOverlap;
  }
  if (!map_pages(mapping)) return MapResult::kSystem;
  mapping.buffer_id = next_buffer_id_++;
  mappings_.emplace(mapping.base, std::move(mapping));
  return MapResult::kOk;
}

bool AddressSpace::unmap(std::uint64_t base, std::uint64_t bytes) {
  std::vector<Mapping> gone;  // destroyed after the lock is: freeing memory takes long
  const std::unique_lock lock(mutex_);
  const auto first = mappings_.find(base);
  auto last = first;
  std::uint64_t covered = 0;
  while (covered < bytes) {
    if (last == mappings_.end() || last->first != base + covered || last->second.kind == MemoryKind::kHost)
      return false;
    covered += last->second.bytes;
    ++last;
  }
  if (covered != bytes) return false;
  clear_pages(base + view_offset_, bytes);
  if (first->second.kind == MemoryKind::kManaged) clear_pages(base, bytes);
  for (auto it = first; it != last; ++it) gone.push_back(std::move(it->second));
  mappings_.erase(first, last);
  return true;
}

bool AddressSpace::add_host(Mapping mapping) {
  const std::unique_lock lock(mutex_);
  const auto next = mappings_.lower_bound(mapping.base);
  if (next != mappings_.end() && next->first - mapping.base < mapping.bytes) return false;
  if (next != mappings_.begin()) {
    const Mapping& before = std::prev(next)->second;
    if (mapping.base - before.base < before.bytes) return false;
  }
  mapping.kind = MemoryKind::kHost;
  mapping.buffer_id = next_buffer_id_++;
  mappings_.emplace(mapping.base, std::move(mapping));
  return true;
}

bool AddressSpace::remove_host(std::uint64_t base) {
  const std::unique_lock lock(mutex_);
  const auto found = mappings_.find(base);
  if (found == mappings_.end() || found->second.kind != MemoryKind::kHost) return false;
  mappings_.erase(found);
  return true;
}

bool AddressSpace::set_access(std::uint64_t base, std::uint64_t bytes, std::uint32_t gpu, std::uint8_t bits) {
  const std::unique_lock lock(mutex_);
  const auto first = mappings_.find(base);
  std::uint64_t covered = 0;
  for (auto it = first; covered < bytes; ++it) {
    if (it == mappings_.end() || it->first != base + covered) return false;
    if (it->second.kind != MemoryKind::kMapped && it->second.kind != MemoryKind::kPool) return false;
    covered += it->second.bytes;
  }
  if (covered != bytes) return false;
  for (auto it = first; it != mappings_.end() && it->first < base + bytes; ++it) it->second.access[gpu] = bits;
  return true;
}

bool AddressSpace::give_own_file(PhysicalMemory& memory) {
  const std::unique_lock lock(mutex_);
  if (memory.has_own_file()) return true;
  if (!memory.give_own_file()) return false;
  for (const auto& [base, mapping] : mappings_) {
    // Replacing a mapping by one of the same size needs no more of anything than the old one had.
    if (mapping.memory.get() == &memory && !map_pages(mapping)) return false;
  }
  return true;
}

const Mapping* AddressSpace::at(std::uint64_t address) const {
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return nullptr;
  const Mapping& mapping = std::prev(next)->second;
  return address - mapping.base < mapping.bytes ? &mapping : nullptr;
}

std::optional<Mapping> AddressSpace::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const Mapping* mapping = at(address);
  if (mapping == nullptr) return std::nullopt;
  return *mapping;
}

bool AddressSpace::set_sync_memops(std::uint64_t address, bool value) {
  const std::unique_lock lock(mutex_);
  const Mapping* mapping = at(address);
  if (mapping == nullptr) return false;
  mappings_.at(mapping->base).sync_memops = value;
  return true;
}

bool AddressSpace::mapped(std::uint64_t address, std::uint64_t bytes) const {
  const std::shared_lock lock(mutex_);
  if (!is_device_address(address)) return address != 0 && !is_device_address(address + bytes - (bytes != 0));
  for (std::uint64_t done = 0; done < bytes;) {
    const Mapping* mapping = at(address + done);
    if (mapping == nullptr) return false;
    done = mapping->base + mapping->bytes - address;
    // An allocation ends where the program said, though its memory goes on to the end of a page.
    if (mapping->kind == MemoryKind::kDevice && address + bytes > mapping->allocation + mapping->allocation_bytes)
      return false;
  }
  return true;
}

bool AddressSpace::may_touch(const Mapping& mapping, const Accessor& who, Touch how) const {
  const auto bit = static_cast<std::uint8_t>(how);
  switch (mapping.kind) {
    case MemoryKind::kHost:
    case MemoryKind::kManaged:
    case MemoryKind::kImported: return true;
    case MemoryKind::kMapped:
    case MemoryKind::kPool:
      if ((mapping.access[who.gpu] & bit) != 0) return true;
      return who.copy_engine && mapping.memory->gpu() < kMaxGpus && (mapping.access[mapping.memory->gpu()] & bit) != 0;
    case MemoryKind::kDevice:
      if (who.copy_engine || mapping.memory->gpu() == who.gpu) return true;
      return who.peers != nullptr && who.peers->count(mapping.context) != 0;
  }
  return false;
}

std::byte* AddressSpace::Reader::resolve(std::uint64_t address, std::uint64_t bytes, const Accessor& who, Touch how,
                                         bool pageable) const {
  if (address + bytes < address) return nullptr;
  const bool device = space_.is_device_address(address);
  const Mapping* mapping = space_.at(address);
  if (mapping == nullptr) {
    if (!pageable || device || address == 0) return nullptr;
    return static_cast<std::byte*>(pointer(address));
  }
  for (std::uint64_t done = 0;;) {
    if (!space_.may_touch(*mapping, who, how)) return nullptr;
    done = mapping->base + mapping->bytes - address;
    if (done >= bytes) break;
    mapping = space_.at(address + done);
    // A copy of host memory may begin in registered memory and end beyond it.
    if (mapping == nullptr && pageable && !device) break;
    if (mapping == nullptr) return nullptr;
  }
  return static_cast<std::byte*>(pointer(device ? address + space_.view_offset_ : address));
}

}  // namespace gpumux::sim
