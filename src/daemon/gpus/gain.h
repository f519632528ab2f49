// SPDX-License-Identifier: Apache-2.0
// Whether a GPU's programs get more done at once or by turns: measured, where their memory fits together.
//
// The problem. Under the driver's own time slicing four programs of small kernels get half of what one gets alone, and
// large kernels nine tenths; programs with pauses lose nothing, and turns would only cost them switches and make them
// wait. Nothing but trying tells which. So now and then the other way is tried for a moment.
//
// The comparison. Each program is compared with itself, because submissions of different programs are not worth the
// same. A seat's ratio is its speed in one way as a part of its speeds in both: a half if they are equal. The mean of
// the ratios over all seats that do anything decides. Each seat's ratio is bounded, so that no single program decides,
// whatever it says. The count is of a seat's submissions, which costs the seat nothing. It is nearly the count of
// completed work, for no queue is endless: a program that runs far ahead of the GPU waits in its launches, as fast as
// the GPU works; by turns the in-flight bound keeps queues short, and a trial of turns begins after all that was queued
// has drained. How full a queue is changes the count of a window by its part of it: by what two windows of the same way
// differ, one before and one after the trial, it is seen, and so is all other unsteadiness of a load.
//
//      this way        the other way        this way
//   |-- before --|  change  |-- trial --|  change  |-- after --|        compared: trial with the mean of the others;
//   ?            ?          ?           ?          ?           ?        noise: after with before
//
// The choice. At once, unless turns are clearly better: by kClearlyBetter, and by kClearlyBetterWithPauses where some
// program does not want the GPU all the time, for turns make it wait while others have theirs. A change needs the same
// finding up to three times in a row, or of windows as long as these together, a change to turns beyond the noise; a
// load that was too noisy, or as good as decided nothing, is looked at for longer.
//
// The cost of trials. A trial that goes badly ends at half its time. All together they take a fiftieth of the time at
// most, however often the load changes: a budget, of which a little is saved up, so that a new load is found out about
// within seconds. Where a trial finds nothing new the next one comes later, up to eight times, and soonest where what
// was chosen is little better; two looks at what programs get done, which cost them nothing, tell whether the load is
// another one. Programs that are long in draining, with seconds of work queued or kernels of half a second, are not
// tried: while one of them drained the others would wait.
//
// Pure: told what seats have submitted, and the time. One for each GPU. No floating point, no order but that of seats.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sched/events.h"
#include "sched/lease_core.h"

