// SPDX-License-Identifier: Apache-2.0
// Who may connect, and who may change something. Everything here comes from the kernel (SO_PEERCRED, SO_PEERGROUPS),
// nothing from what a client says.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/account.h"
#include "daemon/config.h"

namespace gpumux::daemon {

struct Peer {
  pid_t pid = 0;  // 0: in a pid namespace that cannot be seen from here
  uid_t uid = 0;
  std::vector<gid_t> groups;  // the primary one and all others, at the moment of connecting
  bool is_contained = false;  // in a container that is not the daemon's: its users are others, whatever their numbers
  Account account = {};       // for which it counts in every limit
};

// The configured names, looked up once (that may wait for a directory service): at start and at each reload.
class AccessRules {
 public:
  // `owner`: the uid that the daemon runs as. A private daemon serves nobody but him, whatever the configuration says.
  // Fails if a configured user or group does not exist, except for the default admin group.
  static base::Result<AccessRules> make(const Config& config, uid_t owner, bool is_private);

  bool may_connect(const Peer& peer) const;
  bool may_change(const Peer& peer) const;
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

base::Result<Peer> peer_of(int socket, const SubordinateIds& subordinates);

}  // namespace gpumux::daemon
