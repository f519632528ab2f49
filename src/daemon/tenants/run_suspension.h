// SPDX-License-Identifier: Apache-2.0
// Runs that are held off the GPUs. A run is a process tree: a job's programs, or the processes of one `gpumux run`. Its
// tenants name it in their Hello, and the kernel names its user.
//
// Suspending a run is the first half of making it stand still. Its leases are revoked, its work drains, and all of its
// memory that can leave the GPUs does. Its memory leaves even if no seat needs the room. When that is done the run is
// *parked*, and the job's runner or another caller may freeze its processes. From the first moment on the daemon tells
// it as little as possible, and once it is parked nothing at all. A frozen process reads nothing. Unread messages would
// pile up and end its connection.
//
// A suspended run stays so without any tenant: those that come get no lease. Resuming comes after thawing.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

// A suspended run is stuck if no memory has left for kClearingPatience, for one of two reasons. Host memory is used up,
// or the tenant reports itself stuck. Host memory is made at 2 GB/s at least, a quarter of a gigabyte at a time.
// Without either reason the run may be waiting for many others, and counts as stuck after kLongestClearingPatience.
inline constexpr base::Duration kClearingPatience = std::chrono::seconds(2);
inline constexpr base::Duration kLongestClearingPatience = std::chrono::seconds(10);

class HostMemory;
class Leases;
class TenantTable;

using RunKey = std::pair<uid_t, std::string>;

struct RunState {
  std::size_t tenants = 0;
  std::size_t seats = 0;
  std::size_t undrained = 0;           // of these, have a lease, or belong to a gang with a lease
  std::uint64_t evictable_on_gpu = 0;  // bytes that can leave the GPUs and are there
  std::uint64_t unpageable = 0;        // bytes that stay there
  std::uint64_t allocated = 0;         // on the GPUs or not
  std::size_t left_to_driver = 0;      // seats that say nothing of their memory: it stays where it is
  // It is suspended, and all that follows from that has happened: it may be frozen.
  bool is_parked = false;
  // It does not get there as things are. It may do so later.
  bool is_stuck = false;
  std::string why;  // why it is not parked, for people; empty: it is, or is not suspended
  bool operator==(const RunState&) const = default;
};

// The memory of a run, or of all other programs, that belongs to one GPU, in bytes.
struct RunMemory {
  std::uint64_t on_gpu = 0;
  std::uint64_t unpageable = 0;  // of that
  std::uint64_t allocated = 0;   // there or in host memory
};

class RunSuspension {
 public:
  RunSuspension(Leases& leases, const HostMemory& host, const TenantTable& table)
      : leases_(leases), host_(host), table_(table) {}
  RunSuspension(const RunSuspension&) = delete;
  RunSuspension& operator=(const RunSuspension&) = delete;
  // Called in look() when the state of a suspended run has changed: must not call back. Each run that is suspended is
  // named at least once.
  void on_changed(std::function<void(uid_t, const std::string&)> callback) { changed_ = std::move(callback); }

  // A tenant that has named its run, and one that is gone.
  void joined(Session& session);
  void left(const Session& session);
  // It has said something.
  void heard(const Session& session);

  // All seats of a user's run are held off the GPUs, also those that come later, until it is resumed. To be followed by
  // Leases::rest.
  void set_suspended(const RunKey& key, bool is_suspended);
  bool is_suspended(const RunKey& key) const;
  RunState state(const RunKey& key) const;
  // Nothing of its run is on its way any more, as far as was seen when everything last came to rest. Its processes may
  // be frozen.
  bool is_parked(const Session& session) const;

  // As the seat reported it; nothing from a seat that does not report memory.
  RunMemory memory_of(base::SeatId seat) const;
  // By GPU index: the memory of tenants that belong to none of these runs.
  std::vector<RunMemory> memory_outside(const std::set<RunKey>& runs) const;

  // After each Leases::rest(), when everything has come to rest: calls on_changed for the runs that have changed, and
  // TenantTable::changed for the tenants of a run that has parked. Also called when nothing happens, about once a
  // second.
  void look();

 private:
  struct Suspension {
    base::TimePoint least_since;  // since when there have been no fewer bytes that can leave than `least_on_gpu`
    std::uint64_t least_on_gpu = std::numeric_limits<std::uint64_t>::max();
    RunState told{};
  };
  struct Run {
    std::optional<Suspension> suspension;
    std::map<base::TenantId, Session*> tenants;
  };
  static RunKey key_of(const Session& session) { return {session.peer.uid, session.run}; }
  static std::vector<base::SeatId> seats_of(const Run& run);
  RunState state_of(const Run& run) const;
  void add(const Run& run, const Session& session, const Slot& slot, RunState& state) const;
  std::string why_stuck(const Suspension& suspension, const Session& session, base::SeatId seat,
                        const RunState& of_seat) const;
  bool is_host_full() const;
  void note_progress(const Run& run, Suspension& suspension) const;

  Leases& leases_;
  const HostMemory& host_;
  const TenantTable& table_;
  std::function<void(uid_t, const std::string&)> changed_;
  std::map<RunKey, Run> runs_;
  std::set<RunKey> unsettled_;  // suspended ones of which something may have changed
};

}  // namespace gpumux::daemon
