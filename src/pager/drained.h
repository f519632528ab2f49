// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::pager {

// The proof that a seat may be evicted: its gate is closed, nobody is inside, and what was submitted has finished.
//
// Unmapping does not wait for anybody: a kernel that still uses the memory dies, and the program's context with it. So
// an eviction is only to be had for such a proof, and asks it again before each chunk it begins with: a lease that
// comes back in the middle (the daemon reopens) ends the eviction, which is not an error.
//
// An implementation answers from its own state, at once, on the thread that steps the eviction.
class DrainedSeat {
 public:
  virtual bool still_drained() const = 0;

 protected:
  ~DrainedSeat() = default;
};

}  // namespace gpumux::pager
