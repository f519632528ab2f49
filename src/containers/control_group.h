// SPDX-License-Identifier: Apache-2.0
// The control group of a process: the kernel's word for the container that it is in. A process cannot leave the group
// that its container's runtime has put it into. It can at most go further down.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace gpumux::containers {

// `text`: of /proc/PID/cgroup. With version 1 of control groups there are several, and a runtime need not use them all;
// so the longest path is taken. Empty: there is none.
std::string control_group_in(std::string_view text);

// Of a process, as it is seen from the caller's namespace of control groups. Empty: it has ended, or has none. Reads
// /proc, for microseconds.
std::string control_group_of(pid_t pid);

// The container's id in such a path: the first name part of 64 hexadecimal digits, which runc's, containerd's, CRI-O's,
// podman's and Docker's groups have. The first, for what is nested in a container may have any name. Empty: there is
// none.
std::string_view container_id_in(std::string_view control_group);

// Whether `group` is `outer` or lies in it.
bool is_within(std::string_view group, std::string_view outer);

}  // namespace gpumux::containers
