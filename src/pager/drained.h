// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::pager {

// The proof that a seat may be evicted: its gate is closed, no thread is inside, and what was submitted has finished.
//
// Unmapping waits for nothing: a kernel that still uses the memory dies, and the program's context with it. So an
// eviction needs this proof, and asks for it again before each chunk that it begins. A lease that comes back in between
// (the daemon grants it again) ends the eviction, which is not an error.
//
// An implementation answers from its own state, at once, on the thread that steps the eviction.
class DrainedSeat {
 public:
  virtual bool still_drained() const = 0;

 protected:
  ~DrainedSeat() = default;
};

}  // namespace gpumux::pager
