// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/gain.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

// More submissions in a window nobody makes; products of it fit.
constexpr std::uint64_t kMostCount = std::uint64_t{1} << 28;
constexpr std::uint64_t kRateUnit = std::uint64_t{1} << 16;
// Of a whole.
constexpr std::uint64_t kParts = 100'000;
// A seat with fewer submissions in all windows together says nothing of either way.
constexpr std::uint64_t kLeastCount = 6;
// No seat counts for more than twice or half its speed.
constexpr std::uint64_t kLeastPart = kParts / 3;
constexpr std::uint64_t kMostPart = kParts * 2 / 3;
// Of a load that has changed: seats of which so little is seen change by chance.
constexpr std::uint64_t kCountToTell = 16;
// A difference of so many times the noise is clear, however much that is.
constexpr std::uint64_t kClearAboveNoise = 3;
// Findings in a row that it takes, of one that is better by so much.
constexpr std::uint32_t often_enough(std::uint64_t by) { return by >= kVastlyBetter ? 1 : by >= kFarBetter ? 2 : 3; }
// How often what is better by so much has proved itself before it is chosen, as it were: it is doubted that much later.
constexpr std::uint32_t doublings_of(std::uint64_t by) { return by >= kVastlyBetter ? 2 : by >= kFarBetter ? 1 : 0; }

std::string percent(std::uint64_t thousandths) {
  return std::to_string(thousandths / 10) + (thousandths < 2000 ? "." + std::to_string(thousandths % 10) : "") + " %";
}

std::string_view in_words(Way way) { return way == Way::kAtOnce ? ": they run at once" : ": they run by turns"; }

}  // namespace

bool Gain::told(SeatId seat, std::uint32_t question, std::uint64_t submissions) {
  if (!is_window()) return false;
  Reading& reading = is_ending_ ? end_ : begin_;
  if (question != reading.question || !std::binary_search(seats_.begin(), seats_.end(), seat)) return false;
  reading.answers.emplace(seat, submissions);
  return is_ending_ && end_.answers.size() >= begin_.answers.size();
}

std::optional<std::uint32_t> Gain::take_question() {
  if (!std::exchange(asks_, false)) return std::nullopt;
  return question_;
}

Way Gain::choose(TimePoint now, const Situation& situation) {
  accrue(now);
  if (!situation.is_open) {
    Gain fresh;
    fresh.question_ = question_;
    fresh.credit_ = credit_;
    fresh.credited_at_ = credited_at_;
    *this = std::move(fresh);
    return way_;
  }
  take_seats(now, situation);
  const bool is_answered = is_window() && is_ending_ && end_.answers.size() >= begin_.answers.size();
  if (now >= next_ || is_answered) step(now, situation);
  return is_trying() ? other() : way_;
}

void Gain::accrue(TimePoint now) {
  credit_ = std::min(kMostTrialCredit, credit_ + (now - credited_at_) / kTrialsPart);
  credited_at_ = now;
}

// With others beside it, or fewer of them, a program is at another speed: what was begun comes to nothing.
void Gain::take_seats(TimePoint now, const Situation& situation) {
  std::vector<SeatId> seats;
  for (const SeatUse& use : situation.seats) seats.push_back(use.seat);
  std::sort(seats.begin(), seats.end());
  if (phase_ != Phase::kOff && seats == seats_) return;
  seats_ = std::move(seats);
  if (is_trying()) credit_ -= now - trial_at_;
  is_new_ = true;
  doublings_ = better_ = lengthened_ = 0;
  known_.clear();
  rest(now, kNewLoadRest);
}

void Gain::step(TimePoint now, const Situation& situation) {
  switch (phase_) {
    case Phase::kOff:
    case Phase::kRests: window_ = window(situation); return begin_window(now, Phase::kBefore, situation);
    case Phase::kBefore:
    case Phase::kTrial:
    case Phase::kAfter: return end_window(now, situation);
    case Phase::kChange:
    case Phase::kChangeBack: return wait_for_change(now, situation);
  }
}

