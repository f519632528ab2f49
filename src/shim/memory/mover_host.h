// SPDX-License-Identifier: Apache-2.0
// When a seat asks for host memory ahead of an eviction, and when unused host memory goes back.
//
//   the seat is likely to be evicted  -> prepare, until there is enough or kHintHolds is over
//   an eviction is over               -> return what it has left over, after kReturnAfter
//   the process ends                  -> unmap all that is unused, after kLeaveAfter
//
// The mover's thread owns a HostAhead.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "pager/sizes.h"
#include "shim/memory/mover_managed.h"

namespace gpumux::shim {

class HostAhead {
 public:
  // The mover asks ahead for the host memory that an eviction is likely to need, and for this much more: 5 ms of
  // copying.
  static constexpr std::uint64_t kWindow = 256 * pager::kMebibyte;
  // Host memory that an eviction has left over goes back after this: the eviction may go on before. The
  // time is a guess.
  static constexpr base::Duration kReturnAfter = std::chrono::seconds(1);
  // By then it is known whether a process that ends is evicted first. The daemon has to hear of its leases, grant the
  // next one, and lower its bound.
  static constexpr base::Duration kLeaveAfter = std::chrono::milliseconds(100);

  struct View {
    std::uint64_t told = 0;  // bytes that the seat is likely to evict soon, if the daemon has just said so
    bool is_evicting = false;
    bool is_restoring = false;
    bool is_starved = false;                         // the job lacks memory
    std::optional<base::TimePoint> leaving_since{};  // the process ends, and the seat has host memory
  };
  // kShare: others may have what the seat could do without. kReturn: that, and the last eviction's left-overs go back.
  enum class Act : std::uint8_t { kKeep, kPrepare, kShare, kReturn };
  // How much of the seat's host memory is unmapped: nothing now; what the daemon will not lend again; all unused, too.
  enum class Forget : std::uint8_t { kNotNow, kUseless, kUnused };
  struct Decision {
    Act act = Act::kKeep;
    std::uint64_t prepare = 0;  // for an eviction of this many bytes
    Forget forget = Forget::kNotNow;
    std::optional<base::Duration> again{};
  };

  Decision next(const View& view, base::TimePoint now);
  // There is all that kPrepare asked for.
  void prepared() { hint_.reset(); }
  // An eviction begins while `used` bytes are in use; an eviction is over.
  void begin_eviction(std::uint64_t used) { used_before_ = used; }
  void end_eviction(base::TimePoint now) {
    used_before_.reset();
    return_at_ = now + kReturnAfter;
  }

  // How many unused bytes there should be for an eviction of `bytes`, if it is likely to take `likely`, and `used` are
  // in use. Host memory that is registered and not used costs the running program driver locks, and other seats the
  // memory. So it is no more than the last eviction took, and the window. A seat whose memory is less constant than
  // before runs out of that. So it gets, during an eviction, the amount again that the eviction has used so far.
  std::uint64_t ahead(std::uint64_t bytes, std::uint64_t likely, std::uint64_t used) const {
    const std::uint64_t taken = used - std::min(used, used_before_.value_or(used));
    return std::min(bytes, std::max(likely + kWindow, taken));
  }

 private:
  struct Hint {
    std::uint64_t bytes = 0;
    base::TimePoint until;
  };
  std::optional<Hint> hint_;
  std::optional<base::TimePoint> return_at_;
  std::optional<std::uint64_t> used_before_;  // the eviction that is under way
};

inline HostAhead::Decision HostAhead::next(const View& view, base::TimePoint now) {
  Decision decision;
  if (view.told != 0) hint_ = Hint{.bytes = view.told, .until = now + kHintHolds};
  // The eviction takes over. If no eviction comes, others may need that memory.
  if (hint_ && (view.is_evicting || now >= hint_->until)) hint_.reset();
  if (hint_) {
    if (!view.is_restoring) decision = {.act = Act::kPrepare, .prepare = hint_->bytes};
    decision.again = hint_->until - now;
  } else if (!view.is_evicting) {
    const bool is_time = return_at_ && now >= *return_at_;
    if (is_time) return_at_.reset();
    decision.act = is_time ? Act::kReturn : Act::kShare;
    if (return_at_) decision.again = *return_at_ - now;
  }
  // Unregistering takes the driver's locks, and milliseconds: not while the next turn waits for what is being moved. A
  // starved job may be waiting for this very memory.
  if ((view.is_evicting || view.is_restoring) && !view.is_starved) return decision;
  decision.forget = Forget::kUseless;
  if (!view.leaving_since) return decision;
  // If a seat waits for this process's turn to end, the eviction begins within kLeaveAfter and uses the host memory
  // that is here.
  const base::Duration left = *view.leaving_since + kLeaveAfter - now;
  if (left <= base::Duration(0)) {
    decision.forget = Forget::kUnused;
  } else {
    decision.again = std::min(left, decision.again.value_or(left));
  }
  return decision;
}

}  // namespace gpumux::shim
