// SPDX-License-Identifier: Apache-2.0
#include "runners/program/job_processes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

namespace gpumux::runners {
namespace {

// Looks in one step. A tree that is still needs one, or two if a process has ended in it. A job that forks as fast as
// it can is caught up with in the steps that follow.
constexpr int kLooksPerStep = 8;

bool same(const Descendant& a, const Descendant& b) { return a.pid == b.pid && a.start_ticks == b.start_ticks; }

bool contains(const std::vector<Descendant>& list, const Descendant& process) {
  return std::any_of(list.begin(), list.end(), [&](const Descendant& other) { return same(other, process); });
}

}  // namespace

JobProcesses::JobProcesses() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

bool JobProcesses::release_cgroup() {
  if (group_ && !group_->remove()) return false;
  group_.reset();
  return true;
}

std::vector<Descendant> JobProcesses::find() { return find_descendants(except_); }

std::size_t JobProcesses::signal_all(int signal) {
  const auto processes = find();
  std::size_t done = 0;
  for (const Descendant& process : processes) {
    if (!has_ended(process) && signal_descendant(process, processes, signal) == Signalled::kDone) ++done;
  }
  return done;
}

std::size_t JobProcesses::freeze_step() {
  stopping_ = true;
  if (group_) {
    if (group_->freeze(true)) {
      const auto frozen = group_->is_frozen();
      const auto empty = group_->is_empty();
      if ((frozen && *frozen) || (empty && *empty)) return 0;
      const auto members = group_->members();
      return members && !members->empty() ? members->size() : 1;
    }
    // A group that cannot be frozen (it was removed under us): the signals still can.
  }
  std::vector<Descendant> processes;
  std::vector<Descendant> ended;
  bool quiet = false;
  for (int look = 0; look < kLooksPerStep && !quiet; ++look) {
    processes = find();
    quiet = true;
    // Parents first: a shell that sees its child stop might act on it.
    for (const Descendant& process : processes) {
      if (has_ended(process)) {
        // It may have started another, which this look has not found.
        if (contains(ended, process)) continue;
        ended.push_back(process);
        quiet = false;
        continue;
      }
      const bool stopped = process.state == 'T' || process.state == 't';
      const bool known = contains(stopped_, process);
      // A process that another program has stopped stays so after the thaw. A process that we have stopped goes on only
      // by another program's SIGCONT.
      if (stopped || (known && process.state == 'D')) continue;
      const Signalled signalled = signal_descendant(process, processes, SIGSTOP);
      if (signalled == Signalled::kDone && !known) stopped_.push_back(process);
      quiet = quiet && known && signalled == Signalled::kDone;
    }
  }
  const auto running =
      static_cast<std::size_t>(std::count_if(processes.begin(), processes.end(), [](const Descendant& process) {
        return !has_ended(process) && !is_stopped(process.pid);
      }));
  return quiet ? running : std::max<std::size_t>(running, 1);
}

void JobProcesses::thaw() {
  if (!stopping_) return;
  stopping_ = false;
  if (group_) {
    static_cast<void>(group_->freeze(false));
    if (stopped_.empty()) return;
  }
  const auto processes = find();
  // Children first, so that no parent finds a stopped child when it goes on.
  for (auto process = processes.rbegin(); process != processes.rend(); ++process) {
    if (contains(stopped_, *process)) signal_descendant(*process, processes, SIGCONT);
  }
  stopped_.clear();
}

std::size_t JobProcesses::kill_step() {
  std::size_t most = 0;
  if (group_) {
    static_cast<void>(group_->kill());
    static_cast<void>(group_->freeze(false));
  }
  for (int look = 0; look < kLooksPerStep; ++look) {
    const auto processes = find();
    std::size_t there = 0;
    for (const Descendant& process : processes) {
      if (has_ended(process)) continue;
      ++there;
      signal_descendant(process, processes, SIGKILL);
    }
    most = std::max(most, there);
  }
  return most;
}

std::size_t JobProcesses::count() {
  const auto processes = find();
  return static_cast<std::size_t>(
      std::count_if(processes.begin(), processes.end(), [](const Descendant& process) { return !has_ended(process); }));
}

}  // namespace gpumux::runners
