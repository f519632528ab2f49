// SPDX-License-Identifier: Apache-2.0
// The control group of a process: the kernel's word for the container, or the Slurm job, that it is in. A process
// cannot leave the group that its container's runtime has put it into. It can at most go further down.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace gpumux::containers {

// `text`: of /proc/PID/cgroup. With version 1 of control groups there are several, and a runtime need not use them all.
// So the longest path with an id is taken, or else the longest. Empty: there is none.
std::string control_group_in(std::string_view text);

// Of a process, as it is seen from the caller's namespace of control groups. Empty: it has ended, or has none. Reads
// /proc, for microseconds.
std::string control_group_of(pid_t pid);

// The id that such a path has first, for what is nested in a container may have any name. Empty: it has none.
//   container   the name part of 64 hexadecimal digits that runc's, containerd's, CRI-O's, podman's and Docker's groups
//               have
//   Slurm job   "slurm-42" of the name "job_42" below a name with "slurm" in it
std::string container_id_in(std::string_view control_group);

// The path as far as the name by which container_id_in() knows it. Empty: it has no id.
std::string_view container_group_in(std::string_view control_group);

// The id of a Slurm job.
std::string slurm_id(std::uint32_t job);

// Whether `group` is `outer` or lies in it.
bool is_within(std::string_view group, std::string_view outer);

}  // namespace gpumux::containers
