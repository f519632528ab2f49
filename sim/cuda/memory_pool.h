// SPDX-License-Identifier: Apache-2.0
// Memory pools: where stream-ordered allocation (cuMemAllocAsync) takes its memory from.
//
// An allocation has its address at once; stream order only says when memory may be used again. A freed block says which
// stream freed it and when that point is reached. It serves the same stream at once, and others when the point has been
// reached. Free memory beyond the release threshold goes back to the GPU at the next synchronisation.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/abi.h"
#include "sim/cuda/context.h"

namespace gpumux::sim {

struct MemoryPool {
  MemoryPool(Process& owner, Device& location);
  ~MemoryPool();

  cuda::CUresult allocate(const Stream& stream, std::uint64_t bytes, std::uint64_t* address);
  // After `point`, in the order of `stream`. False: not an allocation of this pool.
  bool free(std::uint64_t address, std::uint64_t stream_id, std::shared_ptr<Completion> point);
  // Gives free memory back to the GPU until no more than `keep` bytes are reserved.
  void trim(std::uint64_t keep);
  void trim_to_threshold();
  cuda::CUresult get(cuda::CUmemPool_attribute attribute, void* value);
  cuda::CUresult set(cuda::CUmemPool_attribute attribute, const void* value);
  cuda::CUresult set_access(std::uint32_t gpu, std::uint8_t bits);
  std::uint8_t access_of(std::uint32_t gpu);
  // Nothing is left of it, once its free memory has been given back.
  bool is_over();

  static constexpr std::uint8_t kFullAccess =
      static_cast<std::uint8_t>(Touch::kRead) | static_cast<std::uint8_t>(Touch::kWrite);

  Process& process;
  Device& device;
  std::uint64_t max_bytes = 0;  // 0: no limit
  bool is_default = false;

 private:
  struct Block {
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint64_t stream;               // the stream that freed it
    std::shared_ptr<Completion> freed;  // null while in use
  };
  bool take_free(std::uint64_t stream, std::uint64_t bytes, std::uint64_t* address);
  cuda::CUresult grow(std::uint64_t bytes, std::uint64_t* address);
  void trim_locked(std::uint64_t keep);
  void release(const Block& block);

  std::mutex mutex_;
  std::array<std::uint8_t, kMaxGpus> access{};
  std::map<std::uint64_t, Block> used_;
  std::list<Block> free_;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t reserved_high_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t used_high_ = 0;
  std::uint64_t release_threshold_ = 0;
  int reuse_[3] = {1, 1, 1};
};

// The pool that a stream's allocations come from unless another is named.
std::shared_ptr<MemoryPool> current_pool(Process& process, Device& device);
std::shared_ptr<MemoryPool> default_pool(Process& process, Device& device);

// The pool of a mapping; it may have been destroyed.
std::shared_ptr<MemoryPool> pool_of_memory(Process& process, const void* pool);
// A destroyed pool goes when nothing of it is allocated any more.
void end_pool(Process& process, std::shared_ptr<MemoryPool> pool);

// At each synchronisation.
void trim_pools(Process& process);

}  // namespace gpumux::sim
