// SPDX-License-Identifier: Apache-2.0
#include "mover/copier/host_slots.h"

#include <algorithm>
#include <utility>

namespace gpumux::mover {

using cuda::CUresult;

HostSlots::~HostSlots() {
  for (const auto& chunk : chunks_) give_back(*chunk);
}

std::uint32_t HostSlots::take(std::uint32_t count, std::vector<HostSlot>* slots) {
  const base::Locked locked(mutex_);
  for (const auto& chunk : chunks_) {
    if (chunk->used_count == chunk->used.size()) continue;
    const auto first =
        static_cast<std::uint32_t>(std::find(chunk->used.begin(), chunk->used.end(), false) - chunk->used.begin());
    std::uint32_t taken = 0;
    for (std::uint32_t i = first; i < chunk->used.size() && !chunk->used[i] && taken < count; ++i, ++taken) {
      chunk->used[i] = true;
      slots->push_back({chunk.get(), i});
    }
    chunk->used_count += taken;
    used_blocks_ += taken;
    return taken;
  }
  return 0;
}

void HostSlots::give(HostSlot slot) {
  if (!slot) return;
  if (books_ != nullptr) books_->given(slot);
  const base::Locked locked(mutex_);
  slot.chunk->used[slot.index] = false;
  --slot.chunk->used_count;
  --used_blocks_;
}

bool HostSlots::borrow() {
  const auto lent = lender_.lend();
  if (!lent) return false;
  if (adopt(*lent, std::vector<bool>(lent->bytes / kBlockBytes))) return true;
  lender_.give_back(*lent);
  return false;
}

bool HostSlots::adopt(const HostChunk& memory, std::vector<bool> used) {
  const bool usable = memory.address != nullptr && memory.bytes >= kBlockBytes && memory.bytes % kBlockBytes == 0 &&
                      reinterpret_cast<std::uintptr_t>(memory.address) % kBlockBytes == 0;
  if (!usable) return false;
  auto chunk = std::make_unique<LentChunk>();
  chunk->memory = memory;
  chunk->used = std::move(used);
  chunk->used_count = static_cast<std::uint32_t>(std::count(chunk->used.begin(), chunk->used.end(), true));
  const base::Locked locked(mutex_);
  borrowed_bytes_ += memory.bytes;
  used_blocks_ += chunk->used_count;
  by_id_[memory.id] = chunk.get();
  chunks_.push_back(std::move(chunk));
  return true;
}

HostSlot HostSlots::find(std::uint64_t id, std::uint32_t index) const {
  const base::Locked locked(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || index >= found->second->used.size()) return {};
  return {found->second, index};
}

CUresult HostSlots::ensure_registered(const HostSlot& slot) {
  LentChunk& chunk = *slot.chunk;
  const base::Locked registering(registering_);
  if (chunk.is_registered) return cuda::CUDA_SUCCESS;
  const CUresult result =
      driver_.cuMemHostRegister_v2(chunk.memory.address, chunk.memory.bytes, cuda::kMemHostRegisterPortable);
  chunk.is_registered = result == cuda::CUDA_SUCCESS;
  return result;
}

// If the driver refuses, its registration ends with the process; the memory goes either way.
void HostSlots::give_back(LentChunk& chunk) {
  {
    const base::Locked registering(registering_);
    if (chunk.is_registered) driver_.cuMemHostUnregister(chunk.memory.address);
  }
  lender_.give_back(chunk.memory);
}

bool HostSlots::shrink(std::uint64_t keep) {
  std::unique_ptr<LentChunk> gone;
  {
    const base::Locked locked(mutex_);
    if (borrowed_bytes_ <= keep) return false;
    const auto unused =
        std::find_if(chunks_.begin(), chunks_.end(), [](const auto& chunk) { return chunk->used_count == 0; });
    if (unused == chunks_.end()) return false;
    gone = std::move(*unused);
    chunks_.erase(unused);
    borrowed_bytes_ -= gone->memory.bytes;
    by_id_.erase(gone->memory.id);
  }
  give_back(*gone);
  return true;
}

std::uint64_t HostSlots::borrowed_bytes() const {
  const base::Locked locked(mutex_);
  return borrowed_bytes_;
}

std::uint64_t HostSlots::used_bytes() const {
  const base::Locked locked(mutex_);
  return used_blocks_ * kBlockBytes;
}

const char* HostSlots::check() const {
  const base::Locked locked(mutex_);
  std::uint64_t borrowed = 0;
  std::uint64_t used = 0;
  for (const auto& chunk : chunks_) {
    borrowed += chunk->memory.bytes;
    used += chunk->used_count;
    if (std::count(chunk->used.begin(), chunk->used.end(), true) != chunk->used_count)
      return "a used slot is not counted";
  }
  if (borrowed != borrowed_bytes_) return "borrowed_bytes is not the sum of what is borrowed";
  return used == used_blocks_ ? nullptr : "used_bytes is not the sum of what is used";
}

}  // namespace gpumux::mover
