// SPDX-License-Identifier: Apache-2.0
// The facts about a process that /proc has. For people and for the restart file; nothing is decided by it but whether a
// number in that file still means the same process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace gpumux::server {

struct ProcessInfo {
  std::string name;              // as the kernel has it: at most 15 bytes
  char state = '?';              // R, S, D, T (stopped), t (traced), Z, ...
  pid_t parent = 0;              // 0: it has none here
  bool is_ending = false;        // it runs no more code of its own
  std::uint64_t start_time = 0;  // ticks since boot: with the pid, names one process
};

// None: there is no such process, or /proc is hidden from us.
std::optional<ProcessInfo> process_info(pid_t pid);

// "stopped (SIGSTOP or a debugger)", "frozen in the kernel", "": why a process does not answer.
std::string describe_state(char state);

// The uid of a user's name, or of a number. None: there is no such user. As user_name(), not for the loop's thread.
std::optional<uid_t> user_id(const std::string& name);
// "eva", or "1001" if the number has no name. May ask a directory service, and wait for it: not for the loop's thread.
std::string user_name(uid_t uid);

}  // namespace gpumux::server
