// SPDX-License-Identifier: Apache-2.0
// From a forked child to the job's main process.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/result.h"
#include "runners/program/cgroup.h"
#include "wire/runner_records.h"

namespace gpumux::runners {

struct ChildPlan {
  const wire::RunnerSpec* spec = nullptr;
  pid_t supervisor = 0;
  int report = -1;                 // runners/program/report.h
  int terminal = -1;               // interactive: the job's side of the pty; else -1
  int program = -1;                // with a set-up command: this program, open for reading
  const Cgroup* cgroup = nullptr;  // to join; null: it is in its group already, or there is none
};

// Never returns. The order makes it safe. While the child still has root's rights it does only things that need them,
// and names nothing of the user's. Then it gives them up and shows it. Then come the log, the directory, the terminal,
// the command.
[[noreturn]] void become_job(const ChildPlan& plan);

// Closes every descriptor but standard streams and these.
void close_all_but(std::vector<int> keep);

// Signals as a program expects to find them: all at their defaults, none blocked.
void reset_signals();

// Standard input from, and output to, nowhere.
base::Status empty_standard_streams();

// The calling process's limits. A limit that may not be raised so far is raised as far as it may.
base::Status apply_limits(const std::vector<wire::ResourceLimit>& limits);

}  // namespace gpumux::runners
