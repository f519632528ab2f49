// SPDX-License-Identifier: Apache-2.0
// The daemon's invariants, checked while it serves. Builds for tests check them after each event, and end at the first
// one that is broken. Here that costs too much, and the programs must go on: what is broken is logged once and counted.
//
// A check takes one part in kShareOfSelfChecks of the loop's time at most: after one that took 1 ms the next one comes
// a second later. So with many tenants it is rarer, and never to be noticed. Owned by the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace gpumux::daemon {

// A guess: too little to be seen in any latency, and still a check a second for hundreds of tenants.
inline constexpr std::int64_t kShareOfSelfChecks = 1000;

class SelfCheck {
 public:
  struct Part {
    const char* name;                     // for the log
    std::function<std::string()> broken;  // the first invariant that is, in words; empty: none
  };

  SelfCheck(base::Clock& clock, std::vector<Part> parts);

  // Checks the parts that are due. Called once a second.
  void look();

  // How often a part was found broken.
  std::uint64_t found() const { return found_; }

 private:
  struct Watched {
    Part part;
    base::TimePoint due{};
    bool is_logged = false;
  };

  base::Clock& clock_;
  std::vector<Watched> parts_;
  std::uint64_t found_ = 0;
};

}  // namespace gpumux::daemon
