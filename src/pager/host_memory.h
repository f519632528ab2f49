// SPDX-License-Identifier: Apache-2.0
// Where evicted data lies: host memory that belongs to somebody else (the daemon) and is lent.
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

// Lends host memory. Called by the thread that steps evictions, and by whoever calls Pager::shrink_host; holding no
// lock of the pager's. Implementations answer from what they have at hand and do not wait: an eviction that gets
// nothing says so and is stepped again.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // About so many bytes (never more than twice). Nothing: not now.
  virtual std::optional<HostChunk> lend(std::uint64_t bytes) = 0;
  // Nobody uses it any more, no copy of the GPU's either. It stays registered with the driver, so that it need not be
  // when it is lent again: before it is unmapped, Pager::unregister_host.
  virtual void give_back(const HostChunk& chunk) = 0;
};

}  // namespace gpumux::pager
