// SPDX-License-Identifier: Apache-2.0
// Connects tenants' seats to the node's mover (node_mover.h), and tells it how much host memory each may have.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/ids.h"
#include "daemon/gpus/leases.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/node_mover.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/tenant_mail.h"
#include "daemon/tenants/tenant_table.h"

namespace gpumux::daemon {

class MoverSeats {
 public:
  MoverSeats(const Leases& leases, HostMemory& host, const TenantTable& table, TenantMail& mail)
      : leases_(leases), host_(host), table_(table), mail_(mail) {}
  MoverSeats(const MoverSeats&) = delete;
  MoverSeats& operator=(const MoverSeats&) = delete;

  // From now on seats are connected to this mover. Before the first tenant.
  void set_mover(NodeMover& mover);
  // Why no mover serves; empty: one does, or none is needed yet. To be followed by Translator::report_memory_again.
  void set_why_none(std::string why) { why_none_ = std::move(why); }
  const std::string& why_none() const { return why_none_; }
  // A mover of this daemon's.
  bool is_mover(pid_t pid) const { return mover_ != nullptr && mover_->is_its(pid); }

  // `has_mover`: the seat comes back with a connection to a mover.
  void opened(Session& session, Slot& slot, bool has_mover);
  // The seat asks for a connection in place of the one with this number, its latest.
  void wanted(Session& session, Slot& slot, std::uint32_t number);
  // The seat has a new report of its memory, and the machine knows it.
  void reported(const Session& session, const Slot& slot);
  // The seat is about to close.
  void closed(const Session& session, Slot& slot);
  // The tenant is gone. REQUIRES: the table does not have it any more.
  void left(const Session& session);
  // Whether a mover can take the seat's memory off its GPU.
  bool can_move(const Session& session, const Slot& slot) const {
    return session.knows_mover && (slot.mover == Slot::Mover::kEarlierDaemons || why_none_.empty());
  }

 private:
  void connect(Session& session, Slot& slot);
  void connected(Session& session, Slot& slot, const os::FileDescriptor& connection);
  void count_elsewhere();
  std::uint64_t evictable(base::SeatId seat) const;

  const Leases& leases_;
  HostMemory& host_;
  const TenantTable& table_;
  TenantMail& mail_;
  NodeMover* mover_ = nullptr;  // none: no memory moves
  std::string why_none_;
  std::uint32_t connections_ = 0;  // that were given
};

}  // namespace gpumux::daemon
