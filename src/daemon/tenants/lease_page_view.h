// SPDX-License-Identifier: Apache-2.0
// The daemon's side of a tenant's lease page: it checks the descriptor, maps it, and writes words as wire/lease_page.h
// says.
//
// The page is the tenant's and may be scribbled over at any moment. Nothing that is read from it decides anything; the
// daemon keeps its own record of its last word.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::wire {
struct LeasePage;
}

namespace gpumux::daemon {

class LeasePageView {
 public:
  LeasePageView() = default;

  // kInvalid, with the reason, unless `fd` is a memfd of exactly kLeasePageBytes that can no longer shrink, grow or
  // lose that property. The descriptor is not needed afterwards.
  static base::Result<LeasePageView> map(int fd);

  explicit operator bool() const { return page_ != nullptr; }

  // Stores a new word: granted (with epoch) or not. Wakes the threads that sleep on it.
  void grant(std::size_t slot, base::LeaseEpoch epoch, bool exclusive, bool contended);
  void revoke(std::size_t slot);
  // Only the one bit: the tenant's agent may be clearing kGranted at this moment, and storing it anew would undo that.
  void set_contended(std::size_t slot, bool contended);
  // A grant is about to come: wakes one sleeper, which stays awake for it. Only the one bit, for the same reason.
  void heads_up(std::size_t slot);

  // The tenant's own count, which may be false. For people.
  std::uint64_t submissions(std::size_t slot) const;

 private:
  void store(std::size_t slot, std::uint32_t flags);

  struct Unmap {
    void operator()(wire::LeasePage* page) const;
  };
  std::unique_ptr<wire::LeasePage, Unmap> page_;
  // One sequence for all slots: a word then differs from any that the slot had before. It starts anywhere, because the
  // words that an earlier daemon left are not read.
  std::uint32_t sequence_ = 0;
};

}  // namespace gpumux::daemon
