// SPDX-License-Identifier: Apache-2.0
// The chunks of host memory, each with its number and its state. move() makes every change of state: it checks the
// change, and keeps the sums of states, seats and accounts. So no sum needs a look at all chunks.
//
//   kMaking -> kReady -> kLent <-> kReturned
//   kLent, kReturned -> kLeaving -> kUnmaking    if a seat has it mapped
//   kReady, kLent, kReturned -> kUnmaking        if no seat has
//
// After every call (checked by check_invariants):
//   1. A chunk that is made, and not being unmade, has its file. No other chunk has one.
//   2. Only a chunk that a tenant has had has keepers. A leaving chunk has at least one.
//   3. Seats and accounts count the chunks that are lent, accounts also those that leave.
//
// Owned by HostMemory, on its thread.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/peers/account.h"
#include "daemon/tenants/host_seats.h"
#include "daemon/tenants/host_shares.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

struct HostChunk {
  enum class State : std::uint8_t {
    kMaking,    // the pool makes it
    kReady,     // no tenant has had it
    kLent,      // `borrower` has it
    kReturned,  // it has come back, and may be lent to seats of `domain`
    kLeaving,   // it is lent no more, and `keepers` are told to let go of it
    kUnmaking,  // the pool gives it back to the machine
  };

  explicit HostChunk(std::uint64_t number) : id(number) {}
  State state() const { return state_; }

  const std::uint64_t id;
  os::FileDescriptor memory;
  HostSeat borrower;              // the latest
  Account account;                // the borrower's; its share counts the chunk while it leaves
  std::string domain;             // of the tenants that have had it: they may get it as it is
  std::vector<HostSeat> keepers;  // have it mapped, and not on loan; some may have been told to let go of it
  std::uint32_t looks = 0;        // since it is to go

 private:
  friend class HostChunks;
  State state_ = State::kMaking;
  std::list<HostChunk*>::iterator place_;  // in HostChunks::in(state_)
};

class HostChunks {
 public:
  using State = HostChunk::State;
  using List = std::list<HostChunk*>;

  // `first_id`: the number of the first chunk; the others follow.
  HostChunks(std::uint64_t first_id, HostSeats& seats, HostShares& shares)
      : next_id_(first_id), seats_(seats), shares_(shares) {}

  static bool may_move(State from, State to);

  // A new one, in kMaking.
  HostChunk& add();
  // REQUIRES: may_move(chunk.state(), to). A chunk has its borrower and account before it is lent.
  void move(HostChunk& chunk, State to);
  // REQUIRES: its making has failed, or its unmaking is over.
  void remove(HostChunk& chunk);

  HostChunk* find(std::uint64_t id);
  // In the order in which they came into that state.
  const List& in(State state) const { return lists_[static_cast<std::size_t>(state)]; }
  std::size_t count(State state) const { return in(state).size(); }
  std::size_t count() const { return chunks_.size(); }

  // Empty, or the first fault. For tests: it counts all chunks again.
  std::string check_invariants() const;

 private:
  static constexpr std::size_t kStates = static_cast<std::size_t>(State::kUnmaking) + 1;
  List& list(State state) { return lists_[static_cast<std::size_t>(state)]; }
  std::string check(const HostChunk& chunk) const;

  std::uint64_t next_id_;
  HostSeats& seats_;
  HostShares& shares_;
  std::unordered_map<std::uint64_t, HostChunk> chunks_;  // by id
  std::array<List, kStates> lists_;
  std::string broken_;  // the first change of state that may not be
};

}  // namespace gpumux::daemon
