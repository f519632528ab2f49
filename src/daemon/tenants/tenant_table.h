// SPDX-License-Identifier: Apache-2.0
// The tenants that are connected, by number, and the processes that were tenants a moment ago.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/ids.h"
#include "daemon/gpus/leases.h"
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

class TenantTable {
 public:
  explicit TenantTable(const Leases& leases) : leases_(leases) {}
  TenantTable(const TenantTable&) = delete;
  TenantTable& operator=(const TenantTable&) = delete;

  // Called when a tenant has said Hello, has opened or closed a seat, or has been parked or resumed with its run.
  void on_changed(std::function<void(const Session&)> callback) { changed_ = std::move(callback); }
  void changed(const Session& session) const { changed_(session); }

  // A new connection. The session must live until remove().
  void add(Session& session) { sessions_[session.id] = &session; }
  // The session is over. REQUIRES: the machine still has its seats.
  void remove(const Session& session, base::TimePoint now);

  const std::unordered_map<base::TenantId, Session*>& sessions() const { return sessions_; }
  Session* find(base::TenantId tenant) const;
  // Both null: the seat is not open.
  std::pair<Session*, Slot*> find_seat(base::SeatId seat) const;
  // visit(Session&, const Slot&) for each open seat.
  template <class Visit>
  void for_each_seat(Visit visit) const {
    for (const auto& [id, session] : sessions_) {
      for (const auto& [number, slot] : session->slots()) visit(*session, slot);
    }
  }

  // Whether that process was a tenant a moment before `asked_at`: a list of a GPU's processes that was made then may
  // still have it.
  bool was_tenant(pid_t pid, base::TimePoint asked_at) const;
  // Bytes of the GPU that the driver may not have back yet from earlier connections of the session's process. Each byte
  // is taken once.
  std::uint64_t take_left(const Session& session, base::GpuIndex gpu);

 private:
  // A process that was a tenant until `at`; only of the last moments.
  struct Gone {
    pid_t pid = 0;
    std::uint64_t process_start = 0;
    base::TimePoint at{};
    std::map<base::GpuIndex, std::uint64_t> left;  // taken of GPUs
  };

  const Leases& leases_;
  std::function<void(const Session&)> changed_ = [](const Session&) {};
  std::unordered_map<base::TenantId, Session*> sessions_;
  std::deque<Gone> gone_;
};

}  // namespace gpumux::daemon
