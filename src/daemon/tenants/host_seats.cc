// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_seats.h"

#include <algorithm>

namespace gpumux::daemon {

// The last chunk of a seat is hardly ever full.
std::uint64_t HostSeats::most_of(const Use& use) const {
  return use.has ? *use.has / chunk_bytes_ + (*use.has % chunk_bytes_ != 0 ? 2 : 1) : 0;
}

std::uint64_t HostSeats::useless_of(const Use& use) const { return use.lent - std::min(use.lent, most_of(use)); }

template <typename Change>
void HostSeats::change(const HostSeat& seat, const Change& change) {
  const auto use = uses_.try_emplace(key_of(seat)).first;
  useless_ -= useless_of(use->second);
  change(use->second);
  useless_ += useless_of(use->second);
  if (!use->second.has && use->second.lent == 0) uses_.erase(use);
}

void HostSeats::has(const HostSeat& seat, std::uint64_t bytes) {
  change(seat, [bytes](Use& use) { use.has = bytes; });
}

void HostSeats::closed(const HostSeat& seat) {
  change(seat, [](Use& use) { use.has.reset(); });
}

void HostSeats::lent(const HostSeat& seat) {
  change(seat, [](Use& use) { ++use.lent; });
}

void HostSeats::returned(const HostSeat& seat) {
  change(seat, [](Use& use) { --use.lent; });
}

void HostSeats::gone(base::TenantId tenant) {
  for (auto use = uses_.lower_bound({tenant.value, 0}); use != uses_.end() && use->first.first == tenant.value;) {
    useless_ -= useless_of(use->second);
    use = uses_.erase(use);
  }
}

std::uint64_t HostSeats::most_of(const HostSeat& seat) const {
  const auto use = uses_.find(key_of(seat));
  return use == uses_.end() ? 0 : most_of(use->second);
}

std::uint64_t HostSeats::lent_to(const HostSeat& seat) const {
  const auto use = uses_.find(key_of(seat));
  return use == uses_.end() ? 0 : use->second.lent;
}

std::uint64_t HostSeats::lent_to(base::TenantId tenant) const {
  std::uint64_t sum = 0;
  for (auto use = uses_.lower_bound({tenant.value, 0}); use != uses_.end() && use->first.first == tenant.value; ++use)
    sum += use->second.lent;
  return sum;
}

std::uint64_t HostSeats::lent_to(const std::function<bool(const HostSeat&)>& is_one) const {
  std::uint64_t sum = 0;
  for (const auto& [key, use] : uses_) sum += is_one({{key.first}, key.second}) ? use.lent : 0;
  return sum;
}

std::uint64_t HostSeats::useless_of(base::TenantId tenant) const {
  std::uint64_t sum = 0;
  for (auto use = uses_.lower_bound({tenant.value, 0}); use != uses_.end() && use->first.first == tenant.value; ++use)
    sum += useless_of(use->second);
  return sum;
}

}  // namespace gpumux::daemon
