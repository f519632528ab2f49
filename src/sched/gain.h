// SPDX-License-Identifier: Apache-2.0
// Whether a GPU's programs get more done at once or by turns: measured, where their memory fits together.
//
// The problem. Under the driver's own time slicing four programs of small kernels get half of what one gets alone;
// programs of large kernels, or with pauses, lose nothing, and turns would only cost them switches. Nothing but trying
// tells which. So now and then the other way is tried for a moment, and compared with the moment before: each program
// with itself, for nobody knows what one program's submission is worth in another's. The way in which the programs get
// more of their speed on average is kept until another trial says otherwise. A change needs a clear difference, twice
// in a row, so that noise does not make the GPU change to and fro; and all trials together take a fiftieth of the time
// at most, however often the load changes.
//
// Pure: told what seats have completed, and the time. One for each GPU. No floating point, no order but that of seats.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sched/events.h"

namespace gpumux::sched {

enum class Way : std::uint8_t { kAtOnce, kByTurns };

// How long each side of a trial is looked at: some tens of turns, or a few of a program's steps.
inline constexpr Duration kTrialWindow = std::chrono::milliseconds(200);
// A changed way takes effect after drains; until then it says nothing.
inline constexpr Duration kTrialSettles = std::chrono::milliseconds(50);
// From one trial to the next, so that trials take 2 % of the time. Where nothing changes, up to eight times as long.
inline constexpr Duration kTrialEvery = std::chrono::milliseconds(12'500);
inline constexpr std::uint32_t kMostTrialDoublings = 3;
// By so much of their speed the programs must be better off, in thousandths, on average.
inline constexpr std::uint64_t kClearlyBetter = 100;
// Programs whose speed has changed by more than this part since the last trial are a different load.
inline constexpr std::uint64_t kLoadChange = 300;

class Gain {
 public:
  // So many of its submissions have completed since it last said so.
  void progressed(SeatId seat, std::uint64_t completed);
  void closed(SeatId seat);

  // How the GPU is to run now. To be asked at look_again(), and when anything has changed. `is_open`: both ways are
  // possible, at least two seats are there, and a quantum is much shorter than kTrialWindow; otherwise nothing is
  // measured, and what was found is forgotten.
  Way choose(TimePoint now, bool is_open);
  TimePoint look_again() const { return next_; }
  bool is_trying() const { return phase_ == Phase::kSettles || phase_ == Phase::kTrial; }

  // For people: what was measured last, and what follows from it. Empty: nothing yet.
  const std::string& why() const { return why_; }

 private:
  enum class Phase : std::uint8_t { kOff, kRests, kBefore, kSettles, kTrial };
  using Progress = std::map<SeatId, std::uint64_t>;

  void rest(TimePoint now, Duration time);
  void compare(TimePoint now);
  bool is_another_load() const;

  Phase phase_ = Phase::kOff;
  Way way_ = Way::kAtOnce;
  TimePoint next_ = TimePoint::max();
  Progress progress_;     // since the phase began
  Progress before_;       // of the last window before a trial
  Progress last_before_;  // of the one before that
  std::uint32_t doublings_ = 0;
  std::uint32_t due_in_ = 1;  // rests until a trial, unless the load changes
  bool was_better_ = false;   // the last trial found the other way clearly better
  std::string why_;
};

}  // namespace gpumux::sched
