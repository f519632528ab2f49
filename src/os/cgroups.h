// SPDX-License-Identifier: Apache-2.0
// Where the control groups of this process are in the file system: in version 2's hierarchy, or in that of a controller
// of version 1. Machines have either kind, or both.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpumux::os {

struct CgroupFolder {
  std::string mount_point;
  std::string path;  // of the group: the mount point, or below it
};

// `controller`: of version 1, such as "memory"; empty: version 2. None: there is no such hierarchy, it is not mounted,
// or the mount does not show the group.
std::optional<CgroupFolder> own_cgroup(std::string_view controller);
// The same from the texts of /proc/self/cgroup and /proc/self/mountinfo (proc(5)).
std::optional<CgroupFolder> find_cgroup(std::string_view groups, std::string_view mounts, std::string_view controller);

}  // namespace gpumux::os
