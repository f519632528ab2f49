// SPDX-License-Identifier: Apache-2.0
// What becomes of the memory that a seat lacks: it comes, it stays away, or something is in its way. The lease core
// goes by that.
//
// Pure but for what follows `note`: these write into the accounts what has been found, and since when.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "sched/memory/accounts.h"
#include "sched/memory/plan.h"

namespace gpumux::sched {

// The seats of a GPU together, in bytes.
struct Together {
  std::uint64_t kept = 0;  // cannot leave
  std::uint64_t on_gpu = 0;
  // Of the seats that hold a lease: one, or two if a seat has borrowed the turn.
  const SeatAccount* holder = nullptr;  // the turn is its own
  std::uint64_t held = 0;               // could leave if they did not hold
  bool any_short = false;               // there is less than they need
};
Together together(const GpuAccount& gpu, InTurn order, std::span<const SeatPlan> plans);

// Why the seat cannot have what it lacks, even if the others give up all they can; kUnknown: it can. A holder for which
// nothing moves is tried again later, or as soon as it would fit together with the memory that is there.
MemoryOutlook obstacle_of(TimePoint now, const GpuAccount& gpu, const SeatAccount& seat, const Together& all);
// Of a seat with that part of the plan.
MemoryOutlook outlook_of(TimePoint now, const GpuAccount& gpu, const SeatAccount& seat, const SeatPlan& plan,
                         const Together& all);
// When the outlook of the seat may be another one although nothing has happened.
std::optional<TimePoint> outlook_changes_at(const GpuAccount& gpu, const SeatAccount& seat);
// When the next seat is stranded if nothing moves until then.
std::optional<TimePoint> strands_at(const GpuAccount& gpu);

// Tells the lease core of each outlook that is another one.
void note_outlooks(TimePoint now, GpuAccount& gpu, InTurn order, std::span<const SeatPlan> plans,
                   ResidencyCommands& commands);

// Seats that block each other would wait for ever. They do block each other if no seat is left whose work can run and
// end, and nothing in their way has moved for kRoomPatience. (By then looks have shown what programs that have ended
// gave back.) Then the newest seat is stranded: its program gets CUDA_ERROR_OUT_OF_MEMORY for its work. When the
// program ends, or destroys its contexts, the others go on. If it does neither within kStrandedPatience, the next
// newest seat is stranded, too. Programs outside gpumux may end at any time: they are waited for.
void note_stranded(TimePoint now, GpuAccount& gpu, ResidencyCommands& commands);

// Managed memory takes long to leave, and no seat counts it as being there. So it begins to leave before the turn ends,
// as far as the next seat will lack room.
void note_evictions(TimePoint now, GpuAccount& gpu, InTurn order, std::span<const SeatPlan> plans,
                    ResidencyCommands& commands);

}  // namespace gpumux::sched
