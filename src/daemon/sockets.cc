// SPDX-License-Identifier: Apache-2.0
#include "daemon/sockets.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include "daemon/dir_lock.h"
#include "daemon/peers/container.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

// As many as connect in one scheduling pause of the loop; beyond it connecting tenants wait in their own connect.
constexpr int kBacklog = 1024;

// Only root's daemon serves containers that others have made records of.
bool has_root_folder(const DaemonOptions& options) { return !options.is_private && ::geteuid() == 0; }

os::PeerLookup lookup_of(const DaemonOptions& options) {
  return options.without_peer_pidfd ? os::PeerLookup::kByNumber : os::PeerLookup::kBySocket;
}

base::Result<ContainerRecords> open_records(const DaemonOptions& options) {
  if (!has_root_folder(options)) return ContainerRecords();
  GPUMUX_TRY(os::make_own_dir(options.runtime_dir + "/" + os::kRootDir, 0700));
  return ContainerRecords::open(options.runtime_dir + "/" + os::kContainersDir);
}

}  // namespace

base::Status Sockets::open_api(const char* name, mode_t mode, server::Door door) {
  auto socket = os::listen_stream(options_.runtime_dir + "/" + name, mode, kBacklog);
  if (!socket) return tl::unexpected(socket.error());
  if (!options_.without_pass_rights) os::refuse_descriptors(socket->get());
  http_.listen(std::move(*socket), door, lookup_of(options_));
  return {};
}

base::Status Sockets::listen() {
  const std::string& dir = options_.runtime_dir;
  const mode_t mode = options_.is_private ? 0600 : static_cast<mode_t>(options_.config.socket_mode);
  // The folder of a private daemon is its owner's alone.
  const server::Door door = options_.is_private ? server::Door::kOwners : server::Door::kOpen;
  GPUMUX_TRY(os::make_own_dir(dir + "/" + os::kTenantDir, options_.is_private ? 0700 : 0755));
  auto tenants = os::listen_seqpacket(dir + "/" + os::kTenantSocket, mode, kBacklog);
  if (!tenants) return tl::unexpected(tenants.error());
  auto containers = open_records(options_);
  if (!containers) return tl::unexpected(containers.error());
  tenants_.listen(std::move(*tenants), door, lookup_of(options_), std::move(*containers));
  GPUMUX_TRY(open_api(os::kApiSocket, mode, door));
  return has_root_folder(options_) ? open_api(os::kRootApiSocket, 0600, server::Door::kOwners) : base::Status();
}

base::Status Sockets::open() {
  GPUMUX_TRY(listen());
  std::error_code failed;
  const bool is_users = options_.is_private &&
                        std::filesystem::equivalent(options_.runtime_dir, os::user_runtime_dir(), failed) && !failed;
  if (is_users && os::user_runtime_dir() != os::user_tmp_dir()) {
    // If it fails, processes without XDG_RUNTIME_DIR find no daemon. The others do.
    base::Status linked = os::make_own_dir(os::user_tmp_dir(), 0700);
    if (linked) linked = os::leave_link(os::user_tmp_dir(), options_.runtime_dir);
    if (!linked)
      server::log_warning("processes without XDG_RUNTIME_DIR do not find this daemon",
                          {{"why", linked.error().message()}});
  }
  return {};
}

bool Sockets::is_whole() const {
  const std::string& dir = options_.runtime_dir;
  const auto is_there = [&](const char* socket) {
    struct stat status {};
    return ::lstat((dir + "/" + socket).c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
  };
  return is_lock_of(dir, lock_.get()) && is_there(os::kTenantSocket) && is_there(os::kApiSocket) &&
         (!has_root_folder(options_) || is_there(os::kRootApiSocket));
}

base::Status Sockets::make_anew() {
  if (!is_lock_of(options_.runtime_dir, lock_.get())) {
    GPUMUX_TRY(os::make_own_dir(options_.runtime_dir, options_.is_private ? 0700 : 0755));
    // Another daemon may have begun there. Mostly it ends at once, for this one has the GPUs.
    auto locked = try_lock_runtime_dir(options_.runtime_dir);
    if (!locked) return tl::unexpected(locked.error());
    lock_ = std::move(*locked);
  }
  http_.stop_listening();
  return open();
}

bool Sockets::look() {
  if (is_whole()) return false;
  const base::Status made = make_anew();
  if (!made) {
    if (!std::exchange(is_failure_known_, true)) {
      server::log_error("the runtime directory was emptied, and cannot be made anew; trying again and again",
                        {{"runtime_dir", options_.runtime_dir}, {"why", made.error().message()}});
    }
    return false;
  }
  is_failure_known_ = false;
  server::log_warning("the runtime directory was emptied; its lock and sockets are there again",
                      {{"runtime_dir", options_.runtime_dir}});
  return true;
}

void Sockets::remove(const std::string& successor) const {
  if (!is_lock_of(options_.runtime_dir, lock_.get())) return;  // another daemon's by now
  for (const char* socket : {os::kTenantSocket, os::kApiSocket, os::kRootApiSocket}) {
    const std::string path = options_.runtime_dir + "/" + socket;
    ::unlink(path.c_str());
    const bool is_roots = std::string_view(socket) == os::kRootApiSocket;  // a private daemon has none
    if (!successor.empty() && !is_roots) static_cast<void>(::symlink((successor + "/" + socket).c_str(), path.c_str()));
  }
}

void Sockets::lead_to(const LockOwner& other) const {
  const bool is_systems = other.uid == 0 && other.runtime_dir == os::kSystemRuntimeDir;
  if (!options_.is_private || other.runtime_dir.empty() || (other.uid != ::geteuid() && !is_systems)) return;
  // Sockets that are there are those of a daemon that was killed: they would be looked at first.
  if (other.runtime_dir != options_.runtime_dir) remove("");
  if (const auto linked = os::leave_link(options_.runtime_dir, other.runtime_dir); !linked)
    server::log_warning("processes that look here do not find the daemon", {{"why", linked.error().message()}});
}

}  // namespace gpumux::daemon
