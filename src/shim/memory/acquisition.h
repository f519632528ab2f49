// SPDX-License-Identifier: Apache-2.0
// Which step follows when a thread lacks memory. Pure: memories.h carries the steps out, the tests run them against the
// daemon's planner.
//
// The rule: a thread tries, asks the daemon for what it lacks, and tries again for as long as the daemon gives. Only
// the daemon's no ends an acquisition. Other threads of the process may take what the daemon gave; then the thread asks
// again. Each such round is an allocation of theirs that succeeded, so the process as a whole gets on.
//
// One wish of a seat is open at a time (DeviceMemory::Asking), so a no is always about the thread that asked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "pager/pager.h"

namespace gpumux::shim {

// Paged memory needs commitment. It does not need room on the GPU: an allocation that finds none there is born evicted,
// and the mover restores it before work can reach it. A holder asks for room once all the same, because an allocation
// that is born evicted closes the gate until the mover is done.
//
//     try on the GPU --no room--> ask for room --answer--> try on the GPU --no room--> try evicted
//     try evicted --beyond the commitment--> ask for commitment --given--> try again
//                                                               --refused--> wait for frees under way --some--> try
//                                                               again
//                                                                                                     --none--> give up
class Acquisition {
 public:
  enum class Step : std::uint8_t { kTry, kAskForRoom, kAskForCommitment, kAwaitFrees, kGiveUp };
  // kTooMuch: the daemon refuses so much, and may give less. kNoBounds: there is no daemon, and the driver alone
  // decides. kNotHolding: the seat lost its lease meanwhile.
  enum class Answer : std::uint8_t { kGiven, kRefused, kTooMuch, kNoBounds, kNotHolding };

  // `may_use_gpu`: the thread is inside its seat's gate, which keeps the memory on the GPU until it leaves.
  pager::Placement placement(bool may_use_gpu) const {
    return may_use_gpu && room_ != Room::kDoneWithout ? pager::Placement::kResident : pager::Placement::kEvicted;
  }
  // The try has failed for lack of memory, with CUDA_ERROR_OUT_OF_MEMORY or pager::kBeyondCommitment.
  Step tried(pager::Placement placement, cuda::CUresult result) {
    if (placement == pager::Placement::kResident) {
      const bool asks = room_ == Room::kNotAsked;
      room_ = asks ? Room::kAsked : Room::kDoneWithout;
      return asks ? Step::kAskForRoom : Step::kTry;
    }
    // The pager lacks addresses, or the size is no size: a driver fails there, too.
    return result == pager::kBeyondCommitment ? Step::kAskForCommitment : Step::kGiveUp;
  }
  Step room(Answer answer) {
    if (answer == Answer::kNoBounds) return Step::kGiveUp;
    if (answer != Answer::kGiven) room_ = Room::kDoneWithout;
    return Step::kTry;
  }
  static Step commitment(Answer answer) { return answer == Answer::kGiven ? Step::kTry : Step::kAwaitFrees; }
  static Step frees(bool any) { return any ? Step::kTry : Step::kGiveUp; }

 private:
  enum class Room : std::uint8_t { kNotAsked, kAsked, kDoneWithout };
  Room room_ = Room::kNotAsked;
};

// Memory that only the driver can make needs free memory of the GPU, and the driver alone knows how much. So the thread
// asks the daemon for more and more free room: twice as much after each try that fails, and after a refusal half of
// what lies between that and what it was given. It ends when the driver has enough, or when less than a block lies
// between: by then all that can leave the GPU has left it. After that nothing moves any more but what the driver itself
// still owes: the memory of processes that have ended.
class DriverAcquisition {
 public:
  using Answer = Acquisition::Answer;

  // `bytes`: about what the call takes.
  explicit DriverAcquisition(std::uint64_t bytes) : room_(std::max(bytes, pager::kBlockBytes)) {}

  // Free room to ask the daemon for before the next try; nothing: the daemon has no more.
  std::optional<std::uint64_t> room() const { return has_more() ? std::optional(room_) : std::nullopt; }
  // The daemon has answered: kGiven, kTooMuch or kRefused.
  void answered(Answer answer) {
    (answer == Answer::kGiven ? given_ : refused_) = room_;
    if (answer == Answer::kRefused) given_ = refused_;  // nothing moves for less either
    room_ = refused_ == kNever ? std::min(room_ * 2, kNever - 1) : given_ + (refused_ - given_) / 2;
  }
  // The driver has too little all the same. How long to wait before the next try; nothing: there will be none.
  std::optional<base::Duration> tried() {
    if (!has_more() && owed_for_ >= kDriverOwes) return std::nullopt;
    if (!has_more()) owed_for_ += pause_;
    return std::exchange(pause_, std::min(pause_ * 2, kLongestPause));
  }

 private:
  static constexpr std::uint64_t kNever = std::uint64_t{1} << 60;  // no GPU has so much
  static constexpr base::Duration kFirstPause = std::chrono::milliseconds(1);
  static constexpr base::Duration kLongestPause = std::chrono::milliseconds(100);
  // The memory of a process that was killed with 40 GiB is back after 68 ms; a busy machine takes longer.
  static constexpr base::Duration kDriverOwes = std::chrono::seconds(2);

  bool has_more() const { return refused_ - given_ > pager::kBlockBytes; }

  std::uint64_t room_;              // to ask for next
  std::uint64_t given_ = 0;         // the most that was given
  std::uint64_t refused_ = kNever;  // the least that was refused
  base::Duration pause_ = kFirstPause;
  base::Duration owed_for_{};
};

}  // namespace gpumux::shim