void Gain::rest(TimePoint now, Duration time) {
  phase_ = Phase::kRests;
  next_ = now + time;
}

// Of turns of those that do anything; more than the longest window says nothing.
Duration Gain::round(const Situation& situation) const { return situation.turn.at_most(kLongestTrialWindow) * active_; }

Duration Gain::window(const Situation& situation) const {
  const Duration steady = kTrialWindow * (std::int64_t{1} << lengthened_);
  return std::min(std::max(steady, round(situation) * kRoundsPerWindow), kLongestTrialWindow);
}

// At once everybody works all the time: as long as one round of turns tells as much as several do by turns. Half of it
// is what a trial that goes badly costs.
Duration Gain::trial_window(const Situation& situation) const {
  if (way_ == Way::kAtOnce) return window_;
  return std::min(window_, std::max(kTrialWindow * (std::int64_t{1} << lengthened_), round(situation)));
}

Duration Gain::settling(const Situation& situation, Way way) const {
  return std::clamp(way == Way::kByTurns ? round(situation) : Duration::zero(), kTrialSettles, kLongestSettling);
}

bool Gain::can_afford(const Situation& situation) const {
  return credit_ >= std::min(kMostTrialCredit, trial_window(situation) + settling(situation, other()));
}

// ---- windows ------------------------------------------------------------------------------------

void Gain::ask(TimePoint now, Reading& reading, const Situation& situation) {
  reading.question = ++question_;
  reading.asked = now;
  reading.answers.clear();
  reading.wanted.clear();
  for (const SeatUse& use : situation.seats) reading.wanted[use.seat] = use.wanted;
  asks_ = true;
}

void Gain::begin_window(TimePoint now, Phase phase, const Situation& situation) {
  phase_ = phase;
  is_ending_ = false;
  is_half_ = phase == Phase::kTrial;
  ask(now, begin_, situation);
  next_ = now + (is_half_ ? trial_window(situation) / 2 : window_);
}

Gain::Speeds Gain::speeds_of_window() const {
  Speeds speeds;
  const auto time = std::max<std::uint64_t>(
      static_cast<std::uint64_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(end_.asked - begin_.asked).count()),
      1);
  for (const auto& [seat, last] : end_.answers) {
    const auto first = begin_.answers.find(seat);
    if (first == begin_.answers.end() || last < first->second) continue;
    Speed& speed = speeds[seat];
    speed.count = std::min(last - first->second, kMostCount);
    speed.rate = speed.count * kRateUnit / time;
    const auto wanted = [seat = seat](const Reading& reading) {
      const auto found = reading.wanted.find(seat);
      return found == reading.wanted.end() ? Duration::zero() : found->second;
    };
    const Duration in_window = std::clamp(wanted(end_) - wanted(begin_), Duration::zero(), kLongestTrialWindow * 2);
    speed.wants_always =
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(in_window).count()) * 1000 /
        time;
  }
  return speeds;
}

void Gain::end_window(TimePoint now, const Situation& situation) {
  if (!is_ending_) {
    is_ending_ = true;
    ask(now, end_, situation);
    next_ = now + kMeasurePatience;
    return;
  }
  switch (phase_) {
    case Phase::kBefore: before_ = speeds_of_window(); return end_looking(now, situation);
    case Phase::kTrial:
      trial_ = speeds_of_window();
      if (std::exchange(is_half_, false) && compare(trial_, before_).speed > kClearlyWorse) {
        is_ending_ = false;
        next_ = begin_.asked + trial_window(situation);
        return;
      }
      trial_took_ = now - trial_at_;
      credit_ -= trial_took_;
      return begin_change(now, Phase::kChangeBack);
    case Phase::kAfter: after_ = speeds_of_window(); return compare(now);
    default: return;
  }
}

