// SPDX-License-Identifier: Apache-2.0
// Physical memory that goes from one seat to another without being freed in between. The driver scrubs freed memory, by
// the engine that the next seat's copies need (docs/decisions/0015).
//
// A frame is the memory of one chunk. A seat that evicts gives it away. A seat that restores takes it, with any
// content, and writes all of it before any work can read it. The process that made a frame exports it once. A process
// that has imported memory cannot export it. So the keeper of frames has the descriptor, and knows the frame by a
// number from then on.
#pragma once

#include <cstdint>
#include <optional>

#include "base/frame_sizes.h"
#include "pager/copier/frame_keeper.h"

namespace gpumux::pager {

// The keeper of frames, between seats that may see each other's data. The thread that steps jobs calls it, without the
// pager's lock. Any thread that frees calls `freed`. No call waits.
class Frames : public FrameKeeper {
 public:
  struct Lent {
    std::uint64_t number = 0;
    int fd = -1;  // the taker's to close
  };

  // Whether a seat waits for a frame of exactly `bytes` bytes, and this one (as below) can be given. No: it is freed.
  virtual bool wants(std::uint64_t number, std::uint64_t bytes) = 0;
  // It is no longer this seat's. The frame's number if it was lent. Number 0: a new frame; the keeper owns its
  // descriptor from now on.
  virtual void give(std::uint64_t number, std::uint64_t bytes, int fd) = 0;
  // Sizes of which there is one to take.
  virtual base::FrameSizes at_hand() = 0;
  // None: the seat makes its memory. Called inside base::NoFork (base/no_fork.h): a forked child would inherit the
  // descriptor.
  virtual std::optional<Lent> take(std::uint64_t bytes) = 0;
  // None of the frames that could be taken is of any use.
  virtual void drop() = 0;
  // `freed`: forgetting the frame frees its memory. `descriptor`: from then on no seat gets the frame.

 protected:
  ~Frames() = default;
};

}  // namespace gpumux::pager
