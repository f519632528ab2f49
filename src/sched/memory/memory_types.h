// SPDX-License-Identifier: Apache-2.0
// What goes into the residency planner (residency.h), and what comes out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sched/events.h"
#include "sched/memory/foreign_use.h"

namespace gpumux::sched {

// A seat's report about itself (wire: Memory), in bytes.
struct MemoryReport {
  std::uint32_t sequence = 0;  // the newest bound that is in force
  std::uint64_t allocated = 0;
  std::uint64_t resident = 0;
  std::uint64_t evicted = 0;
  std::uint64_t unpageable = 0;
  std::uint64_t hidden = 0;  // of it, room that the driver has refused: there is no memory behind it
  // Unified memory, part of `allocated` and of nothing else. The driver moves its pages, and they may exceed the GPU.
  // They are wanted on the GPU while the seat holds a lease, and make way for other allocations.
  std::uint64_t managed = 0;
  std::uint64_t managed_away = 0;  // of it, moved out of the way by the seat itself
  bool stuck = false;              // it cannot give anything up
  // A job of its pager's is under way: what is being restored is counted twice, as evicted and as there.
  bool moving = false;
};

// The most that the seats of one process tree may have together, on each GPU.
struct Quota {
  std::uint64_t group = 0;  // 0: none
  std::uint64_t bytes = 0;
};

// A GPU's use beyond what seats report: other programs, and contexts of tenants.
struct Foreign {
  std::uint64_t bytes = 0;
  std::optional<TimePoint> seen_at{};          // when a look last showed it; none: no look has
  std::optional<ForeignUse::Unseen> unseen{};  // of `bytes`
};

// The owner of a seat.
struct SeatOwner {
  Quota quota;
  std::uint64_t account = 0;  // the unit of sharing: a user, or a container
};

// Why an allocation is impossible, or has become so. Trace, metrics and the API have these names (`word_of` in
// daemon/gpus/refusals.h), the log has sentences (`in_words` in daemon/gpus/leases.cc).
enum class Refusal {
  kNone,
  kQuota,         // the seats of its quota would have more than that together
  kGpuMemory,     // its GPU cannot hold it together with what stays there
  kHostMemory,    // all allocations would be more than GPUs and host memory hold
  kNothingMoves,  // it could be had, and has not come
};

struct RoomBound {
  SeatId seat;
  std::uint32_t sequence = 0;
  std::uint64_t room = 0;
  std::uint64_t commitment = 0;
  std::uint64_t total = 0;   // the size of its GPU that the program is told
  std::uint64_t most = 0;    // the most that it could be given now if it asked for it, what it has included
  bool is_limited = false;   // it has a quota
  bool is_stranded = false;  // what it lacks cannot come, and its program is told so
  std::uint32_t ticket = 0;  // the newest that is answered
  Refusal refusal = Refusal::kNone;
  bool refused() const { return refusal != Refusal::kNone; }
};

// The holder's turn is nearly over, and this much of its managed memory is in the next seat's way.
struct ExpectEviction {
  SeatId seat;
  std::uint64_t managed = 0;  // bytes
};

struct ResidencyCommands {
  std::vector<MemoryExpected> expected;  // for the lease core; turns may be others when it knows
  std::vector<RoomBound> bounds;
  std::vector<ExpectEviction> evictions;
};

// For people.
struct SeatMemoryView {
  SeatId seat;
  MemoryReport report;
  bool speaks = false;     // it has reported; otherwise its memory counts as foreign
  bool answers = true;     // it confirms its bounds; otherwise it is taken to be stopped
  bool is_behind = false;  // it has kMaxBoundsUnderWay bounds to confirm, and is told nothing more until it does
  std::uint64_t room = 0;
  std::uint64_t counted = 0;  // as having: what it may have had at most by now
  std::uint64_t commitment = 0;
  std::uint64_t promised = 0;  // the most that it may have allocated; reports beyond that are not believed
  std::uint64_t wanted = 0;    // more than that, and waits for it
  std::uint64_t quota = 0;
  bool is_suspended = false;
  bool is_told = true;         // it has confirmed all bounds, and is not about to be told less
  bool may_speak_yet = false;  // it has not reported, but has just come
};
struct GpuMemory {
  std::uint64_t capacity = 0;
  std::uint64_t reserve = 0;
  std::uint64_t foreign = 0;
  std::uint64_t returning = 0;  // of tenants that are gone, until the driver has it back
  std::vector<SeatMemoryView> seats;
};

// Host memory that a GPU's programs may need, in bytes. An allocation counts from the moment when a thread asks for it.
// `evicted` is for what does not fit on the GPU, and for all memory of suspended seats that can leave. `copies` keeps
// copies of what has come back, so that it need not be copied out again while unchanged. They are at most what takes
// turns, and at most what fits on the GPU. If two programs or more have nearly filled the GPU, their memory beyond all
// but this part of it counts as not fitting. They go on to fill it faster than host memory is made.
inline constexpr std::uint64_t kPreparedPart = 8;
struct HostDemand {
  std::uint64_t evicted = 0;
  std::uint64_t copies = 0;
};

// The facts about a GPU's seats that decide whether they can all run at once.
struct Togetherness {
  std::size_t suspended = 0;  // left out of all that follows
  std::size_t seats = 0;
  std::size_t unknown = 0;    // of them, have not said yet whether they report
  std::size_t silent = 0;     // do not report
  std::uint64_t evicted = 0;  // bytes
};

}  // namespace gpumux::sched
