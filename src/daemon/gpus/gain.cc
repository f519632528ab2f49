// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/gain.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/deadline.h"

namespace gpumux::daemon {
namespace {

using base::Duration;
using base::SeatId;
using base::TimePoint;
using sched::Way;

// A seat that wants the GPU for less than this part of a window has pauses. A guess: a program that always has work
// leaves short gaps between its steps, and a program that answers requests leaves long ones.
constexpr double kWantsAlways = 0.75;
// A seat with fewer submissions in what is compared says nothing: a program that is nearly idle. These are two in each
// of three windows. With fewer, one submission more or less would decide.
constexpr double kLeastCount = 6;
// No seat counts for more than this many times its speed, or for less than one part in as many, whatever it says. A
// guess: larger differences are real, too, but a seat that lies must not decide alone (decision 0013).
constexpr double kMostRatio = 2;
// A load whose seats are this many times faster or slower in the mean is another one. From a quarter on, noise is taken
// for another load (experiment 020).
constexpr double kAnotherLoad = 1.5;

// "86.3 %"
std::string percent(double part) {
  const auto permille = static_cast<std::uint64_t>(std::llround(part * 1000));
  return std::to_string(permille / 10) + "." + std::to_string(permille % 10) + " %";
}

}  // namespace

bool Gain::told(SeatId seat, std::uint32_t question, std::uint64_t submissions) {
  if (question != question_ || (phase_ != Phase::kCounts && phase_ != Phase::kAnswers)) return false;
  const auto found = window_.seats.find(seat);
  if (found == window_.seats.end()) return false;
  (phase_ == Phase::kCounts ? found->second.begin : found->second.end) = submissions;
  return phase_ == Phase::kAnswers && window_.is_answered();
}

std::optional<std::uint32_t> Gain::take_question() {
  return std::exchange(asks_, false) ? std::optional(question_) : std::nullopt;
}

Way Gain::choose(TimePoint now, const Situation& situation) {
  const bool is_same = std::equal(situation.seats.begin(), situation.seats.end(), window_.seats.begin(),
                                  window_.seats.end(), [](const auto& a, const auto& b) { return a.seat == b.first; });
  if (!situation.is_open) {
    if (is_trying()) tried_->until = now;
    way_ = Way::kAtOnce;
    finding_.reset();
    ended_.clear();
    enter(Phase::kClosed, std::nullopt);
  } else if (phase_ == Phase::kClosed || !is_same) {
    // Next to other programs, or to fewer of them, a program has another speed.
    window_.seats.clear();
    for (const sched::SeatUse& use : situation.seats) window_.seats[use.seat];
    active_ = std::ssize(situation.seats);
    known_.seats.clear();
    doublings_ = 0;
    rest(now);
  } else if (base::is_due(next_, now) || (phase_ == Phase::kAnswers && window_.is_answered())) {
    step(now, situation);
  }
  return is_trying() ? other() : way_;
}

void Gain::step(TimePoint now, const Situation& situation) {
  switch (phase_) {
    case Phase::kClosed:
    case Phase::kRests:
    case Phase::kSettles: return begin_window(now, situation);
    case Phase::kDrains: return change(now, situation);
    case Phase::kCounts:
    case Phase::kAnswers: return end_window(now, situation);
  }
}

void Gain::enter(Phase phase, std::optional<TimePoint> next) {
  phase_ = phase;
  next_ = next;
}

void Gain::rest(TimePoint now) {
  if (is_trying()) tried_->until = now;
  ended_.clear();
  enter(Phase::kRests, now + kTrialRest);
}

Duration Gain::window_time(const Situation& situation) const {
  const Duration one = std::clamp(round(situation), Duration(1), kTrialRest);
  return one * ((kTrialWindow + one - Duration(1)) / one);
}

// ---- windows ------------------------------------------------------------------------------------

bool Gain::Window::is_answered() const {
  return std::all_of(seats.begin(), seats.end(), [](const auto& one) { return one.second.end || !one.second.begin; });
}

double Gain::Window::count(SeatId seat) const {
  const auto found = seats.find(seat);
  if (found == seats.end() || !found->second.begin || found->second.end < found->second.begin) return -1;
  return static_cast<double>(*found->second.end - *found->second.begin);
}

void Gain::begin_window(TimePoint now, const Situation& situation) {
  window_.began = now;
  for (const sched::SeatUse& use : situation.seats) window_.seats[use.seat] = {{}, {}, -use.wanted};
  ++question_;
  asks_ = true;
  enter(Phase::kCounts, now + window_time(situation));
}

void Gain::end_window(TimePoint now, const Situation& situation) {
  if (phase_ == Phase::kCounts) {
    window_.time = now - window_.began;
    for (const sched::SeatUse& use : situation.seats) window_.seats[use.seat].wanted += use.wanted;
    ++question_;
    asks_ = true;
    return enter(Phase::kAnswers, now + kTrialWindow);
  }
  if (is_trying()) tried_->until = now;
  ended_.push_back(window_);
  if (ended_.size() == 1) return end_look(now, situation);
  if (ended_.size() == 3) return conclude(now);
  change_at_ = now;
  enter(Phase::kDrains, now);
}

// The first window: is there something to choose, and is it time to try?
void Gain::end_look(TimePoint now, const Situation& situation) {
  const Duration had = window_time(situation);
  active_ = std::count_if(window_.seats.begin(), window_.seats.end(),
                          [&](const auto& one) { return window_.count(one.first) > 0; });
  if (active_ < 2 || round(situation) > kTrialRest) {
    // The driver's own way, which costs least.
    finding_.reset();
    if (active_ >= 2) finding_ = Finding{.at = now, .why = "turns would be too long to be tried"};
    way_ = Way::kAtOnce;
  } else if (window_time(situation) <= had) {
    const double ratio = compare(window_, known_, known_).value_or(1);
    if (ratio > kAnotherLoad || 1 / ratio > kAnotherLoad) doublings_ = 0;
    if (!tried_ || now - tried_->until >= (tried_->until - tried_->since) * (kTrialsPart << doublings_)) {
      doublings_ = std::min(doublings_ + 1, kMostTrialDoublings);
      tried_ = {.since = now, .until = now};
      change_at_ = now;
      return enter(Phase::kDrains, now);
    }
  }
  ended_.clear();
  rest(now);
}

void Gain::change(TimePoint now, const Situation& situation) {
  const Way to = is_trying() ? other() : way_;
  // Leases that were held together have drained when a seat holds one alone.
  if (to == Way::kAtOnce ||
      std::any_of(situation.seats.begin(), situation.seats.end(), [](const auto& use) { return use.has_turn; })) {
    // A seat's first turn may have too much queued.
    enter(Phase::kSettles, now + std::max(kTrialSettles, to == Way::kByTurns ? round(situation) : Duration::zero()));
  } else if (now - change_at_ < kLongestDrain) {
    next_ = now + kTrialSettles / 10;
  } else {
    known_ = ended_[0];
    finding_ = Finding{.at = now, .why = "their work takes too long to drain for the other way to be tried"};
    rest(now);
  }
}

// The mean over the seats of their speeds in `window`, as a part of their mean speeds in `one` and `two`. Twice and
// half as fast weigh the same. None: fewer than two seats.
std::optional<double> Gain::compare(const Window& window, const Window& one, const Window& two) {
  double parts = 0, seats = 0;
  const auto rate = [](double count, const Window& of) {
    return count / std::chrono::duration<double>(of.time).count();
  };
  for (const auto& [seat, unused] : window.seats) {
    const double count = window.count(seat), first = one.count(seat), second = two.count(seat);
    if (std::min({count, first, second}) < 0 || count + first + second < kLeastCount) continue;
    const double is = rate(count, window), was = (rate(first, one) + rate(second, two)) / 2;
    parts += std::clamp(is / (is + was), 1 / (1 + kMostRatio), kMostRatio / (1 + kMostRatio));
    ++seats;
  }
  return seats < 2 ? std::nullopt : std::optional(parts / (seats - parts));
}

void Gain::conclude(TimePoint now) {
  const std::vector<Window> windows = std::exchange(ended_, {});
  rest(now);
  const auto found = compare(windows[1], windows[0], windows[2]);
  const auto same = compare(windows[2], windows[0], windows[0]);
  if (!found || !same) return;
  const double noise = std::abs(*same - 1);
  const bool tried_turns = way_ == Way::kAtOnce;
  const double by_turns = tried_turns ? *found : 1 / *found;
  const Window& in_turns = windows[tried_turns ? 1 : 2];
  const bool has_pauses = std::any_of(in_turns.seats.begin(), in_turns.seats.end(), [&](const auto& one) {
    return in_turns.count(one.first) > 0 && one.second.wanted < in_turns.time * kWantsAlways;
  });
  const double asked = has_pauses ? kPausesAsk : 1;
  // So fast they must be by turns to take turns.
  const double bound = 1 + asked * (tried_turns ? kClearlyBetter + noise : kClearlyBetter / 2);
  const bool changes = tried_turns ? by_turns > bound : by_turns < bound;
  if (changes) {
    way_ = other();
    doublings_ = 0;
  }
  if (has_pauses && way_ == Way::kAtOnce) doublings_ = kMostTrialDoublings;
  known_ = windows[changes ? 1 : 0];
  finding_ = Finding{.at = now,
                     .by_turns = static_cast<std::uint64_t>(std::llround(by_turns * 1000)),
                     .noise = static_cast<std::uint64_t>(std::llround(noise * 1000)),
                     .has_pauses = has_pauses,
                     .why = "by turns its programs had " + percent(by_turns) + " of the speed that they have at once" +
                            (by_turns > 1 && way_ == Way::kAtOnce ? ", and turns ask for " + percent(bound) : "")};
}

}  // namespace gpumux::daemon
