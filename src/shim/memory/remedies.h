// SPDX-License-Identifier: Apache-2.0
// Which remedy follows when an allocating call lacks memory. Pure: Memories carries the remedies out, the tests run
// them against the daemon's planner.
//
// The rule: a call that fails for lack of memory has an order of remedies, the cheapest first. The first remedy that
// makes a difference leads to the next try, and a try that fails begins the order anew. Calls differ only in what they
// lack, and each lack has its own order (Remedies::kOrders).
//
// The end of an order is a proof, not a number of attempts. The seat keeps nothing for reuse, and the daemon has said
// no. And no free is under way, or the driver has had time to return what it owed. Other threads of the process may
// take what a remedy has brought. Each such round is a successful allocation of theirs, so the process as a whole gets
// on.
//
// One wish of a seat is open at a time (DeviceMemory::asking), so a no is always about the thread that asked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "pager/pager.h"

namespace gpumux::shim {

class Remedies {
 public:
  enum class Lack : std::uint8_t {
    kNone,
    kRoom,        // the pager should place it on the GPU, and has no room there
    kCommitment,  // its commitment does not allow it
    kDriver,      // only the driver can make it, and has too little memory
    kOther,       // the pager has no addresses, or the size is invalid: the driver fails then, too
  };
  enum class Remedy : std::uint8_t {
    kReleasePools,      // give the pools' free memory back to the pager
    kTrim,              // the same, and to the driver all that the pager keeps for reuse
    kAskForRoom,        // ask the daemon for room() and for commitment
    kAskInTurn,         // wait for pause(); the same when the seat holds its lease
    kDoWithoutRoom,     // try, and let the memory be born evicted
    kAskForCommitment,  // ask the daemon for commitment alone
    kAwaitFrees,        // wait for what was freed in the order of streams
    kAwaitDriver,       // wait for pause()
    kTry,
    kGiveUp,
  };
  // The daemon's. kTooMuch: the daemon refuses this amount, and may give less. kNoBounds: there is no daemon, and the
  // driver alone decides. kTurnOver: the turn ended before the daemon had given or refused it, which says nothing of
  // the amount.
  enum class Answer : std::uint8_t { kGiven, kRefused, kTooMuch, kNoBounds, kTurnOver };

  // `bytes`: about what the call takes.
  explicit Remedies(std::uint64_t bytes) : bytes_(bytes), room_(std::clamp(bytes, pager::kBlockBytes, kNever - 1)) {}

  // For paged memory: on the GPU while there is hope of room.
  pager::Placement placement() const {
    return does_without_room_ ? pager::Placement::kEvicted : pager::Placement::kResident;
  }
  static Lack lack_of(pager::Placement placement, cuda::CUresult result) {
    if (!pager::lacks_memory(result)) return Lack::kNone;
    if (placement == pager::Placement::kResident) return Lack::kRoom;
    return result == pager::kBeyondCommitment ? Lack::kCommitment : Lack::kOther;
  }

  // The try has failed.
  Remedy failed(Lack lack) {
    next_ = kOrders[static_cast<std::size_t>(lack)];
    return next();
  }
  // REQUIRES: a remedy other than asking has been carried out. `helped`: it has made a difference.
  Remedy ended(bool helped) { return helped ? kTry : next(); }
  // REQUIRES: the daemon has been asked.
  Remedy answered(Answer answer) {
    const Remedy asked = next_[-1];
    is_refused_ = is_refused_ || answer == Answer::kRefused || answer == Answer::kTooMuch;
    // Bounds that are gone cannot be what lacks.
    if (asked == kAskForCommitment) return ended(answer == Answer::kGiven || answer == Answer::kNoBounds);
    if (answer == Answer::kNoBounds) return kGiveUp;
    if (asked == kAskForRoom) {
      has_proof_ = true;  // asked for once
      return ended(answer == Answer::kGiven);
    }
    if (answer != Answer::kTurnOver) search(answer);
    return kTry;  // after any answer: what was given before may have come by now
  }

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t room() const { return room_; }
  base::Duration pause() const { return pause_; }
  // The daemon has refused the call something, and has told people so.
  bool is_refused() const { return is_refused_; }

