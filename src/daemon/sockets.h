// SPDX-License-Identifier: Apache-2.0
// The daemon's sockets in its runtime directory, and the lock that makes the directory its own.
//
// A person who tidies up, or a service that clears old files, may empty the directory. The daemon then has all its GPUs
// and programs, and no new program finds it. So it looks once a second, and makes everything anew.
//
// A user may have two places for a private daemon: $XDG_RUNTIME_DIR/gpumux, and /tmp/gpumux-UID for processes without
// that variable. A link in the second leads to a daemon in the first (os/runtime_dir.h).
//
// Owned by the loop's thread.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/api/http_server.h"
#include "daemon/daemon.h"
#include "daemon/gpus/gpu_lock.h"
#include "daemon/tenants/tenant_server.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

class Sockets {
 public:
  // `lock`: of the directory.
  Sockets(const DaemonOptions& options, os::FileDescriptor& lock, TenantServer& tenants, HttpServer& http)
      : options_(options), lock_(lock), tenants_(tenants), http_(http) {}
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  base::Status open();
  // Once a second. True: the directory had been emptied, and all is there again.
  bool look();
  // Removes the sockets, so that a client looks elsewhere, or waits. `successor`: the directory of the daemon to which
  // links lead in their place; empty: none.
  void remove(const std::string& successor) const;
  // This daemon ends, because another one of the user's, or the system's, has the GPUs: a link in the directory leads
  // there. REQUIRES: the lock.
  void lead_to(const LockOwner& other) const;

 private:
  base::Status listen();
  base::Status open_api(const char* name, mode_t mode, server::Door door);
  bool is_whole() const;
  base::Status make_anew();

  const DaemonOptions& options_;
  os::FileDescriptor& lock_;
  TenantServer& tenants_;
  HttpServer& http_;
  bool is_failure_known_ = false;  // that it cannot be made anew: logged once
};

}  // namespace gpumux::daemon
