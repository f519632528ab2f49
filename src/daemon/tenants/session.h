// SPDX-License-Identifier: Apache-2.0
// One tenant's connection as messages see it: its peer, its lease page, and the GPU of each of its slots. Knows the
// wire, not the lease core and not sockets; translate.h joins it to the one, tenant_server.h to the other.
//
// Owned by the loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/standing.h"
#include "containers/record.h"
#include "daemon/loop/message_log.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/loop/trace.h"
#include "daemon/tenants/lease_page_view.h"
#include "daemon/tenants/ledger.h"
#include "os/file_descriptor.h"
#include "server/peers/access.h"
#include "settings/values.h"
#include "wire/messages.h"

namespace gpumux::daemon {

// A process belongs to a job, a run and its own GPUs. The core remembers each key that joins gangs, so their number is
// bounded.
inline constexpr std::size_t kMaxGangJoins = 16;

// Carries a session's messages: a socket, a test or the fuzzer.
class Carrier {
 public:
  // With `fd`, which stays the caller's (negative: none). False: it could not be sent and will not be: the tenant does
  // not read, or is gone. The session then ends.
  virtual bool send(std::span<const std::byte> message, int fd) = 0;
  // SIGKILL to the tenant.
  virtual void kill() = 0;

 protected:
  ~Carrier() = default;
};

// The state that the daemon last told a slot, remembered here because the page is not to be trusted.
struct Slot {
  std::uint32_t number = 0;  // the tenant's own for the seat
  base::GpuIndex gpu;
  bool granted = false;
  bool exclusive = true;
  base::LeaseEpoch epoch;
  settings::Limit<base::Duration> in_flight;  // the bound that it was told
  wire::Memory memory;                        // its last report, unchanged: for people
  Ledger::Entry* entry = nullptr;             // its place in the ledger, from when it is opened on
  MemoryTime memory_time;
  std::uint64_t counted = 0;  // of its allocations, in its job's memory
  // The mover that its content goes through.
  enum class Mover : std::uint8_t { kNone, kOurs, kEarlierDaemons };
  Mover mover = Mover::kNone;
  std::uint32_t mover_connection = 0;  // the number of the latest that it was given here; 0: none
};

// The MPS server that a process is a client of.
struct MpsClient {
  std::uint32_t server = 0;  // its number; 0: none
  std::uint32_t thread_percentage = 100;
};

class Session {
 public:
  Session(base::TenantId tenant, server::Peer who, Carrier& carrier)
      : id(tenant), peer(std::move(who)), label(TenantLabel::make(peer.pid, peer.uid, "")), carrier_(carrier) {}

  const base::TenantId id;
  const server::Peer peer;
  bool welcomed = false;
  std::uint64_t process_start = 0;  // when its process started (process_info.h); 0: not known
  LeasePageView page;
  std::shared_ptr<const TenantLabel> label;  // without a name until Hello
  // A tenant's words cost log lines: 20 at once, 2 a second afterwards.
  RateLimit notes{20, 2};
  std::uint64_t notes_suppressed = 0;
  std::size_t gang_joins = 0;
  std::string run;             // that it belongs to (run_suspension.h); empty: none
  bool is_suspended = false;   // the run is
  os::FileDescriptor process;  // a pidfd; set when the session ends, if there is one
  // Of the processes that have a quota together: one for each claim of its container, or else one for its run.
  std::vector<std::uint64_t> quota_groups;
  std::uint64_t memory_limit = 0;  // of its run, on each GPU; 0: none, or its claims' quotas count
  base::Standing standing;
  base::Standing first_standing;  // the standing that it asked for, as far as it was allowed
  bool ends_own_turns = false;
  bool knows_mover = false;  // its library does
  // Why its unfinished work drains when its turn is over. Empty: it is frozen, as far as is known.
  std::string not_interrupted;
  MpsClient mps;
  std::string trust_domain;  // trust_domain.h; set before the first message
  // The one that its process is in (container.h); null: none. Set before the first message.
  std::shared_ptr<const containers::Record> container;

  template <class Message>
  bool send(const Message& message, int fd = -1) {
    if (ended_) return false;
    debug_message("message to a tenant", id, peer.pid, message);
    return carrier_.send(wire::encode(message).bytes(), fd);
  }
  void kill() { carrier_.kill(); }

  // Null: not open.
  Slot* slot(std::uint32_t number);
  Slot* slot_on(base::GpuIndex gpu);
  const std::map<std::uint32_t, Slot>& slots() const { return slots_; }
  // REQUIRES: neither the number nor the GPU has a slot.
  Slot& open_slot(std::uint32_t number, base::GpuIndex gpu);
  void close_slot(std::uint32_t number) { slots_.erase(number); }

  // Set once, when it is decided that the session ends; nothing is sent any more. The reason is a literal.
  bool ended() const { return ended_; }
  void end() { ended_ = true; }

 private:
  Carrier& carrier_;
  bool ended_ = false;
  std::map<std::uint32_t, Slot> slots_;  // that are open, by number
};

// Program names and notes are shown to people: no control characters reach a terminal.
std::string printable(std::string_view text);

inline base::SeatId seat_of(const Session& session, const Slot& slot) { return {session.id, slot.gpu}; }

}  // namespace gpumux::daemon
