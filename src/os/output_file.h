// SPDX-License-Identifier: Apache-2.0
// Opens a file to write to, by a path that a person or a setting names.
//
// Problem: in a folder that others may write to (/tmp), another user can have put a link at that path. A program with
// more rights then writes over a file of its own: root over /etc/shadow. The kernel's fs.protected_symlinks is against
// that, where it is on, and only in sticky folders.
//
// Rule: the path leads through links of the caller's and of root's only, and ends at
//   - a new file,
//   - a regular file of the caller's that has no second name (a hard link), or
//   - a device, a pipe or a terminal of the caller's or of root's, or one that the caller has open (/dev/stdout).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::os {

enum class Write {
  kAnew,  // the file is emptied
  kAtItsEnd,
};

// Never waits. `mode`: of a new file. kDenied: the rule above; the error names the link or the file. kUnavailable: a
// pipe without a reader.
base::Result<FileDescriptor> open_output(const std::string& path, Write write, mode_t mode);

}  // namespace gpumux::os
