// SPDX-License-Identifier: Apache-2.0
// The mounts at the place of a container's root folder: which of them is the container's own, and which are read-only.
//
// A runtime puts the container's root at its place, once or twice (an overlay, and a bind mount of that). Then it
// mounts the volumes. A volume for "/" comes on top. runc from before November 2025 then takes the volume for the root.
// The volume is another workload's or the host's, so the hook must not change it. Its path in the configuration tells
// nothing: "/etc/.." leads to the root, too, and a link of the image's may. The kernel's list of mounts tells all.
#pragma once

#include <string_view>

#include "base/result.h"

namespace gpumux::kubernetes {

struct RootMount {
  bool is_read_only = false;
  // The mount on which the root's mount lies: read-only before the runtime made mounts.
  bool is_read_only_beneath = false;
};

// `mounts`: the text of /proc/self/mountinfo. `id`: of the mount on which the root folder lies. `is_mount_point`: the
// root folder is that mount's own root. kDenied: mounts of different folders lie on each other there. kInvalid: the
// text is not the kernel's, or has no such mount.
base::Result<RootMount> find_root_mount(std::string_view mounts, int id, bool is_mount_point);

// The same of an open folder. kUnavailable: the kernel's list cannot be read.
base::Result<RootMount> root_mount_of(int root);

}  // namespace gpumux::kubernetes