// One window of the way that is: is there something to choose, and is it time to try?
void Gain::end_looking(TimePoint now, const Situation& situation) {
  active_ = std::count_if(before_.begin(), before_.end(), [](const auto& one) { return one.second.count > 0; });
  const bool are_comparable = round(situation) * kRoundsPerWindow <= kLongestTrialWindow * 2;
  if (active_ < 2 || !are_comparable) {
    // The driver's own way, which costs least.
    finding_.reset();
    if (active_ >= 2) finding_ = Finding{.at = now, .why = "turns would be too long to be tried: they run at once"};
    way_ = Way::kAtOnce;
    better_ = 0;
    known_.clear();
    return rest(now, kLookEvery);
  }
  if (window(situation) > window_) {
    window_ = window(situation);
    return begin_window(now, Phase::kBefore, situation);
  }
  const bool is_due = is_new_ || better_ > 0 || now - trial_at_ >= kTrialEvery * (std::int64_t{1} << doublings_);
  if (!is_due && !is_another_load(before_)) return rest(now, kLookEvery);
  if (!is_due) doublings_ = 0;
  if (!can_afford(situation)) return rest(now, kLookEvery);
  begin_change(now, Phase::kChange);
}

bool Gain::is_another_load(const Speeds& speeds) const {
  const auto rate_of = [](const Speeds& all, SeatId seat) {
    const auto found = all.find(seat);
    return found == all.end() ? Speed() : found->second;
  };
  return std::any_of(seats_.begin(), seats_.end(), [&](SeatId seat) {
    const Speed now = rate_of(speeds, seat), then = rate_of(known_, seat);
    const std::uint64_t more = std::max(now.rate, then.rate), less = std::min(now.rate, then.rate);
    return std::max(now.count, then.count) >= kCountToTell && 1000 * (more - less) > kLoadChange * more;
  });
}

// ---- changes ------------------------------------------------------------------------------------

void Gain::begin_change(TimePoint now, Phase phase) {
  phase_ = phase;
  has_changed_ = false;
  if (phase == Phase::kChange) trial_at_ = now;
  change_since_ = now;
  next_ = now + kDrainLook;
}

void Gain::wait_for_change(TimePoint now, const Situation& situation) {
  const Way to = phase_ == Phase::kChange ? other() : way_;
  if (!has_changed_) {
    // Leases that were held together have drained when a seat holds one alone.
    has_changed_ = to == Way::kAtOnce || std::any_of(situation.seats.begin(), situation.seats.end(),
                                                     [](const auto& use) { return use.has_turn; });
    if (has_changed_) {
      next_ = now + settling(situation, to);
    } else if (now - change_since_ < kLongestDrain) {
      next_ = now + kDrainLook;
    } else {
      give_up(now, "their work takes too long to drain for turns to be tried");
    }
    return;
  }
  begin_window(now, phase_ == Phase::kChange ? Phase::kTrial : Phase::kAfter, situation);
}

void Gain::put_off(TimePoint now) {
  doublings_ = std::min(doublings_ + 1, kMostTrialDoublings);
  better_ = 0;
  is_new_ = false;
  rest(now, kLookEvery);
}

void Gain::give_up(TimePoint now, std::string why) {
  if (is_trying()) credit_ -= now - trial_at_;
  known_ = before_;
  why += in_words(way_);
  finding_ = Finding{.at = now, .why = std::move(why)};
  doublings_ = kMostTrialDoublings;
  put_off(now);
}

// ---- comparing ----------------------------------------------------------------------------------

// Each seat's speed as a part of both.
Gain::Comparison Gain::compare(const Speeds& speeds, const Speeds& reference) {
  std::uint64_t parts = 0;
  Comparison comparison;
  for (const auto& [seat, speed] : speeds) {
    const auto found = reference.find(seat);
    if (found == reference.end() || speed.count + found->second.count < kLeastCount) continue;
    parts += std::clamp(kParts * speed.rate / std::max<std::uint64_t>(speed.rate + found->second.rate, 1), kLeastPart,
                        kMostPart);
    ++comparison.seats;
  }
  if (comparison.seats == 0) return comparison;
  comparison.speed = 1000 * parts / (kParts * comparison.seats - parts);
  return comparison;
}

