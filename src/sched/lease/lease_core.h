// SPDX-License-Identifier: Apache-2.0
// The lease core: which seat may use which GPU, when.
//
// Pure: no clock, no I/O, no threads, no randomness, no floating point, no iteration over unordered containers. Every
// GPU of the machine is in one core, because gangs are granted across GPUs in one step. Owned by one thread (the
// daemon's loop, a simulation, a test).
//
// Invariants after every step (checked by check_invariants):
//   1. No other seat may submit to the GPU of an exclusive holder. A shared holder shares it only with shared holders.
//      Exception: a thread that was inside when its seat stalled or fell silent.
//   2. A seat is holding, then draining, then drained, or it counts as that. A GPU has at most one predecessor of its
//      holders that drains, a unit with closed gates. It has more after a change from concurrent to serial, and grants
//      no new lease until they have drained. It has more also if seats were silent, or came back from a restart
//      draining.
//   3. A gang's seats are granted and revoked together, all or none. A seat that drains of its own accord while others
//      of its gang hold keeps its place.
//   4. Epochs of a GPU only grow.
//   5. A unit that waits is granted as soon as its GPUs are free and none of them is reserved.
//   6. A tenant that is gone holds nothing and waits for nothing.
//   7. A unit stands in its queue by its group's virtual time, whichever seat of the group has had that time.
//   8. A unit with a suspended seat waits for nothing and is not granted. It holds only until it can be drained or
//      frozen. A frozen gang whose memory cannot leave gets another turn for that, unless a process of it may stand
//      still.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sched/events.h"
#include "sched/turns.h"

namespace gpumux::sched {

enum class SeatPhase {
  kIdle,
  kWaiting,
  kHolding,
  kRevoked /* told to close */,
  kDraining /* gate closed */,
  kSilent,   /* passed over */
  kSuspended /* and drained */
};

// A seat's totals since it was opened.
struct SeatTotals {
  std::uint64_t grants = 0;
  std::uint64_t switches = 0;  // of those, grants after another unit had the GPU; a unit's seats count as one
  Duration held{};             // lease time
  Duration idle{};             // of that, as far as it is known: idle before it gave leases up
  Duration waited{};           // waiting time
  Duration used() const { return held > idle ? held - idle : Duration::zero(); }
};

// For people: `gpumux status`.
struct SeatView : SeatTotals {
  SeatId seat;
  SeatPhase phase = SeatPhase::kIdle;
  LeaseKind kind = LeaseKind::kExclusive;
  LeaseEpoch epoch;
  TimePoint since;                // when this phase began
  std::uint32_t queue_place = 0;  // 1: next; 0: not waiting
  // "quantum of tenant 3", "higher priority of tenant 3", "gang needs GPU 1", "tenant 3 drains", ...: empty when not
  // waiting
  std::string waits_for;
  Duration wait_p50{}, wait_p99{};  // from request to grant: what half of all were not above, and 99 %
  std::string gang;                 // empty: none
  std::int32_t priority = 0;
  std::uint32_t weight = 1;
  std::uint32_t cap = kNoCap;
  bool poisoned = false;
  bool is_frozen = false;  // its work stands still in the middle until its next lease
};

struct GpuView {
  GpuIndex gpu;
  GpuSettings settings;
  Limit<Duration> quantum{};  // in effect: what kAutomatic came to
  Duration switch_cost{};     // smoothed: how long no seat could run, for a drain or for memory that came
  std::uint64_t switches = 0;
  std::uint64_t interrupts = 0;  // leases that ended with work that was frozen
  Duration held{};               // time with at least one holder
  std::vector<SeatView> seats;   // holders first, then waiters in order, then the rest
};

// A seat's use of its GPU.
struct SeatUse {
  SeatId seat;
  Duration wanted{};      // it held a lease, and was not known to be idle, or waited for one; so far
  bool has_turn = false;  // an exclusive lease
};

class LeaseCore {
 public:
  LeaseCore();
  ~LeaseCore();
  LeaseCore(const LeaseCore&) = delete;
  LeaseCore& operator=(const LeaseCore&) = delete;

  // Applies one event and appends the commands that follow, in order. `now` never goes backwards. Events that make no
  // sense (an unknown tenant or seat, a stale epoch, a second Hello) change nothing: tenants are hostile and messages
  // cross.
  void apply(TimePoint now, const Event& event, std::vector<Command>& commands);

  // When TimePassed is wanted next; none: only other events can change anything.
  std::optional<TimePoint> next_deadline() const;

  std::vector<GpuView> view(TimePoint now) const;

  // All seats of a GPU, nearest turn first: holders, then the seat that is next, then the others by priority. Within a
  // priority, waiting seats come first, then leaving ones, then idle ones, longest idle last. Suspended seats are last
  // of all. Writes over `turns`.
  void turns(GpuIndex gpu, std::vector<Turn>& turns) const;

  // All seats of a GPU that are not suspended, ascending. Writes over `uses`.
  void uses(TimePoint now, GpuIndex gpu, std::vector<SeatUse>& uses) const;
  // In effect: what kAutomatic comes to.
  Limit<Duration> quantum(GpuIndex gpu) const;

  // Whether its seats that are not suspended differ in what the driver's time slicing does not know: priority, share,
  // cap, a common share. Then only exclusive leases can give them their parts.
  bool wants_turns(GpuIndex gpu) const;
  // Whether a seat there has not drained since its revocation stalled. Turns cannot take the GPU from its work.
  bool has_overruns(GpuIndex gpu) const;

  // None: there is no such seat.
  std::optional<SeatPhase> phase(SeatId seat) const;
  // All zero if there is no such seat.
  SeatTotals totals(TimePoint now, SeatId seat) const;

  // Empty, or the first violated invariant in words. Costs time linear in everything: for tests and simulations.
  std::string check_invariants() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gpumux::sched
