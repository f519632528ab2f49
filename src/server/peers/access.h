// SPDX-License-Identifier: Apache-2.0
// Which peers may connect, and which may change something. Everything here comes from the kernel (SO_PEERCRED,
// SO_PEERGROUPS, SO_PEERPIDFD), nothing from what a client says.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "os/pidfd.h"
#include "server/peers/account.h"
#include "settings/structs.gen.h"

namespace gpumux::server {

struct Peer {
  pid_t pid = 0;  // 0: in a pid namespace that cannot be seen from here
  uid_t uid = 0;
  std::vector<gid_t> groups;  // the primary one and all others, at the moment of connecting
  // In a container that is not the daemon's, or not shown to be outside of one: its users are others, whatever their
  // numbers.
  bool is_contained = false;
  bool by_owners_door = false;  // Door::kOwners
  Account account = {};         // for which it counts in every limit
  // The facts from /proc are of this process. Null: the peer had ended before that, or the kernel has no pidfd.
  std::shared_ptr<const os::FileDescriptor> process = {};

  // The connection may be in the hands of another process by now.
  bool has_ended() const { return process == nullptr || os::has_ended(process->get()); }
};

// The peers that can reach a listening socket, by its place.
enum class Door {
  kOpen,    // root of a container may reach it
  kOwners,  // it lies in a folder that the daemon's owner alone can enter, and that only our own pods are given
};

// The configured names, looked up once (that may wait for a directory service): at start and at each reload.
class AccessRules {
 public:
  // `owner`: the uid that the daemon runs as. A private daemon serves only its owner, whatever the configuration says.
  // Fails if a configured user or group does not exist, except for the default admin group.
  static base::Result<AccessRules> make(const settings::DaemonSettings& config, uid_t owner, bool is_private);

  bool may_connect(const Peer& peer) const;
  bool may_change(const Peer& peer) const;
  // Metrics name programs, users and pods. The kubelet's plugin, which is in a pod, reads them, too, to serve them on.
  bool may_read_metrics(const Peer& peer) const { return may_change(peer) || peer.by_owners_door; }
  uid_t owner() const { return owner_; }
  const SubordinateIds& subordinates() const { return subordinates_; }

 private:
  uid_t owner_ = 0;
  bool private_ = false;
  bool everybody_ = true;
  std::vector<uid_t> users_;
  std::vector<gid_t> groups_;
  std::vector<gid_t> admin_groups_;
  SubordinateIds subordinates_;
};

// The rule: a process that has ended is contained, for its number in /proc may be another process's. Root is contained
// if the kernel cannot name the peer's process (Linux before 6.5). Exception: it comes through a door of the owner's.
base::Result<Peer> peer_of(int socket, const SubordinateIds& subordinates, Door door,
                           os::PeerLookup lookup = os::PeerLookup::kBySocket);

}  // namespace gpumux::server
