// SPDX-License-Identifier: Apache-2.0
// Host memory for evicted data. It belongs to the daemon, which lends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gpumux::pager {

// Memory of this process, aligned to 2 MiB; its size is a multiple of that. The same memory may be lent again and
// again, and then has the same address and size.
struct HostChunk {
  std::byte* address = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;  // the lender's own
};

// Lends host memory. Called by the thread that steps evictions, and by callers of Pager::shrink_host, without any lock
// of the pager's. Implementations answer from what they have and do not wait. An eviction that gets nothing starves
// (kStarved) and is stepped again.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // About `bytes` (never more than twice). Nothing: not now.
  virtual std::optional<HostChunk> lend(std::uint64_t bytes) = 0;
  // No seat uses it any more, no copy of the GPU's either. It stays registered with the driver, so that it need not be
  // registered when it is lent again. Before it is unmapped, Pager::unregister_host.
  virtual void give_back(const HostChunk& chunk) = 0;
};

}  // namespace gpumux::pager
