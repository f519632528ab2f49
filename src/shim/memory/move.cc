// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/move.h"

#include <algorithm>

namespace gpumux::shim {

using namespace std::chrono_literals;
using pager::JobState;

Move::Decision Move::next(const View& view, base::TimePoint now) {
  if (view.step) return phase_.way == Way::kReturning ? after_restoration(view, now) : after_eviction(view, now);
  if (view.is_broken) return {};
  const Way way = view.excess != 0 ? Way::kLeaving : view.evicted != 0 ? Way::kReturning : Way::kNone;
  if (way != Way::kLeaving && view.is_shut) return {Act::kOpen, 0ns};
  // No seat has made way for a claim that is old: the memory may be there by now.
  if (phase_.claimed_at && (way != Way::kReturning || now - *phase_.claimed_at >= kClaimHolds)) {
    phase_.claimed_at.reset();
    return {Act::kRelease, 0ns};
  }
  if (way != phase_.way) phase_ = Phase{.way = way};
  if (way == Way::kNone) {
    failing_since_.reset();
    end_refusals();
    return {Act::kRest};
  }
  if (phase_.again_at && now < *phase_.again_at) return {Act::kWait, *phase_.again_at - now};
  if (way == Way::kReturning) return {Act::kRestore};
  if (view.may_evict) return {Act::kEvict};
  // A holder keeps what it has. The drainer wakes the pager thread when it is drained; looking as well costs next to
  // nothing.
  phase_.pause = std::clamp(2 * phase_.pause, kDrainLook, kLongestDrainLook);
  return {view.is_shut ? Act::kOpen : Act::kWait, phase_.pause};
}

Move::Decision Move::after_eviction(const View& view, base::TimePoint now) {
  const Step& step = *view.step;
  if (step.moved != 0) phase_.starved_since.reset();
  if (!is_over(step.state)) {
    const Act act = view.excess == 0 ? Act::kCancel : Act::kWait;
    if (step.state == JobState::kRunning) return {act, 0ns};
    if (step.state == JobState::kWaiting) return {act, kPoll};
    if (!phase_.starved_since) phase_.starved_since = now;
    return {act, kPoll};
  }
  // Failed, or there was nothing more to free: what is left is pinned, or held by the driver.
  const bool is_blocked = step.state == JobState::kFailed || (step.state == JobState::kDone && step.moved_in_all == 0);
  return {Act::kOpen, is_blocked ? later(now) : 0ns};
}

Move::Decision Move::after_restoration(const View& view, base::TimePoint now) {
  const Step& step = *view.step;
  if (step.moved != 0) {
    phase_.starved_since.reset();
    phase_.pause = {};
    failing_since_.reset();
    end_refusals();
  }
  switch (step.state) {
    case JobState::kRunning: return {Act::kWait, 0ns};
    // A bound that was lowered since ends it; chunks that were taken stay until they are evicted again.
    case JobState::kWaiting: return {view.excess != 0 ? Act::kCancel : Act::kWait, kPoll};
    case JobState::kDone:
    case JobState::kCancelled: return {Act::kWait, 0ns};
    case JobState::kFailed:
      if (gives_up(view, now)) return {Act::kGiveUp};
      // The mover is gone, and may not come back.
      if (step.error == cuda::CUDA_ERROR_NOT_READY) count_refusal(view, now);
      return {Act::kWait, later(now)};
    case JobState::kStarved:
      // Room that was claimed lacks because the driver has refused it.
      if (!step.lacks_room || phase_.claimed_at) count_refusal(view, now);
      if (!step.lacks_room) return {Act::kClaim, later(now)};
      // Without room it waits for the daemon's next word, or a free, or the end of a claim without effect.
      if (!phase_.claimed_at) return {};
      return {Act::kWait, std::max(base::Duration(0), *phase_.claimed_at + kClaimHolds - now)};
  }
  return {};
}

// The program's next work meets memory that is not there, so its program gets the error.
bool Move::gives_up(const View& view, base::TimePoint now) {
  const cuda::CUresult error = view.step->error;
  const bool is_failure = error != cuda::CUDA_ERROR_NOT_READY && error != cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (!is_failure || !view.is_waited_for) {
    failing_since_.reset();
    return false;
  }
  if (!failing_since_) failing_since_ = now;
  return now - *failing_since_ >= view.patience;
}

// Other seats make way for a claim, if they can. If the driver refuses all the same, no seat has that memory.
void Move::count_refusal(const View& view, base::TimePoint now) {
  // A process that was frozen has not waited. These are the longest pauses between two tries.
  if (refused_at_) refused_for_ += std::min<base::Duration>(now - *refused_at_, kClaimHolds + kLongestRetry);
  refused_at_ = view.is_waited_for ? std::optional(now) : std::nullopt;
  if (view.is_waited_for && refused_for_ >= view.patience) is_stranded_ = true;
}

void Move::end_refusals() {
  refused_for_ = {};
  refused_at_.reset();
  is_stranded_ = false;
}

base::Duration Move::later(base::TimePoint now) {
  phase_.pause = std::clamp(2 * phase_.pause, kRetry, kLongestRetry);
  phase_.again_at = now + phase_.pause;
  if (!phase_.starved_since) phase_.starved_since = now;
  return phase_.pause;
}

}  // namespace gpumux::shim
