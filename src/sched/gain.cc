// SPDX-License-Identifier: Apache-2.0
#include "sched/gain.h"

#include <algorithm>
#include <utility>

namespace gpumux::sched {
namespace {

// More says nothing, and products of it fit.
constexpr std::uint64_t kMostProgress = std::uint64_t{1} << 48;

std::uint64_t of(const std::map<SeatId, std::uint64_t>& progress, SeatId seat) {
  const auto found = progress.find(seat);
  return found == progress.end() ? 0 : found->second;
}

}  // namespace

void Gain::progressed(SeatId seat, std::uint64_t completed) {
  std::uint64_t& sum = progress_[seat];
  sum = std::min(sum + std::min(completed, kMostProgress), kMostProgress);
}

void Gain::closed(SeatId seat) {
  for (Progress* progress : {&progress_, &before_, &last_before_}) progress->erase(seat);
}

void Gain::rest(TimePoint now, Duration time) {
  phase_ = Phase::kRests;
  next_ = now + time;
  progress_.clear();
}

Way Gain::choose(TimePoint now, bool is_open) {
  const Way other = way_ == Way::kAtOnce ? Way::kByTurns : Way::kAtOnce;
  if (!is_open) {
    *this = Gain();
    return way_;
  }
  if (phase_ == Phase::kOff) rest(now, kTrialEvery);
  if (now < next_) return is_trying() ? other : way_;
  switch (phase_) {
    case Phase::kOff:
    case Phase::kRests:
      phase_ = Phase::kBefore;
      next_ = now + kTrialWindow;
      progress_.clear();
      return way_;
    case Phase::kBefore:
      last_before_ = std::exchange(before_, std::exchange(progress_, {}));
      // Where nothing has changed since the last trial it would find the same.
      if (due_in_ > 1 && !is_another_load()) {
        --due_in_;
        rest(now, kTrialEvery);
        return way_;
      }
      phase_ = Phase::kSettles;
      next_ = now + kTrialSettles;
      return other;
    case Phase::kSettles:
      phase_ = Phase::kTrial;
      next_ = now + kTrialWindow;
      progress_.clear();
      return other;
    case Phase::kTrial: compare(now); return way_;
  }
  return way_;
}

// Each seat's speed in the other way as a part of its speeds in both: a half where they are equal, and bounded, so that
// no single program decides.
void Gain::compare(TimePoint now) {
  std::uint64_t parts = 0, seats = 0;
  for (const auto& [seat, before] : before_) {
    const std::uint64_t after = of(progress_, seat);
    if (before + after == 0) continue;
    parts += 1000 * after / (before + after);
    ++seats;
  }
  for (const auto& [seat, after] : progress_) {
    if (after == 0 || before_.contains(seat)) continue;
    parts += 1000;
    ++seats;
  }
  if (seats < 2) return rest(now, kTrialEvery);  // one at most has done something: nothing to choose
  const std::uint64_t mean = std::min<std::uint64_t>(parts / seats, 999);
  // Of their speed in this way, in thousandths.
  const std::uint64_t speed = 1000 * mean / (1000 - mean);
  const bool is_better = speed >= 1000 + kClearlyBetter;
  const bool tried_turns = way_ == Way::kAtOnce;
  why_ = std::string(tried_turns ? "by turns" : "at once") + " its programs had " + std::to_string(speed / 10) +
         " % of the speed that they have " + (tried_turns ? "at once" : "by turns");
  if (is_better && was_better_) {
    way_ = tried_turns ? Way::kByTurns : Way::kAtOnce;
    was_better_ = false;
    doublings_ = 0;
    why_ += ": they run " + std::string(tried_turns ? "by turns" : "at once") + " now";
  } else {
    doublings_ = is_better ? 0 : std::min(doublings_ + 1, kMostTrialDoublings);
    was_better_ = is_better;
    why_ += is_better ? ": that is tried once more" : ": nothing changes";
  }
  due_in_ = std::uint32_t{1} << doublings_;
  rest(now, kTrialEvery);
}

bool Gain::is_another_load() const {
  const auto differs = [](std::uint64_t a, std::uint64_t b) {
    return 1000 * (std::max(a, b) - std::min(a, b)) > kLoadChange * std::max(a, b);
  };
  const auto any_differs = [&](const Progress& one, const Progress& other) {
    return std::any_of(one.begin(), one.end(),
                       [&](const auto& entry) { return differs(entry.second, of(other, entry.first)); });
  };
  return any_differs(before_, last_before_) || any_differs(last_before_, before_);
}

}  // namespace gpumux::sched
