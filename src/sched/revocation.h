// SPDX-License-Identifier: Apache-2.0
// How far a revocation has got: each revoked seat, and how many of the unit's seats are where.
#pragma once

#include <cstdint>
#include <optional>

#include "sched/events.h"
#include "sched/pace.h"
#include "sched/timers.h"

namespace gpumux::sched {

// How far a revoked seat has got, as far as its tenant has said.
enum class Closing : std::uint8_t {
  kOpen,      // its gate may be open
  kRecalled,  // the same; a Step was taken back, and what the tenant says counts when it has answered that Revoke
  kClosed,    // its gate is closed
  kDrained,   // and its work has finished; it has not been let through since
  kRested,    // the same, of its own accord; its tenant does not know of the revocation
};

// A seat's part in a revocation of its unit, from the Revoke until the lease is over or goes on.
struct SeatRevocation {
  explicit SeatRevocation(Seat& seat) : answer(TimerKind::kAnswer, seat) {}

  bool was_ahead = false;            // undrained at the last round of steps
  bool late = false;                 // may exceed the one undrained predecessor: silent, stalled, lent, or claimed
  std::uint32_t last_step = 0;       // how many the last Step allowed; 0: none, or the others were behind since
  std::uint32_t revokes_unseen = 0;  // not answered by RevokeSeen
  TimePoint alive_at{};              // its last sign of life, or the first Revoke, which asks for one
  // Until it is asked whether it is there; then until it counts as silent; then until it is killed.
  Timer answer;

  Closing closing() const { return closing_; }
  bool gate_closed() const { return closing_ >= Closing::kClosed; }
  bool drained() const { return closing_ >= Closing::kDrained; }
  // Submissions that a Step allows, not answered by Stepped nor taken back.
  std::uint32_t permits() const { return permits_; }

 private:
  friend struct UnitRevocation;
  Closing closing_ = Closing::kOpen;
  std::uint32_t permits_ = 0;
};

// Of a unit's seats that have a part in its revocation.
struct RevokedSeats {
  std::uint32_t all = 0;
  std::uint32_t undrained = 0;
  std::uint32_t silent = 0;
  std::uint32_t permitted = 0;  // that have permits
  friend bool operator==(const RevokedSeats& a, const RevokedSeats& b) = default;
};

// From the moment when a unit is told to give its lease back until that is over, or goes on.
struct UnitRevocation {
  UnitRevocation(Unit& unit, StepPace steps, RevokeReason why, TimePoint at)
      : reason(why), began(at), pace(steps), stall(TimerKind::kStall, unit), step(TimerKind::kStep, unit) {}

  RevokeReason reason;
  TimePoint began;
  // It stalled, and could not be taken back at once: the unit gets its GPUs back next.
  std::optional<TimePoint> returning_since;
  StepPace pace;
  Timer stall;  // when it counts as stalled
  Timer step;

  const RevokedSeats& seats() const { return seats_; }
  // Whether some seats have drained and others have not.
  bool is_divided() const { return seats_.undrained > 0 && seats_.undrained < seats_.all; }

  // A seat begins to have a part in it. It rested already, or its gate may be open.
  void add(SeatRevocation& seat, bool rested) {
    seat.closing_ = rested ? Closing::kRested : Closing::kOpen;
    ++seats_.all;
    seats_.undrained += rested ? 0u : 1u;
  }
  void set_closing(SeatRevocation& seat, Closing closing) {
    seats_.undrained -= seat.drained() ? 0u : 1u;
    seat.closing_ = closing;
    seats_.undrained += seat.drained() ? 0u : 1u;
  }
  void set_permits(SeatRevocation& seat, std::uint32_t count) {
    seats_.permitted -= seat.permits_ > 0 ? 1u : 0u;
    seat.permits_ = count;
    seats_.permitted += seat.permits_ > 0 ? 1u : 0u;
  }
  // Its permits are void. A Revoke must follow. Submissions may have been made since the tenant last said that it had
  // drained, and it may have said that before it knew of the Revoke: what it says counts again when it has answered.
  void take_back_step(SeatRevocation& seat) {
    if (seat.permits_ == 0) return;
    set_permits(seat, 0);
    set_closing(seat, Closing::kRecalled);
  }
  void begin_silence() { ++seats_.silent; }
  void end_silence() { --seats_.silent; }
  // The unit has other seats.
  void recount(const RevokedSeats& seats) { seats_ = seats; }

 private:
  RevokedSeats seats_;
};

}  // namespace gpumux::sched
