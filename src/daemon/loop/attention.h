// SPDX-License-Identifier: Apache-2.0
// How long the loop stays awake for a message that is about to come.
//
// A lease changes hands by a message from its holder: its gate is closed, it has drained, or it gives up. Waking the
// loop for that message would take longer than all the rest. When the core says that a hand-over is near, the loop
// polls instead of sleeping. It does so for a bounded time and share of its time, and only on a machine with cores to
// spare (os/spin.h).
//
// Owned by the loop's thread.
#pragma once

#include <optional>

#include "os/spin.h"

namespace gpumux::daemon {

// The time from a revocation to "gate closed", and from "idling" to the release after the usual idle hold
// (kUsualIdleHold in sched/lease/order.cc). It is 100 to 300 us where the tenant's threads have to be woken first. A
// drain that takes longer than this is waited for asleep.
inline constexpr base::Duration kHandOverAttention = std::chrono::microseconds(300);
// With GPUs that change hands all the time: the loop polls for this part of one core, and at most this long at once.
inline constexpr int kAttentionShare = 4;
inline constexpr base::Duration kAttentionReserve = std::chrono::milliseconds(5);

class Attention {
 public:
  // A message is about to come.
  void expect(base::TimePoint now) {
    if (!os::has_spare_cores()) return;
    if (!wait_ || wait_->until <= now) wait_ = Wait{.since = now};
    wait_->until = now + kHandOverAttention;
  }

  // It has come.
  void done() {
    if (wait_) wait_->until = wait_->since;
  }

  bool is_expecting() const { return wait_.has_value(); }

  // Whether to look again without sleeping; false: the wait is over, or has used up its share.
  bool goes_on(base::TimePoint now) {
    if (!wait_) return false;
    const base::Duration spun = now - wait_->since;
    if (now < wait_->until && spun < budget_.left(wait_->since)) return true;
    budget_.spend(spun);
    wait_.reset();
    return false;
  }

 private:
  // For a message that is about to come.
  struct Wait {
    base::TimePoint since{};
    base::TimePoint until{};
  };

  os::SpinBudget budget_{kAttentionShare, kAttentionReserve};
  std::optional<Wait> wait_;
};

}  // namespace gpumux::daemon
