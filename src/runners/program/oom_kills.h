// SPDX-License-Identifier: Apache-2.0
// Whether the kernel has killed a process of the job for want of host memory. A job that starts its work in other
// processes ends with a status of its own then, which says nothing of memory.
//
// The kernel counts such kills: for each control group of version 2 that has the memory controller, and for the whole
// machine. Mostly the job's own group has no such count, because only a group without processes can hand the controller
// on, and the daemon is in the group above. So the count around the job is compared, too: what it is at the job's end
// with what it was at the start. It counts other jobs' processes as well.
#pragma once

#include <cstdint>
#include <optional>

#include "runners/program/cgroup.h"

namespace gpumux::runners {

enum class OomKill {
  kNone,     // or it is not known
  kOfJob,    // a process of the job
  kNearJob,  // a process of the job, of another job, or of any program of the machine
};

class OomKills {
 public:
  // At the job's start.
  void begin();
  // At its end. `group`: the job's own; null: it has none.
  OomKill look(const Cgroup* group) const;

 private:
  std::optional<std::uint64_t> before_;
};

}  // namespace gpumux::runners
