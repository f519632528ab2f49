// SPDX-License-Identifier: Apache-2.0
// The job's own control group (version 2). A process that is born in it stays in it, whichever process its parent
// becomes. So the group can be frozen and killed as a whole.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::runners {

// The directory of this process's own group of version 2; empty: there is none to be seen.
std::string own_cgroup();

// Where the job's own group will be: below `parent` (wire::RunnerSpec::cgroup_parent). Empty, with no error: nowhere.
// `parent` is "none"; or it is "auto", and there is no version 2, or this process's own group is not for it to divide.
// Under systemd only a group with the mark of having been delegated is.
std::string plan_cgroup(const std::string& parent, std::uint64_t job, std::uint32_t attempt);

class Cgroup {
 public:
  // Makes the directory. An error leaves nothing behind; the job is then held together without a group.
  static base::Result<Cgroup> make(const std::string& path);

  // fork(), with the child in the group from its first instruction. Negative, and nothing has happened, where the
  // kernel cannot (before 5.7) or a container's filter forbids it: then the child has to join(). For a process of one
  // thread.
  pid_t fork_into() const;
  // In the job's process, before it drops its rights: from here on it and all that it starts are in the group. The
  // kernel moves a process when every processor has come by: 10 to 30 ms, in which nothing of the job's happens.
  base::Status join() const;

  base::Status freeze(bool frozen) const;
  // Whether all of it is frozen by now.
  base::Result<bool> is_frozen() const;
  // SIGKILL to everything in it, at once where the kernel can (5.14).
  base::Status kill() const;
  base::Result<bool> is_empty() const;
  base::Result<std::vector<pid_t>> members() const;
  // Removes it and the groups that root's jobs have made below it. False: not yet; a process that has just ended may be
  // in it for a moment.
  bool remove() const;
  int directory() const { return directory_.get(); }

 private:
  base::Status write(const char* name, const char* value) const;
  base::Result<bool> event(const char* key) const;

  std::string path_;
  os::FileDescriptor directory_;
};

}  // namespace gpumux::runners
