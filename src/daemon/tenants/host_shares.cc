// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_shares.h"

#include <algorithm>

namespace gpumux::daemon {
namespace {

// An account alone still gets nearly all, and one that comes last can run a small program: 1 GiB is four chunks.
constexpr std::uint64_t kMostReserved = 4;
constexpr std::uint64_t kReservedPart = 16;

}  // namespace

HostShares::HostShares(std::uint64_t chunks)
    : reserved_(std::min(chunks / kReservedPart, kMostReserved)), chunks_(chunks - reserved_) {}

void HostShares::less(const Account& account, std::uint64_t Use::*count) {
  const auto use = uses_.find(account);
  --(use->second.*count);
  if (use->second.mapped() == 0 && use->second.waiting == 0) uses_.erase(use);
}

std::uint64_t HostShares::share() const {
  return std::max<std::uint64_t>(chunks_ / std::max<std::size_t>(uses_.size(), 1), 1);
}

std::uint64_t HostShares::mapped_by(const Account& account) const {
  const auto use = uses_.find(account);
  return use == uses_.end() ? 0 : use->second.mapped();
}

bool HostShares::is_anybody_behind() const {
  return std::any_of(uses_.begin(), uses_.end(), [most = share()](const auto& entry) {
    return entry.second.waiting != 0 && entry.second.mapped() < most;
  });
}

bool HostShares::yields(const Account& account) const { return mapped_by(account) >= share() && is_anybody_behind(); }

bool HostShares::is_owed(const Account& account) const {
  const std::uint64_t most = share();
  return mapped_by(account) < most &&
         std::any_of(uses_.begin(), uses_.end(), [most](const auto& entry) { return entry.second.lent > most; });
}

std::uint64_t HostShares::beyond(const Account& account) const {
  const std::uint64_t mapped = mapped_by(account);
  return is_anybody_behind() ? mapped - std::min(mapped, share()) : 0;
}

}  // namespace gpumux::daemon
