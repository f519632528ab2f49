// SPDX-License-Identifier: Apache-2.0
// The files that a pod of the plugin puts on its host, and takes away again. They are the hook, the library of this
// version and, if the image has it, the simulated driver. The pod takes away the folders of daemon and plugin, too.
//
//   library   LIBRARIES/VERSION/libgpumux.so   containers name their version, so the next version leaves it there
//   hook      one path                         a runtime starts it, and it ends within seconds
//
// Each file is there as a whole or not at all (os::replace_file_at). A file that has the right content stays, so a pod
// that starts again changes nothing.
//
// Any one thread.
#pragma once

#include <string>

#include "base/result.h"
#include "os/runtime_dir.h"
#include "settings/structs.gen.h"

namespace gpumux::kubernetes {

// `programs`: the folder of this program. The files to copy lie around it.
base::Status install_node_files(const settings::KubeletSettings& settings, const std::string& programs);

// The folders of the daemon. They stay as they are while the daemon runs.
struct DaemonFolders {
  std::string runtime_dir;
  std::string gpu_locks = os::kGpuLockDir;
};

// In this order: specifications, hook, libraries, the plugin's folder, the daemon's. A specification that names a
// missing hook would keep containers from starting. Files that are not ours stay, and folders that have any. kExists:
// containers run with gpumux, or claims are prepared, so nothing was removed.
base::Status remove_node_files(const settings::KubeletSettings& settings, const DaemonFolders& daemon);

}  // namespace gpumux::kubernetes
