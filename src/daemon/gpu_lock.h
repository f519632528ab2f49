// SPDX-License-Identifier: Apache-2.0
// One daemon owns a GPU: a lock for each GPU UUID that holds for the whole machine and ends with its owner, however
// that ends.
//
// The lock is a listening unix socket with the abstract name "gpumux-gpu-UUID": nobody needs a directory that all users
// can write to, nothing is left behind by a crash, and who cannot have the lock connects and learns from the kernel
// whose it is.
//
// Two limits. Abstract names belong to a network namespace: daemons in containers with networks of their own do not see
// each other (docs/configuration.md). And any user can take a name: that keeps our daemon off a GPU, visibly, and gives
// him nothing else.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

struct LockOwner {
  pid_t pid = 0;
  uid_t uid = 0;
  std::string runtime_dir;  // if it told
};

class GpuLock {
 public:
  // kExists: somebody has it; `owner` is then filled as far as it can be known.
  static base::Result<GpuLock> take(const std::string& uuid_text, std::optional<LockOwner>& owner);

  // The same without asking: does not wait.
  static base::Result<GpuLock> take_only(const std::string& uuid_text);

  // Readable when somebody asks whose it is.
  int fd() const { return socket_.get(); }
  // Tells whoever asks at the moment.
  void answer(const std::string& runtime_dir) const;

 private:
  explicit GpuLock(os::FileDescriptor socket) : socket_(std::move(socket)) {}
  os::FileDescriptor socket_;
};

// "pid 812 of user eva (/run/user/1000/gpumux)". May ask a directory service for the name.
std::string describe(const LockOwner& owner);

}  // namespace gpumux::daemon
