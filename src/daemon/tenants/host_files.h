// SPDX-License-Identifier: Apache-2.0
// The files that host memory consists of: all of it zero, all of it there. Where they come from decides how fast they
// are made and registered, for that is work per page:
//
//   kHugePagePool  the system's pool of huge pages, where an administrator has set one apart
//   kTmpfs         a file system of the daemon's own, mounted with huge=always. It is attached nowhere, or at a
//                  folder (setting keep_host_memory). Then it outlives the daemon, and so do files that have a name
//                  (host_names.h). No file is of the pool then.
//   kMemfd         where the kernel refuses such a mount: pages as shared memory gets them on this system
//
// Making the mount needs rights over a mount namespace. Where this process has none, a child takes user and mount
// namespaces of its own, makes the mount and passes its descriptor. The daemon itself stays where it is, for it tells
// its peers by their namespaces.
//
// A file of a tmpfs cannot be sealed: docs/decisions/0017-host-memory-is-a-tmpfs-of-our-own.md says why that is safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

enum class HostFileKind : std::uint8_t { kHugePagePool, kTmpfs, kMemfd };

// "tmpfs": in the API and in logs.
std::string_view name_of(HostFileKind kind);

struct HostFile {
  os::FileDescriptor fd;
  HostFileKind kind = HostFileKind::kMemfd;
  base::Duration took{};  // on the thread that made it
};

class HostFiles {
 public:
  // Without a tmpfs.
  HostFiles() = default;
  // Tries for a tmpfs: in this process, else by a child. Takes milliseconds.
  static HostFiles open();
  // A tmpfs that is attached at the folder, which is made if need be. An earlier daemon's is used again.
  // REQUIRES: the caller holds a lock that says that no other daemon uses the folder.
  static base::Result<HostFiles> open_at(const std::string& folder);
  // By a child at once.
  static HostFiles open_by_child();

  // On any thread. `bytes`: a multiple of the huge page's size.
  base::Result<HostFile> make(std::uint64_t bytes) const;

  // An empty file that can have a name, if files can. None: see errno. `what`: for people.
  os::FileDescriptor make_unnamed(const char* what) const;

  // On any thread. Its pages are the machine's again, even if another process still has the file mapped.
  static void unmake(os::FileDescriptor file, std::uint64_t bytes);

  // A borrower can shrink a file of a tmpfs, for the kernel seals none. A later borrower of that file gets SIGBUS.
  static bool is_whole(int file, std::uint64_t bytes);

  // Why there is no tmpfs. Empty: there is one, or it was not tried for.
  const std::string& why_not() const { return why_not_; }

  // The root of the tmpfs that is attached at a folder. None: there is none.
  os::FileDescriptor attached() const;
  bool is_attached() const { return !place_.empty(); }
  // Attached no more. It is there as long as this or a file of it is open.
  void detach() const;

 private:
  explicit HostFiles(base::Result<os::FileDescriptor> mount);

  os::FileDescriptor mount_;  // the tmpfs lives as long as this or a file of it is open
  std::string place_;         // where it is attached; empty: nowhere
  std::string why_not_;
};

}  // namespace gpumux::daemon