void Gain::compare(TimePoint now) {
  Speeds this_way;
  for (const auto& [seat, before] : before_) {
    const auto after = after_.find(seat);
    if (after == after_.end()) continue;
    this_way[seat] = {before.count + after->second.count, (before.rate + after->second.rate) / 2,
                      (before.wants_always + after->second.wants_always) / 2};
  }
  const Comparison found = compare(trial_, this_way);
  const Comparison unsteady = compare(after_, before_);
  if (found.seats < 2) {
    better_ = 0;
    return rest(now, kLookEvery);
  }
  const bool tried_turns = way_ == Way::kAtOnce;
  Finding finding{.at = now, .why = {}};
  const auto apart = [](std::uint64_t one, std::uint64_t other) { return one > other ? one - other : other - one; };
  finding.noise = apart(unsteady.speed, 1000);
  finding.by_turns = tried_turns ? found.speed : 1'000'000 / std::max<std::uint64_t>(found.speed, 1);
  for (const auto& [seat, speed] : tried_turns ? trial_ : this_way) {
    finding.has_pauses = finding.has_pauses || (speed.count > 0 && speed.wants_always < kWantsAlways);
  }
  if (finding.has_pauses && tried_turns) credit_ -= trial_took_ * (kPausesCost - 1);
  const std::uint64_t margin = finding.has_pauses ? kClearlyBetterWithPauses : kClearlyBetter;
  // Turns have to show what they are worth, beyond the noise; they stay until they are no longer worth half of that,
  // and noise is no reason to stay: where pauses fall in with turns or do not, there is always some.
  const std::uint64_t least = tried_turns ? 1000 + margin + finding.noise : 1'000'000 / (1000 + margin / 2);
  known_ = std::move(this_way);
  const bool is_noisy = finding.noise > margin && apart(found.speed, 1000) < kClearAboveNoise * finding.noise;
  const bool is_unclear = (is_noisy || apart(found.speed, least) < kNearlyDecided) && window_ < kLongestTrialWindow;
  const auto evidence = static_cast<std::uint32_t>(window_ / kTrialWindow);
  if (is_unclear) lengthened_ = std::min(lengthened_ + 1, kMostTrialDoublings);
  is_new_ = is_unclear;
  conclude(now, finding, found.speed, least, evidence);
}

// `evidence`: as much as so many trials in the shortest windows.
void Gain::conclude(TimePoint now, const Finding& finding, std::uint64_t speed, std::uint64_t least,
                    std::uint32_t evidence) {
  finding_ = finding;
  finding_->why = "by turns its programs had " + percent(finding.by_turns) + " of the speed that they have at once";
  if (finding.has_pauses) finding_->why += ", and some have pauses";
  if (speed < least) {
    finding_->why += in_words(way_);
    // One trial may have met a bad moment.
    const bool is_open = is_new_ || better_ > 0 || least - speed < kNearlyDecided;
    doublings_ = is_open ? 0 : std::min(doublings_ + 1, kMostTrialDoublings);
    better_ = 0;
    return rest(now, is_new_ ? kAgainRest : kLookEvery);
  }
  doublings_ = 0;
  better_ += evidence;
  if (better_ < often_enough(speed - least)) {
    finding_->why += ": that is tried again before anything changes";
    return rest(now, kAgainRest);
  }
  better_ = 0;
  doublings_ = doublings_of(speed - least);
  way_ = other();
  known_ = trial_;
  finding_->why += in_words(way_);
  rest(now, kLookEvery);
}

}  // namespace gpumux::daemon
