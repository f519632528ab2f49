// SPDX-License-Identifier: Apache-2.0
// The host memory that each seat may borrow, and has on loan, in chunks. A seat borrows at most the memory that it may
// need for evicting all that it has, and a chunk. Its loans beyond that are *useless*: the seat has to give them back,
// and until then the planner promises that much less to others.
//
// Owned by HostMemory, on its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/ids.h"

namespace gpumux::daemon {

// Maps its loans by itself: each seat of a process for its own use.
struct HostSeat {
  base::TenantId tenant;
  std::uint32_t slot = 0;
  bool operator==(const HostSeat&) const = default;
};

class HostSeats {
 public:
  explicit HostSeats(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // `bytes`: the memory that it may have to evict. A seat that has said nothing, or is closed, borrows nothing.
  void has(const HostSeat& seat, std::uint64_t bytes);
  void closed(const HostSeat& seat);
  void lent(const HostSeat& seat);
  void returned(const HostSeat& seat);
  // All seats of the tenant, and their loans.
  void gone(base::TenantId tenant);

  std::uint64_t most_of(const HostSeat& seat) const;
  std::uint64_t lent_to(const HostSeat& seat) const;
  std::uint64_t lent_to(base::TenantId tenant) const;
  std::uint64_t lent_to(const std::function<bool(const HostSeat&)>& is_one) const;
  std::uint64_t useless_of(base::TenantId tenant) const;
  std::uint64_t useless() const { return useless_; }  // of all seats

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // tenant, slot
  struct Use {
    std::optional<std::uint64_t> has;  // bytes; none: it is not open
    std::uint64_t lent = 0;
  };
  static Key key_of(const HostSeat& seat) { return {seat.tenant.value, seat.slot}; }
  std::uint64_t most_of(const Use& use) const;
  std::uint64_t useless_of(const Use& use) const;
  template <typename Change>
  void change(const HostSeat& seat, const Change& change);

  const std::uint64_t chunk_bytes_;
  std::map<Key, Use> uses_;  // of seats that are open or have something on loan
  std::uint64_t useless_ = 0;
};

}  // namespace gpumux::daemon
