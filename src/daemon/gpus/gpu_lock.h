// SPDX-License-Identifier: Apache-2.0
// One daemon owns a GPU. Each GPU UUID has a lock that holds for the whole machine and ends with its owner, however
// that ends (docs/decisions/0006).
//
// Any daemon binds the abstract unix socket "gpumux-gpu-UUID". A daemon that cannot have the name connects and learns
// from the kernel whose it is.
//
// Any process can bind that name, so root's daemon does not depend on it. It locks a file in a folder that only root
// can write to (os::kGpuLockDir). It also listens on a socket there, by which every daemon finds it. A private
// daemon, also one of root's, gives way to root's daemon. It looks for that socket when it takes a GPU, and when a
// process connects to its name, as root's daemon does. A process that keeps the name all the same is no daemon of ours;
// it is reported (squatter()) and changes nothing.
//
// One limit: abstract names belong to a network namespace, and folders to a mount namespace. Daemons in containers do
// not see each other (docs/configuration.md).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/peers/closer.h"
#include "os/file_descriptor.h"
#include "os/runtime_dir.h"

namespace gpumux::daemon {

struct LockOwner {
  pid_t pid = 0;  // 0: not known
  uid_t uid = 0;
  std::string runtime_dir;  // if it told
  bool is_on_host = false;  // it lives, and is shown to be in no container
};

// Which lock, and whose it would be.
struct LockRequest {
  std::string uuid_text;
  std::string runtime_dir;  // told to processes that ask
  std::string folder = os::kGpuLockDir;
  bool is_private = false;  // a private daemon of root's gives way like that of another user
};

class GpuLock {
 public:
  enum class Patience : bool { kNone, kForAnswer };
  // Fails with kExists if another process has the lock, and fills `owner` as far as it can be known. With kForAnswer it
  // waits for the owner's answer, at most kAnswerTimeoutMs, and looks longer for a squatter. The closer gets the
  // connections of owners and visitors, with all that lies in them, and outlives the lock.
  static base::Result<GpuLock> take(const LockRequest& request, std::optional<LockOwner>& owner, Closer& closer,
                                    Patience patience = Patience::kForAnswer);
  GpuLock(GpuLock&&) = default;
  GpuLock& operator=(GpuLock&&) = delete;
  ~GpuLock();

  // Readable when a process asks who owns the GPU.
  int fd() const { return visits_.get(); }
  // Answers a few of the processes that ask at the moment. fd() is readable again if there are more.
  void answer() const;
  // Of a lock that is not root's: root's daemon has this GPU now, and the owner of this lock must give it up.
  std::optional<LockOwner> overruled_by() const;

  // Another daemon gave way when this lock was taken: its tenants come.
  bool has_taken_over() const { return has_taken_over_; }
  // Of root's lock: the process that keeps the abstract name.
  const std::optional<LockOwner>& squatter() const { return squatter_; }
  // Tries to get the name. True: squatter() is empty now.
  bool take_name();

 private:
  GpuLock(LockRequest request, Closer& closer) : request_(std::move(request)), closer_(&closer) {}
  base::Status take_roots(std::optional<LockOwner>& owner);
  base::Status bind_name();
  base::Status watch(int socket);
  std::string path(const char* suffix) const { return request_.folder + "/" + request_.uuid_text + suffix; }

  LockRequest request_;
  Closer* closer_;
  os::FileDescriptor visits_;  // an epoll descriptor of the two sockets
  os::FileDescriptor file_;    // root's: locked while it is open
  os::FileDescriptor roots_;   // root's: the socket next to the file
  os::FileDescriptor name_;    // the abstract one
  bool has_taken_over_ = false;
  std::optional<LockOwner> squatter_;
};

// "pid 812 of user eva (/run/user/1000/gpumux)". May ask a directory service for the name.
std::string describe(const LockOwner& owner);

}  // namespace gpumux::daemon
