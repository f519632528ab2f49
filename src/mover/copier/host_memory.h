// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data. It belongs to the daemon, which lends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gpumux::mover {

// Memory of this process, aligned to 2 MiB; its size is a multiple of that. The same memory may be lent again.
struct HostChunk {
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  // the lender's own
};

// Lends host memory. Called by the thread that saves, without any lock of the copier's. Implementations do not wait.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Nothing: not now.
  virtual std::optional<HostChunk> lend() = 0;
  // Nothing uses it any more, and it is not registered.
  virtual void give_back(const HostChunk& chunk) = 0;
};

}  // namespace gpumux::mover