namespace gpumux::daemon {

using base::Duration;
using base::SeatId;
using base::TimePoint;
using sched::SeatUse;
using sched::Way;
using settings::Limit;

// How long each side of a trial is looked at, at least: some tens of turns, or a few of a program's steps. Longer where
// turns are longer (at once as long as one round of them), or the load is unsteady, but never longer than the other.
inline constexpr Duration kTrialWindow = std::chrono::milliseconds(200);
inline constexpr Duration kLongestTrialWindow = std::chrono::milliseconds(1600);
// A window has so many rounds of turns, so that the one it ends in is a small part of it. Where the longest has not
// half of that nothing is measured.
inline constexpr std::int64_t kRoundsPerWindow = 4;
// Seats are asked and answer within 0.1 ms; who has not after so long is left out.
inline constexpr Duration kMeasurePatience = std::chrono::milliseconds(50);
// After a change of way: queues fill again, caches too. By turns a round of them, within these.
inline constexpr Duration kTrialSettles = std::chrono::milliseconds(20);
inline constexpr Duration kLongestSettling = std::chrono::milliseconds(200);
// A seat that has not drained by then makes all others wait: no trial.
inline constexpr Duration kLongestDrain = std::chrono::milliseconds(300);
inline constexpr Duration kDrainLook = std::chrono::milliseconds(2);
// How often the daemon looks at what other programs do. A program that has just come may still be starting up.
inline constexpr Duration kLookEvery = std::chrono::milliseconds(2500);
inline constexpr Duration kNewLoadRest = std::chrono::seconds(1);
inline constexpr Duration kAgainRest = std::chrono::milliseconds(300);
// From one trial to the next where nothing changes, doubled up to eight times.
inline constexpr Duration kTrialEvery = std::chrono::milliseconds(12'500);
inline constexpr std::uint32_t kMostTrialDoublings = 3;
// Trials have this part of the time, and so much of it may have been saved up: two of eight programs' turns of 40 ms.
inline constexpr std::int64_t kTrialsPart = 50;
inline constexpr Duration kMostTrialCredit = std::chrono::milliseconds(3500);
// Where some program has pauses a trial of turns counts so often: it is likely to be one that answers requests, and a
// fiftieth of the time by turns decides its 99th percentile (beside a training on an H100 twice that of at once).
inline constexpr std::int64_t kPausesCost = 10;
// Thousandths by which turns must be better. Two matmul programs of large kernels gain a tenth (608 of 676
// TFLOP/s at once), small ones half as much again and more.
inline constexpr std::uint64_t kClearlyBetter = 20;
inline constexpr std::uint64_t kClearlyBetterWithPauses = 100;
// A seat that wants the GPU for less than this part of a window, in thousandths, has pauses.
inline constexpr std::uint64_t kWantsAlways = 750;
// Better by so much more than that: found once, or twice, is enough, otherwise three times.
inline constexpr std::uint64_t kVastlyBetter = 500;
inline constexpr std::uint64_t kFarBetter = 100;
// So near to where the choice lies, in thousandths, chance may have decided: bursts of submissions that windows cut.
inline constexpr std::uint64_t kNearlyDecided = 40;
// In the first half of a trial: no better than this, in thousandths, and the other half says nothing more.
inline constexpr std::uint64_t kClearlyWorse = 800;
// A seat that is so many thousandths faster or slower than when last compared is a different load.
inline constexpr std::uint64_t kLoadChange = 400;

class Gain {
 public:
  struct Situation {
    // Both ways are possible, and at least two seats are there. Otherwise nothing is measured, and what was found is
    // forgotten.
    bool is_open = false;
    Limit<Duration> turn = Duration::zero();  // how long one is, with its drain
    std::vector<SeatUse> seats;
  };
  // The question has been answered: the seat has submitted so much since it began. True: look at choose() now.
  bool told(SeatId seat, std::uint32_t question, std::uint64_t submissions);

  // How the GPU is to run now. To be asked at look_again(), when told() says so, and when anything has changed. Then
  // take_question().
  Way choose(TimePoint now, const Situation& situation);
  // The question to ask all seats now, if there is one.
  std::optional<std::uint32_t> take_question();
  TimePoint look_again() const { return next_; }
  // The chosen way; choose() gives the other way during a trial.
  Way way() const { return way_; }
  bool is_trying() const { return phase_ == Phase::kChange || phase_ == Phase::kTrial; }

  // For people.
  struct Finding {
    TimePoint at{};
    std::uint64_t by_turns = 0;  // thousandths of the speed at once; 0: the trial came to nothing
    std::uint64_t noise = 0;     // thousandths
    bool has_pauses = false;
    std::string why;  // what was found, and what follows from it
  };
  // Of the last trial, also when others have come since.
  const std::optional<Finding>& finding() const { return finding_; }

 private:
  enum class Phase : std::uint8_t { kOff, kRests, kBefore, kChange, kTrial, kChangeBack, kAfter };
  struct Reading {
    std::uint32_t question = 0;
    TimePoint asked{};
    std::map<SeatId, std::uint64_t> answers;
    std::map<SeatId, Duration> wanted;
  };
  // One seat's speed in one window.
  struct Speed {
    std::uint64_t count = 0;
    std::uint64_t rate = 0;          // in a unit of its own
    std::uint64_t wants_always = 0;  // thousandths of the window in which it had the GPU or waited
  };
  using Speeds = std::map<SeatId, Speed>;
  struct Comparison {
    std::uint64_t seats = 0;
    std::uint64_t speed = 1000;  // thousandths of the reference's
  };

  Way other() const { return way_ == Way::kAtOnce ? Way::kByTurns : Way::kAtOnce; }
  bool is_window() const { return phase_ == Phase::kBefore || phase_ == Phase::kTrial || phase_ == Phase::kAfter; }
  void take_seats(TimePoint now, const Situation& situation);
  void step(TimePoint now, const Situation& situation);
  void rest(TimePoint now, Duration time);
  void ask(TimePoint now, Reading& reading, const Situation& situation);
  void begin_window(TimePoint now, Phase phase, const Situation& situation);
  void begin_change(TimePoint now, Phase phase);
  void wait_for_change(TimePoint now, const Situation& situation);
  void end_window(TimePoint now, const Situation& situation);
  void end_looking(TimePoint now, const Situation& situation);
  void put_off(TimePoint now);
  void give_up(TimePoint now, std::string why);
  void compare(TimePoint now);
  void conclude(TimePoint now, const Finding& finding, std::uint64_t speed, std::uint64_t least,
                std::uint32_t evidence);
  Speeds speeds_of_window() const;
  static Comparison compare(const Speeds& speeds, const Speeds& reference);
  bool is_another_load(const Speeds& speeds) const;
  Duration window(const Situation& situation) const;
  Duration trial_window(const Situation& situation) const;
  Duration round(const Situation& situation) const;
  Duration settling(const Situation& situation, Way way) const;
  bool can_afford(const Situation& situation) const;
  void accrue(TimePoint now);

  Phase phase_ = Phase::kOff;
  Way way_ = Way::kAtOnce;
  TimePoint next_ = TimePoint::max();
  std::vector<SeatId> seats_;  // ascending
  std::int64_t active_ = 0;    // of these, that did anything in the last look
  std::uint32_t question_ = 0;
  bool asks_ = false;
  Reading begin_, end_;
  bool is_half_ = false;          // the window: it ends after half its time, if that says enough
  bool is_ending_ = false;        // the window: its last question was asked
  bool has_changed_ = false;      // the change: the other way is there, and settles
  Duration window_{};             // of this trial
  std::uint32_t lengthened_ = 0;  // how often the window has been doubled for noise
  Speeds before_, trial_, after_;
  Speeds known_;  // at the last trial, in the way that has been kept
  TimePoint trial_at_{};
  TimePoint change_since_{};
  std::uint32_t doublings_ = 0;
  std::uint32_t better_ = 0;  // so many trials in a row, in the shortest windows, found the other way clearly better
  bool is_new_ = true;        // the load: no trial has come to an end
  Duration trial_took_{};     // the last one of the other way
  Duration credit_ = kMostTrialCredit;
  TimePoint credited_at_{};
  std::optional<Finding> finding_;
};

}  // namespace gpumux::daemon