 private:
  using enum Remedy;
  // Paged memory asks for room once, although it can do without: memory that is born evicted closes the gate until the
  // pager thread is done.
  //
  // The daemon is asked for commitment before the thread waits for frees: a message costs less than a wait for the GPU.
  //
  // The driver alone knows how much its memory takes. So the thread searches for the most free room that it can have:
  // search(). When it has been given that, all that can leave the GPU has left it. After that only what the driver
  // still owes can come: the memory of processes that have ended.
  static constexpr Remedy kOrders[][4] = {
      {},                                                        // kNone
      {kReleasePools, kAskForRoom, kDoWithoutRoom},              // kRoom
      {kReleasePools, kAskForCommitment, kAwaitFrees, kGiveUp},  // kCommitment
      {kTrim, kAskInTurn, kAwaitDriver, kGiveUp},                // kDriver
      {kReleasePools, kGiveUp},                                  // kOther
  };
  static constexpr std::uint64_t kNever = std::uint64_t{1} << 60;  // no GPU has that much
  // A guess: the first pauses are short, and a call each tenth of a second costs next to nothing.
  static constexpr base::Duration kFirstPause = std::chrono::milliseconds(1);
  static constexpr base::Duration kLongestPause = std::chrono::milliseconds(100);
  // The memory of a process that was killed with 40 GiB is back after 68 ms; a busy machine takes longer.
  static constexpr base::Duration kDriverOwes = std::chrono::seconds(2);

  bool is_used_up(Remedy remedy) const {
    if (remedy == kAwaitDriver) return owed_for_ >= kDriverOwes;
    return (remedy == kAskForRoom || remedy == kAskInTurn) && has_proof_;
  }
  // After each success it doubles the request. After a refusal it asks for the middle between that and what it was
  // given. When less than a block lies between, it asks once more for what it was given. Other seats may have taken
  // that since, and then the search goes on below it.
  void search(Answer answer) {
    if (answer == Answer::kGiven) {
      given_ = room_;
    } else {
      refused_ = room_;
      if (given_ >= refused_) given_ = 0;
    }
    const bool is_narrow = refused_ - given_ <= pager::kBlockBytes;
    // If the daemon refuses every request, nothing moves for a smaller one either.
    has_proof_ = answer == Answer::kRefused || (is_narrow && (answer == Answer::kGiven || given_ == 0));
    if (refused_ == kNever) {
      room_ = std::min(room_ * 2, kNever - 1);
    } else {
      room_ = is_narrow ? given_ : given_ + (refused_ - given_) / 2;
    }
  }
  Remedy next() {
    while (is_used_up(*next_)) ++next_;
    const Remedy remedy = *next_++;
    if (remedy == kDoWithoutRoom) does_without_room_ = true;
    // The driver needs a moment for what has just left. The first question does not wait.
    if (remedy == kAskInTurn || remedy == kAwaitDriver)
      pause_ = std::exchange(next_pause_, std::clamp(2 * next_pause_, kFirstPause, kLongestPause));
    if (remedy == kAwaitDriver) owed_for_ += pause_;
    return remedy;
  }

  std::uint64_t bytes_;
  const Remedy* next_ = nullptr;  // in the order of what lacks
  bool does_without_room_ = false;
  bool is_refused_ = false;
  std::uint64_t room_;              // to ask for next
  std::uint64_t given_ = 0;         // the most that was given
  std::uint64_t refused_ = kNever;  // the least that was refused
  bool has_proof_ = false;          // asking again can bring nothing
  base::Duration pause_{};
  base::Duration next_pause_{};
  base::Duration owed_for_{};
};

}  // namespace gpumux::shim
