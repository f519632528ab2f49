// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/memory_pool.h"

#include <algorithm>

#include "sim/cuda/memory.h"
#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// A pool takes this much from the GPU at a time; a real one takes 32 MiB, too much for small simulated GPUs.
constexpr std::uint64_t kStep = kPageBytes;

}  // namespace

MemoryPool::MemoryPool(Process& owner, Device& location) : process(owner), device(location) {
  access[location.gpu] = kFullAccess;
}

MemoryPool::~MemoryPool() {
  for (const auto& [address, block] : used_) release(block);
  for (const Block& block : free_) release(block);
}

void MemoryPool::release(const Block& block) {
  process.space().unmap(block.address, block.bytes);
  process.space().unreserve(block.address, block.bytes);
}

// The smallest block that is large enough, and not wasteful.
bool MemoryPool::take_free(std::uint64_t stream, std::uint64_t bytes, std::uint64_t* address) {
  auto best = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    if (block->bytes < bytes || block->bytes > 2 * bytes + kStep) continue;
    if (block->stream != stream && !block->freed->done()) continue;
    if (best == free_.end() || block->bytes < best->bytes) best = block;
  }
  if (best == free_.end()) return false;
  Block block = *best;
  free_.erase(best);
  block.freed = nullptr;
  used_bytes_ += block.bytes;
  *address = block.address;
  used_.emplace(block.address, std::move(block));
  return true;
}

CUresult MemoryPool::grow(std::uint64_t bytes, std::uint64_t* address) {
  if (max_bytes != 0 && reserved_bytes_ + bytes > max_bytes) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = PhysicalMemory::create(process.machine(), device.gpu, bytes);
  if (memory == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t base = process.space().reserve(bytes, kPageBytes, 0);
  if (base == 0) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Mapping mapping;
  mapping.base = base;
  mapping.bytes = bytes;
  mapping.kind = MemoryKind::kPool;
  mapping.memory = std::move(memory);
  mapping.access = access;
  mapping.allocation = base;
  mapping.allocation_bytes = bytes;
  mapping.pool = this;
  if (process.space().map(std::move(mapping)) != AddressSpace::MapResult::kOk) {
    process.space().unreserve(base, bytes);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  reserved_bytes_ += bytes;
  used_bytes_ += bytes;
  used_.emplace(base, Block{base, bytes, 0, nullptr});
  *address = base;
  return cuda::CUDA_SUCCESS;
}

CUresult MemoryPool::allocate(const Stream& stream, std::uint64_t bytes, std::uint64_t* address) {
  if (bytes > process.machine().settings().usable_bytes()) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t size = round_up(bytes, kStep);
  std::unique_lock lock(mutex_);
  if (!take_free(stream.id(), size, address)) {
    CUresult result = grow(size, address);
    if (result != cuda::CUDA_SUCCESS) {
      // Before giving up: wait for what is being freed, and give all of it back.
      std::vector<std::shared_ptr<Completion>> points;
      for (const Block& block : free_) points.push_back(block.freed);
      lock.unlock();
      for (const auto& point : points) point->wait();
      lock.lock();
      trim_locked(0);
      result = grow(size, address);
    }
    if (result != cuda::CUDA_SUCCESS) return result;
  }
  used_high_ = std::max(used_high_, used_bytes_);
  reserved_high_ = std::max(reserved_high_, reserved_bytes_);
  return cuda::CUDA_SUCCESS;
}

bool MemoryPool::free(std::uint64_t address, std::uint64_t stream_id, std::shared_ptr<Completion> point) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(address);
  if (found == used_.end()) return false;
  Block block = std::move(found->second);
  used_.erase(found);
  used_bytes_ -= block.bytes;
  block.stream = stream_id;
  block.freed = std::move(point);
  free_.push_back(std::move(block));
  return true;
}

void MemoryPool::trim_locked(std::uint64_t keep) {
  for (auto block = free_.begin(); block != free_.end() && reserved_bytes_ > keep;) {
    if (!block->freed->done()) {
      ++block;
      continue;
    }
    release(*block);
    reserved_bytes_ -= block->bytes;
    block = free_.erase(block);
  }
}

void MemoryPool::trim(std::uint64_t keep) {
  const std::lock_guard lock(mutex_);
  trim_locked(keep);
}

void MemoryPool::trim_to_threshold() {
  const std::lock_guard lock(mutex_);
  trim_locked(std::max(release_threshold_, used_bytes_));
}

bool MemoryPool::is_over() {
  const std::lock_guard lock(mutex_);
  trim_locked(0);
  return reserved_bytes_ == 0;
}

CUresult MemoryPool::get(cuda::CUmemPool_attribute attribute, void* value) {
  const std::lock_guard lock(mutex_);
  auto* number = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case cuda::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = reuse_[attribute - 1];
      return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *number = release_threshold_; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *number = reserved_bytes_; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *number = reserved_high_; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *number = used_bytes_; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_HIGH: *number = used_high_; return cuda::CUDA_SUCCESS;
  }
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

CUresult MemoryPool::set(cuda::CUmemPool_attribute attribute, const void* value) {
  const std::lock_guard lock(mutex_);
  const auto number = [value] { return *static_cast<const std::uint64_t*>(value); };
  switch (attribute) {
    case cuda::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      reuse_[attribute - 1] = *static_cast<const int*>(value);
      return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: release_threshold_ = number(); return cuda::CUDA_SUCCESS;
    // The high-water marks can only be started anew.
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number() != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
      reserved_high_ = reserved_bytes_;
      return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
      used_high_ = used_bytes_;
      return cuda::CUDA_SUCCESS;
    default: return cuda::CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult MemoryPool::set_access(std::uint32_t gpu, std::uint8_t bits) {
  const std::lock_guard lock(mutex_);
  if (gpu == device.gpu && bits != kFullAccess) return cuda::CUDA_ERROR_INVALID_VALUE;
  access[gpu] = bits;
  for (const auto& [address, block] : used_) process.space().set_access(address, block.bytes, gpu, bits);
  for (const Block& block : free_) process.space().set_access(block.address, block.bytes, gpu, bits);
  return cuda::CUDA_SUCCESS;
}

std::uint8_t MemoryPool::access_of(std::uint32_t gpu) {
  const std::lock_guard lock(mutex_);
  return access[gpu];
}

std::shared_ptr<MemoryPool> default_pool(Process& process, Device& device) {
  const std::lock_guard lock(device.mutex);
  if (device.default_pool == nullptr) {
    device.default_pool = std::make_shared<MemoryPool>(process, device);
    device.default_pool->is_default = true;
    process.pools.add<cuda::CUmemoryPool>(device.default_pool);
  }
  return device.default_pool;
}

std::shared_ptr<MemoryPool> current_pool(Process& process, Device& device) {
  {
    const std::lock_guard lock(device.mutex);
    if (device.current_pool != nullptr) return device.current_pool;
  }
  return default_pool(process, device);
}

std::shared_ptr<MemoryPool> pool_of_memory(Process& process, const void* handle) {
  auto pool = process.pools.find(handle);
  return pool != nullptr ? pool : process.ending_pools.find(handle);
}

void end_pool(Process& process, std::shared_ptr<MemoryPool> pool) {
  if (!pool->is_over()) process.ending_pools.add<cuda::CUmemoryPool>(std::move(pool));
}

void trim_pools(Process& process) {
  for (const auto& pool : process.pools.all()) pool->trim_to_threshold();
  for (const auto& pool : process.ending_pools.all()) {
    if (pool->is_over()) process.ending_pools.remove(pool.get());
  }
}

}  // namespace gpumux::sim
