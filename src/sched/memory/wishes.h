// SPDX-License-Identifier: Apache-2.0
// Whether a seat's wish for memory can come true, and how it is answered.
//
// A wish gets what it asks for, or a refusal. It is refused if no event could make it fit, if nothing has moved for
// kRoomPatience, or after kLongestRoomWait. Memory of programs that are no tenants is seen late. So a wish is not
// hopeless before a look has shown it, and never while tenants of an earlier daemon are awaited.
//
// Pure: asks the accounts, and changes nothing.
#pragma once

#include <cstdint>

#include "sched/memory/accounts.h"

namespace gpumux::sched {

class Wishes {
 public:
  explicit Wishes(const Accounts& accounts) : accounts_(accounts) {}

  // All of these are for seats with a wish.

  // Why the seat can no longer be given what it waits for. Memory that dead tenants have left comes back. `foreign`: as
  // if there were this much foreign memory.
  Refusal refusal_of(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t foreign) const;
  bool is_possible(const GpuAccount& gpu, const SeatAccount& seat) const {
    return is_possible(gpu, seat, gpu.foreign.bytes);
  }
  // Whether only other programs' memory is in the way, and may have left since the last look.
  bool may_have_left(const GpuAccount& gpu, const SeatAccount& seat) const;
  // The same of memory that no look has shown: it is only expected.
  bool may_not_come(const GpuAccount& gpu, const SeatAccount& seat) const;
  // Whether its answer depends on a new look at the GPU's memory.
  bool awaits_look(const GpuAccount& gpu, const SeatAccount& seat) const;
  // When it is refused, if nothing moves until then.
  TimePoint refused_at(const GpuAccount& gpu, const SeatAccount& seat) const;
  // When its answer may be another one although nothing has happened.
  TimePoint next_deadline(const GpuAccount& gpu, const SeatAccount& seat) const;

  struct Answer {
    enum class Kind {
      kNone,        // it goes on waiting
      kAll,         // it is told all that it has asked for
      kCommitment,  // without the room: the seat asks again when it holds a lease
      kRefused,
    } kind = Kind::kNone;
    Refusal refusal = Refusal::kNone;  // why
  };
  // If it is told this room and commitment.
  Answer answer(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t room, std::uint64_t commitment) const;

 private:
  bool is_possible(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t foreign) const {
    return refusal_of(gpu, seat, foreign) == Refusal::kNone;
  }
  TimePoint looked_for_since(const SeatAccount& seat) const {
    return latest(seat.wish->since, accounts_.awaited_until);
  }

  const Accounts& accounts_;
};

}  // namespace gpumux::sched
