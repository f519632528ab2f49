// SPDX-License-Identifier: Apache-2.0
// How far a revocation has got: of each revoked seat, and of its unit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "sched/events.h"
#include "sched/lease/timers.h"

namespace gpumux::sched {

// How far a revoked seat has got, as far as its tenant has said.
enum class Closing : std::uint8_t {
  kOpen,     // its gate may be open
  kClosed,   // its gate is closed
  kDrained,  // and its work has finished; it has not been let through since
  kRested,   // the same, of its own accord; its tenant does not know of the revocation
};

// A seat's part in a revocation of its unit, from the Revoke until the lease is over.
struct SeatRevocation {
  explicit SeatRevocation(Seat& seat) : answer(TimerKind::kAnswer, seat) {}

  bool was_ahead = false;  // had not drained when others of its gang were opened again
  bool late = false;       // may exceed the one undrained predecessor: silent, lent, or claimed
  TimePoint alive_at{};    // its last sign of life, or the first Revoke, which asks for one
  // Until it is asked whether it is there; then until it counts as silent; then until it is killed.
  Timer answer;

  Closing closing = Closing::kOpen;

  bool gate_closed() const { return closing >= Closing::kClosed; }
  bool drained() const { return closing >= Closing::kDrained; }
};

// When members of a half drained gang are opened again, and for how long.
class Pace {
 public:
  // How long the gang stays half drained before that.
  Duration pause() const { return pause_; }
  Duration next_moment() {
    pause_ = std::min(pause_, next_pause_);
    return std::exchange(moment_, std::min(moment_ * 2, kLongestMoment));
  }
  // A member has gone too far, or the others were only slow.
  void slow_down() {
    pause_ = next_pause_ = std::min(next_pause_ * 2, kLongestPause);
    moment_ = std::max(moment_ / 4, kShortestMoment);
  }

 private:
  // All are guesses. Most gangs that drain have drained within the first pause. Once a member is known to be behind,
  // the next moment comes as soon as a tenant looks at a GPU that drains for long. The longest pause is longer than any
  // kernel that is worth waiting for. The shortest moment is what it takes to wake a thread.
  static constexpr Duration kFirstPause = std::chrono::milliseconds(2);
  static constexpr Duration kNextPause = std::chrono::microseconds(250);
  static constexpr Duration kLongestPause = std::chrono::seconds(4);
  static constexpr Duration kFirstMoment = std::chrono::microseconds(250);
  static constexpr Duration kShortestMoment = std::chrono::microseconds(60);
  static constexpr Duration kLongestMoment = std::chrono::milliseconds(16);

  Duration pause_ = kFirstPause;
  Duration next_pause_ = kNextPause;
  Duration moment_ = kFirstMoment;
};

// From the moment when a unit is told to give its lease back until that is over.
struct UnitRevocation {
  UnitRevocation(Unit& unit, RevokeReason why, TimePoint at)
      : reason(why), began(at), stall(TimerKind::kStall, unit), half_drained(TimerKind::kHalfDrained, unit) {}

  RevokeReason reason;
  TimePoint began;
  bool freezes = false;  // work that does not drain in time is frozen. Decided once, so that all members do the same
  std::uint32_t silent = 0;  // seats that are: if any, the unit is passed over
  bool is_open = false;      // some members may submit again, for a moment
  Pace pace;
  Timer stall;         // when it counts as stalled
  Timer half_drained;  // when it is opened again, or closed
};

}  // namespace gpumux::sched
