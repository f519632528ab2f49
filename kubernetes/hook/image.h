// SPDX-License-Identifier: Apache-2.0
// The one change that the hook makes in a container: /etc/ld.so.preload names the library.
//
// The image is hostile, and the process has root's rights on the host. Nothing here counts on the process's own root
// folder. Rules:
//
// - Every path is opened by openat2 below the root folder's descriptor, never by name (RESOLVE_IN_ROOT,
//   RESOLVE_NO_MAGICLINKS).
// - Links of the image's count only where the hook looks whether a file is there. They stay inside of the root.
// - The hook goes through no link and across no mount to files that it reads or changes. A volume at /etc may be a
//   folder of the host's, or another container's too: the list in it stays as it is.
// - A root that the runtime has made read-only before the hook (crun) is written through a mount of the hook's own
//   (Linux 5.12). The mount is attached nowhere and ends with the hook. Any other read-only root stays as it is.
// - The new list gets its name by a rename. The list is the old one or the new one at every moment.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::kubernetes {

// The largest list that is changed. An entry is a path, and the loader opens each of them for every program.
inline constexpr std::size_t kMaxListBytes = 64u << 10;

enum class Listing {
  kAdded,      // the list names the library now
  kPresent,    // the list named it, or another file of its name that is there, before
  kNoLoader,   // the image has no glibc: no program of it reads the list, and a musl program could not load the library
  kOldLoader,  // the image's glibc is too old for the library: its programs would not start
};

// Whether a loader's file, "ld-2.27.so", tells that its glibc is older than `kOldestGlibc`. Since 2.34 it tells
// nothing.
bool is_too_old(std::string_view loader_file);

// The list with one more entry. Comments, other entries and their order stay.
std::string with_entry(std::string_view list, std::string_view library);

enum class Access {
  kWritable,
  kReadOnlyByRuntime,  // the configuration asks for it, and the folder was writable before
  kReadOnly,  // by another process than the runtime, also if the runtime has made it writable for the container
};

// `root`: a descriptor of the container's root folder; with O_PATH, too. `library`: an absolute path inside of the
// container, where anything but a regular file is an error (kNotFound). kUnsupported: the kernel has no openat2 (Linux
// before 5.6). kDenied: the root is read-only; or the list is no regular file, lies on another mount or behind a link,
// or has a zero byte. Also kDenied: the list names a library of ours by no absolute path. kExhausted: the list is too
// long.
base::Result<Listing> list_library(int root, const std::string& library, Access access);

}  // namespace gpumux::kubernetes
