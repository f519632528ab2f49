// SPDX-License-Identifier: Apache-2.0
// All processes of the job, as one thing: signal, freeze, thaw, kill. It works by the job's control group if there is
// one, and otherwise by the tree of descendants. Killing also reaches descendants that have left the group, as a job of
// root's can.
//
// Nothing here waits. Freezing and killing take several steps while processes come and go. The caller calls step
// functions from its loop until they say that it is done.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "runners/program/cgroup.h"
#include "runners/program/descendants.h"

namespace gpumux::runners {

class JobProcesses {
 public:
  // Makes this process the subreaper of the processes that it starts.
  JobProcesses();

  void use_cgroup(Cgroup group) { group_.emplace(std::move(group)); }
  // Goes on without the group; for when nothing is in it. False: it is not quite empty yet.
  bool release_cgroup();
  bool uses_cgroup() const { return group_.has_value(); }
  const Cgroup* cgroup() const { return group_ ? &*group_ : nullptr; }
  // The process that holds the terminal is ours, not the job's.
  void except(pid_t pid) { except_ = pid; }

  // Sends it to everything that there is now; returns to how many.
  std::size_t signal_all(int signal);

  // One step of stopping everything. Returns how many are not stopped yet; 0: nothing of the job runs.
  std::size_t freeze_step();
  // Lets every process go on that freeze_step() has stopped; a process that had been stopped before stays stopped.
  void thaw();

  // One step of killing everything. Returns how many were there.
  std::size_t kill_step();

  // How many run, as far as one look tells.
  std::size_t count();
  // Whether nothing of the job is left, for sure. The caller has waited for those that have ended.
  bool is_gone() const { return has_no_descendants(except_); }

 private:
  std::vector<Descendant> find();

  std::optional<Cgroup> group_;
  pid_t except_ = 0;
  bool stopping_ = false;
  // Without a group: the processes that freeze_step() has sent SIGSTOP to, so that thaw() touches no others.
  std::vector<Descendant> stopped_;
};

}  // namespace gpumux::runners
