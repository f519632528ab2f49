// SPDX-License-Identifier: Apache-2.0
// When a seat's managed memory leaves the GPU ahead of a revocation, and when it may come back. The pager thread owns
// a ManagedMove; ManagedMemory does the moving.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace gpumux::shim {

// How long the daemon's word that a seat's turn ends counts, if no revocation follows. Longer than the daemon tells
// ahead (sched: kExpectEvictionAhead).
inline constexpr base::Duration kHintHolds = std::chrono::seconds(1);

class ManagedMove {
 public:
  enum class Decision : std::uint8_t { kStay, kLeave, kComeBack, kStopComingBack };
  struct View {
    std::uint64_t told = 0;  // bytes that are in the way, if the daemon has just said so
    bool has_lease = false;
    std::uint64_t epoch = 0;  // of the newest lease
  };

  // REQUIRES: the daemon has just told it to leave, or some of it is away.
  Decision next(const View& view, base::TimePoint now) {
    if (view.told != 0) {
      hint_ = Hint{.epoch = view.epoch, .at = now};
      return Decision::kLeave;
    }
    if (!view.has_lease) return Decision::kStopComingBack;
    const bool is_hinted = hint_ && hint_->epoch == view.epoch && now - hint_->at < kHintHolds;
    return is_hinted ? Decision::kStay : Decision::kComeBack;
  }

 private:
  struct Hint {
    std::uint64_t epoch = 0;  // of the lease during which the daemon told it
    base::TimePoint at;
  };
  std::optional<Hint> hint_;
};

}  // namespace gpumux::shim
