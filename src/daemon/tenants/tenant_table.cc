// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/tenant_table.h"

#include <algorithm>
#include <chrono>

namespace gpumux::daemon {
namespace {

// The driver lists a process for so long after its end (40 GiB are back after 68 ms). A process that only leaves gpumux
// and goes on is shown as foreign after that.
constexpr base::Duration kGoneIsListed = std::chrono::seconds(1);
// Lists are made once a second, and by a helper that may be slow.
constexpr base::Duration kGoneRemembered = std::chrono::seconds(10);

}  // namespace

void TenantTable::remove(const Session& session, base::TimePoint now) {
  sessions_.erase(session.id);
  if (!session.welcomed) return;
  Gone gone{session.peer.pid, session.process_start, now, {}};
  for (const auto& [number, slot] : session.slots())
    gone.left[slot.gpu] = leases_.memory().left_by(seat_of(session, slot));
  while (!gone_.empty() && gone_.front().at + kGoneRemembered < now) gone_.pop_front();
  gone_.push_back(std::move(gone));
}

Session* TenantTable::find(base::TenantId tenant) const {
  const auto found = sessions_.find(tenant);
  return found == sessions_.end() ? nullptr : found->second;
}

std::pair<Session*, Slot*> TenantTable::find_seat(base::SeatId seat) const {
  Session* const session = find(seat.tenant);
  Slot* const slot = session == nullptr ? nullptr : session->slot_on(seat.gpu);
  return {slot == nullptr ? nullptr : session, slot};
}

bool TenantTable::was_tenant(pid_t pid, base::TimePoint asked_at) const {
  return std::any_of(gone_.begin(), gone_.end(),
                     [&](const Gone& one) { return one.pid == pid && asked_at < one.at + kGoneIsListed; });
}

// A connection may end without its process. The memory of that process is then not on its way back, and is not to count
// twice.
std::uint64_t TenantTable::take_left(const Session& session, base::GpuIndex gpu) {
  std::uint64_t left = 0;
  for (Gone& gone : gone_) {
    if (session.process_start == 0 || gone.pid != session.peer.pid || gone.process_start != session.process_start)
      continue;
    const auto its = gone.left.find(gpu);
    if (its != gone.left.end()) left += std::exchange(its->second, 0);
  }
  return left;
}

}  // namespace gpumux::daemon
