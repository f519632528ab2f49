// SPDX-License-Identifier: Apache-2.0
// Every process that descends from this one, found in /proc.
//
// The problem: processes start others, change their session, orphan themselves; there is no list of them without a
// control group. The idea: this process is a subreaper, so a process that loses its parent becomes its child. All of
// them always form a tree with this process as the root. The kernel lists each thread's children
// (/proc/PID/task/TID/children), so the tree is walked from here, in microseconds. On a kernel without these lists all
// of /proc is read.
//
// The tree changes while it is walked: one that starts another and ends at once can be missed together with it. But it
// cannot end without a trace: its parent has to wait for it. The parent is this process, which does not wait during a
// look, or a process that still runs and is seen. So processes that have ended (zombies) are part of the result until
// their parents wait for them. After a look that shows a new process, or a running one, another look is needed.
//
// A process number is not a process. Between finding and signalling a process, it may end and its number go to a
// stranger, and the caller is root. So each process found is opened (pidfd), then looked at once more. It is signalled,
// through the descriptor, only if it has the same start time, is still in the tree, and has not ended. A stranger is
// never signalled. Where processes cannot be opened, only this process's children are signalled, by number.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpumux::runners {

struct Descendant {
  pid_t pid = 0;
  pid_t parent = 0;
  std::uint64_t start_ticks = 0;
  char state = '?';  // as in /proc/PID/stat: R, S, D, T, t, Z, X
};

// All descendants of this process but `except`, with those that have ended, parents before their children.
std::vector<Descendant> find_descendants(pid_t except);

// Whether it has ended and waits for its parent. (A first thread that has ended does not make a process end.)
bool has_ended(const Descendant& process);

// Whether there are none at all, not even ended ones. The answer is sure: an existing process has an existing parent,
// up to this one.
bool has_no_descendants(pid_t except);

enum class Signalled { kDone, kGone, kDenied };

// Signals exactly this process, if it is still there and still a descendant of ours as far as `known` (of one look)
// says.
Signalled signal_descendant(const Descendant& process, const std::vector<Descendant>& known, int signal);

// Whether every thread of the process is stopped. True also for one that has ended.
bool is_stopped(pid_t pid);

// Field 22 of /proc/PID/stat; 0: there is no such process.
std::uint64_t start_ticks_of(pid_t pid);

}  // namespace gpumux::runners
