// SPDX-License-Identifier: Apache-2.0
// Whether a GPU's programs get more done at once or by turns: measured, where their memory fits together. Decisions
// 0013 (trials) and 0029 (their form) say why; experiment 020 has a model, and what each rule is worth.
//
//      present way         other way         present way
//   |--- window ---| change |--- window ---| change |--- window ---|
//
// A trial. Each seat tells at both ends of each window how much it has submitted. Each program is compared with itself:
// its speed in the other way with the mean of its speeds in both windows of the present way. The mean over the seats
// decides. The noise is the difference between the two windows of the present way.
//
// The choice. Turns are chosen if they give kClearlyBetter and the noise more. They are given up if they give less than
// half of kClearlyBetter.
//
// The cost. The next trial comes after kTrialsPart times as long as this one had the other way. A trial that changes
// nothing doubles that. Other seats, or another load, undo the doubling. A first window that no trial follows is a
// look. It costs programs nothing, and shows whether the load is another one.
//
// Lost without a rule, in the model of experiment 020:
//   noise                 requests beside a training: 3.6 % of the time by turns, not 0.1
//   kPausesAsk            the same: 3.1 %
//   second window         noise of 30 %: 0.5 % of the time in the wrong way, not 0.3; the noise needs it anyhow
//   half to stay          a gain of 3 % in bursts: 40 % of the time at once, not 23
//   doubling              trials: 3.8 % of the time, not 0.3
//   another load          a load that changes each 2 min: 35 % of the time in the wrong way, not 2
//   whole rounds          a gain of 3 %: found after 18 minutes at worst, not 22 s
//
// Pure: told what seats have submitted, and the time. One for each GPU.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sched/lease/lease_core.h"

namespace gpumux::daemon {

// A window has as many whole rounds of turns as take so long or a little longer: half a round favours some seats. Seats
// that have not answered so long after a window are left out. A guess: longer windows find smaller gains of programs
// that submit in bursts (decision 0029), and cost more if the other way is worse.
inline constexpr base::Duration kTrialWindow = std::chrono::milliseconds(200);
// After a change of way queues fill again. A guess: the time counts as a trial's cost, and a window that begins too
// early measures the change.
inline constexpr base::Duration kTrialSettles = std::chrono::milliseconds(50);
// All others wait while a seat drains. A drain that takes longer ends the trial. A guess: programs with more work
// queued are not tried.
inline constexpr base::Duration kLongestDrain = std::chrono::milliseconds(300);
// Between looks, and after seats have changed: a new program starts up. No trial, if a round of turns takes longer. A
// guess: longer, and the better way is found later; shorter, and a program that starts up is tried.
inline constexpr base::Duration kTrialRest = std::chrono::seconds(1);
// Trials take a 25th of the time at most, and a 400th where nothing changes: four doublings (decision 0029).
inline constexpr int kTrialsPart = 25;
inline constexpr unsigned kMostTrialDoublings = 4;
// A guess of decision 0013. Less would be decided by noise; more would lose gains of a few percent (experiment 020).
inline constexpr double kClearlyBetter = 0.02;
// A program that does not want the GPU all the time may answer requests. Turns delay these, and no count shows that. So
// with such a program turns must be better by the factor kPausesAsk, and trials of turns are as rare as they get.
// Without: experiment 009's 99th percentile is twice that of at once.
inline constexpr double kPausesAsk = 5;

class Gain {
 public:
  struct Situation {
    // Both ways are possible, and at least two seats are there. Otherwise the findings are forgotten.
    bool is_open = false;
    settings::Limit<base::Duration> turn = base::Duration::zero();  // how long one is, with its drain
    std::vector<sched::SeatUse> seats;                              // ascending
  };
  // The seat's answer: the submissions since it began. True: look at choose() now.
  bool told(base::SeatId seat, std::uint32_t question, std::uint64_t submissions);

  // How the GPU is to run now. To be asked at look_again(), when told() says so, and when anything has changed. Then
  // take_question().
  sched::Way choose(base::TimePoint now, const Situation& situation);
  // The question to ask all seats now, if there is one.
  std::optional<std::uint32_t> take_question();
  // None: nothing changes by itself.
  std::optional<base::TimePoint> look_again() const { return next_; }
  // The chosen way; choose() gives the other way during a trial.
  sched::Way way() const { return way_; }
  bool is_trying() const { return ended_.size() == 1; }

  // For people.
  struct Finding {
    base::TimePoint at{};
    std::uint64_t by_turns = 0;  // thousandths of the speed at once; 0: the trial came to nothing
    std::uint64_t noise = 0;     // thousandths
    bool has_pauses = false;
    std::string why;  // in words, without the way that follows from it
  };
  // Of the last trial, also when others have come since.
  const std::optional<Finding>& finding() const { return finding_; }

 private:
  enum class Phase : std::uint8_t { kClosed, kRests, kDrains, kSettles, kCounts, kAnswers };
  struct Window {
    struct Seat {
      std::optional<std::uint64_t> begin, end;  // submissions
      base::Duration wanted{};                  // the GPU, or to wait for it, of the window
    };
    base::TimePoint began{};
    base::Duration time{};
    std::map<base::SeatId, Seat> seats;

    bool is_answered() const;
    double count(base::SeatId seat) const;  // below 0: the seat has not told it
  };
  struct Span {
    base::TimePoint since{};
    base::TimePoint until{};
  };

  sched::Way other() const { return way_ == sched::Way::kAtOnce ? sched::Way::kByTurns : sched::Way::kAtOnce; }
  base::Duration round(const Situation& situation) const { return situation.turn.at_most(kTrialRest * 2) * active_; }
  base::Duration window_time(const Situation& situation) const;
  void step(base::TimePoint now, const Situation& situation);
  void enter(Phase phase, std::optional<base::TimePoint> next);
  void rest(base::TimePoint now);
  void begin_window(base::TimePoint now, const Situation& situation);
  void end_window(base::TimePoint now, const Situation& situation);
  void end_look(base::TimePoint now, const Situation& situation);
  void change(base::TimePoint now, const Situation& situation);
  void conclude(base::TimePoint now);
  static std::optional<double> compare(const Window& window, const Window& one, const Window& two);

  Phase phase_ = Phase::kClosed;
  sched::Way way_ = sched::Way::kAtOnce;
  std::optional<base::TimePoint> next_;  // none: kClosed
  std::uint32_t question_ = 0;
  bool asks_ = false;
  Window window_;                // kCounts, kAnswers
  std::vector<Window> ended_;    // of this trial
  std::int64_t active_ = 0;      // seats that did anything in the last look
  Window known_;                 // at the last trial; no seats: nothing is another load
  base::TimePoint change_at_{};  // kDrains
  std::optional<Span> tried_;    // the last trial's time in the other way
  unsigned doublings_ = 0;
  std::optional<Finding> finding_;
};

}  // namespace gpumux::daemon
