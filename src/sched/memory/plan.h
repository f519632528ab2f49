// SPDX-License-Identifier: Apache-2.0
// A plan for one GPU: how much memory each seat should be told that it may have. It is pure, and made from scratch each
// time.
//
// Aim. Each seat has a floor below which it cannot go. If it holds a lease or cannot give anything up, that is all that
// it has; otherwise its unpageable memory. The room above all floors is given away in the order of the turns, nearest
// first. Each seat gets what it needs, as far as there is room. A holder and the next seat need all that they have,
// evicted or not, and what they wait to allocate. The others need what they have on the GPU. A member of a gang that is
// being revoked is as good as a holder until all have drained. It may have to be let through, and without its memory
// the gang would not drain.
//
// So this is the order in which seats are evicted: the one whose turn is furthest away first (LeaseCore::turns says
// which that is). It loses what is lacking and no more, and no seat gets anything back before it is next.
//
// A suspended seat that has drained needs nothing. It is told only what it has to give up: its process may be frozen.
//
// Share. Room that no seat needs is dealt out ahead, so that allocating seldom has to ask. A seat with less to spare
// than half an even share gets a share. A seat with more keeps it, until all of it together is more than there is.
// Without that stickiness, each change of hands would cost messages between programs whose memory fits together.
//
// Go there. A lower bound is sent at once, to any seat. A seat that holds a lease keeps what it has, and a draining one
// evicts as soon as it has drained. The planner need not know in which of these states a seat is. A higher bound is
// sent as far as what all seats *count* for leaves room. It goes out in the order of the turns, and to seats that need
// it before seats to which it is spare. When a report makes a seat count for less, the next plan raises another seat.
// So a switch moves both ways at once.
//
// Commitments are shared out in the same way, over the GPU and the host memory together. But only the GPU's own memory
// is dealt out as spare. Host memory is for the seats of all GPUs, and must be left for a seat that asks for some.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sched/memory/accounts.h"

namespace gpumux::sched {

// A bound is raised by less than this only if it is then where it belongs. The pager moves chunks of 64 MiB and more,
// so smaller raises would be messages of no use.
inline constexpr std::uint64_t kLeastRaise = std::uint64_t{32} << 20;

// One seat's part of a plan, in bytes. All zero if it does not count.
struct SeatPlan {
  std::uint64_t need = 0;
  std::uint64_t fair = 0;  // its part of the memory there is, with nothing to spare
  std::uint64_t room = 0;
  std::uint64_t commitment = 0;
};

// The GPU's seats, nearest turn first.
using InTurn = std::span<SeatAccount* const>;

// The plan for each seat, by its place in `order`. The seats have the turns of that order.
std::vector<SeatPlan> make_plan(const Accounts& accounts, const GpuAccount& gpu, InTurn order);

// The most that each seat could have allocated, by its place in `order`. A wish for more than that is refused, as
// things are (Wishes::refusal_of).
std::vector<std::uint64_t> most_of(const Accounts& accounts, const GpuAccount& gpu, InTurn order);

}  // namespace gpumux::sched
