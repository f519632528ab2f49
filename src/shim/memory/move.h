// SPDX-License-Identifier: Apache-2.0
// Which way one seat's memory goes, and what the pager thread does about it next.
//
//   above its room                        -> kLeaving: evict
//   below its room, and something evicted -> kReturning: restore, lease or not
//   neither                               -> kNone: nothing is kept of earlier moves
//
// A job that lacks what another process has to give up first, or that failed, is tried again, later each time. A
// program that waits for it, with the lease, waits no longer than View::patience. Then the seat is given up if the job
// failed. If the driver has no memory, or the mover is gone, the seat is stranded until something has come back.
// The pager thread owns a Move.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "cuda/driver.gen.h"
#include "pager/job.h"

namespace gpumux::shim {

class Move {
 public:
  static constexpr base::Duration kPoll = std::chrono::microseconds(pager::kPollMicroseconds);
  // A seat that waits for eviction is looked at this often until it is drained. A drain takes its work's time, at most
  // some milliseconds if the daemon bounds it. The drainer wakes the pager thread, too, so both times are a guess.
  static constexpr base::Duration kDrainLook = std::chrono::microseconds(200);
  static constexpr base::Duration kLongestDrainLook = std::chrono::milliseconds(20);
  // A job is tried again after this; twice as long each time, up to the second. A guess: the driver returns the memory
  // of a process that was killed within a tenth of a second (Remedies::kDriverOwes).
  static constexpr base::Duration kRetry = std::chrono::milliseconds(2);
  static constexpr base::Duration kLongestRetry = std::chrono::milliseconds(100);
  // An eviction that is starved for longer is reported to the daemon, which may count on other seats. A guess: longer
  // than the daemon takes to make a chunk of host memory.
  static constexpr base::Duration kStuckAfter = std::chrono::milliseconds(500);
  // A claim of hidden memory that no seat has made way for holds this long: longer than a switch of some GiB takes.
  static constexpr base::Duration kClaimHolds = std::chrono::seconds(1);

  // A step of a job. A job that cannot begin counts as a failed one.
  struct Step {
    pager::JobState state = pager::JobState::kFailed;
    std::uint64_t moved = 0;         // bytes, in this step
    std::uint64_t moved_in_all = 0;  // bytes, by this job
    bool lacks_room = false;         // of kStarved: within its bound; otherwise the driver has no memory
    cuda::CUresult error = cuda::CUDA_SUCCESS;
  };
  struct View {
    std::uint64_t excess = 0;    // bytes above its bound
    std::uint64_t evicted = 0;   // bytes
    bool is_broken = false;      // it is given up: what is away stays away
    bool is_shut = false;        // its gate, for an eviction
    bool may_evict = false;      // no seat of its group may submit
    bool is_waited_for = false;  // its program may submit, and waits at the gate
    base::Duration patience{};   // of such a program, while the driver does not bring memory back
    std::optional<Step> step{};  // of the job under way, if there is one
  };
  enum class Act : std::uint8_t {
    kWait,     // do nothing
    kRest,     // there is nothing to move
    kOpen,     // let the gate open: no eviction goes on
    kEvict,    // begin to evict, behind the doors
    kRestore,  // begin to restore
    kCancel,   // cancel the job
    kClaim,    // claim hidden memory, if the driver has refused for long enough
    kRelease,  // give the claim back
    kGiveUp,   // the program's next work fails
  };
  struct Decision {
    Act act = Act::kWait;
    std::optional<base::Duration> again{};  // nothing: when the pager thread is woken
  };

  Decision next(const View& view, base::TimePoint now);
  // kClaim has claimed some.
  void claimed(base::TimePoint now) { phase_.claimed_at = now; }
  // Since when the job that is wanted has lacked memory, or failed.
  std::optional<base::TimePoint> starved_since() const { return phase_.starved_since; }
  // The driver has no memory for what the program waits for, or the mover does not bring it back. Nothing has
  // come for View::patience.
  bool is_stranded() const { return is_stranded_; }
  bool is_stuck(base::TimePoint now) const {
    return phase_.way != Way::kReturning && phase_.starved_since && now - *phase_.starved_since > kStuckAfter;
  }

 private:
  enum class Way : std::uint8_t { kNone, kLeaving, kReturning };
  // Another way begins another phase: that one way is blocked says nothing of the other.
  struct Phase {
    Way way = Way::kNone;
    base::Duration pause{};  // before the newest attempt
    std::optional<base::TimePoint> again_at{};
    std::optional<base::TimePoint> starved_since{};
    std::optional<base::TimePoint> claimed_at{};
  };

  Decision after_eviction(const View& view, base::TimePoint now);
  Decision after_restoration(const View& view, base::TimePoint now);
  bool gives_up(const View& view, base::TimePoint now);
  void count_refusal(const View& view, base::TimePoint now);
  void end_refusals();
  base::Duration later(base::TimePoint now);

  Phase phase_;
  std::optional<base::TimePoint> failing_since_;  // each restoration has failed, with the lease held
  // The driver has refused each restoration so long, counting only times with the lease.
  base::Duration refused_for_{};
  std::optional<base::TimePoint> refused_at_;  // the newest of these, if the next one adds to that
  bool is_stranded_ = false;
};

}  // namespace gpumux::shim
