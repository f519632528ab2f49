// SPDX-License-Identifier: Apache-2.0
// What of a GPU's memory is not our tenants', from looks at how much of it is used in all.
//
// What is used beyond what seats report is other programs, the contexts of ours, and reports that are late. A report is
// late for some tenths of a second at most. So what two looks a second apart agree on is counted, and what is less is
// believed at once; the planner's reserve covers the time in between. A look at a moment when a seat's memory moved
// says nothing, for the two sums are of different moments.
#pragma once

#include <cstdint>

namespace gpumux::sched {

class ForeignUse {
 public:
  // `beyond`: used, less what seats had said that they have. `is_quiet`: nobody has said otherwise meanwhile.
  // `managed`: what seats have of managed memory: its pages come and go by the driver's doing, and make way for what
  // others allocate, so what they may explain is nobody else's. True: bytes() has become another.
  bool look(std::uint64_t beyond, bool is_quiet, std::uint64_t managed = 0);
  std::uint64_t bytes() const { return bytes_; }
  // What of `beyond` tenants that are gone have left, as long as something of theirs is waited for.
  std::uint64_t left_behind(std::uint64_t beyond) const { return beyond > bytes_ ? beyond - bytes_ : 0; }

 private:
  bool has_looked_ = false;
  std::uint64_t bytes_ = 0;
  std::uint64_t last_ = 0;  // at the last look
};

// What of it is expected for the contexts of so many seats: looks show them too late.
std::uint64_t expected_contexts(std::uint64_t capacity, std::size_t seats);

}  // namespace gpumux::sched
