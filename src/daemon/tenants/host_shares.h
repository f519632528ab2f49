// SPDX-License-Identifier: Apache-2.0
// How accounts share the host memory budget, in chunks. An account may borrow all that no other account waits for. Its
// share is the budget divided by the number of accounts that borrow or wait. While an account that has less than its
// share waits, accounts that have theirs come after it. They are also asked to give back the part beyond their share.
//
// The last chunks of the budget (reserved()) are lent only to accounts that have fewer than that. So an account that
// comes last can begin, even if another account gives nothing back.
//
// A chunk that leaves counts as its latest borrower's until no process has it mapped: the budget counts it until then,
// too.
//
// Owned by HostMemory, on its thread.
#pragma once

#include <cstdint>
#include <map>

#include "daemon/peers/account.h"

namespace gpumux::daemon {

class HostShares {
 public:
  explicit HostShares(std::uint64_t chunks);

  std::uint64_t reserved() const { return reserved_; }

  // A request begins to wait; it no longer does.
  void asked(const Account& account) { ++uses_[account].waiting; }
  void answered(const Account& account) { less(account, &Use::waiting); }
  void lent(const Account& account) { ++uses_[account].lent; }
  void returned(const Account& account) { less(account, &Use::lent); }
  // A chunk leaves that its processes have mapped; it has left.
  void leaves(const Account& account) { ++uses_[account].leaving; }
  void has_left(const Account& account) { less(account, &Use::leaving); }

  // Chunks that it has on loan, and chunks that leave.
  std::uint64_t mapped_by(const Account& account) const;
  // Its requests come after others.
  bool yields(const Account& account) const;
  // It has less than its share, and another account has more on loan than that. (A leaving chunk is not waited for.)
  bool is_owed(const Account& account) const;
  // The chunks that it is to give back to others.
  std::uint64_t beyond(const Account& account) const;

 private:
  struct Use {
    std::uint64_t lent = 0;
    std::uint64_t leaving = 0;
    std::uint64_t waiting = 0;  // requests, a chunk each
    std::uint64_t mapped() const { return lent + leaving; }
  };
  std::uint64_t share() const;
  bool is_anybody_behind() const;
  void less(const Account& account, std::uint64_t Use::*count);

  const std::uint64_t reserved_;
  const std::uint64_t chunks_;   // that are not reserved
  std::map<Account, Use> uses_;  // of accounts that borrow or wait
};

}  // namespace gpumux::daemon
