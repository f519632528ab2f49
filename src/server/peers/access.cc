// SPDX-License-Identifier: Apache-2.0
#include "server/peers/access.h"

#include <grp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/units.h"
#include "os/unix_socket.h"
#include "server/peers/process_info.h"
#include "server/peers/trust_domain.h"

namespace gpumux::server {
namespace {

constexpr std::size_t kGroupBytes = 65536;  // a group with thousands of members

base::Result<gid_t> find_group(const std::string& key, const std::string& name) {
  if (const auto number = base::parse_integer(name, 0, std::numeric_limits<gid_t>::max() - 1)) {
    return static_cast<gid_t>(*number);
  }
  std::vector<char> buffer(kGroupBytes);
  group entry{};
  group* found = nullptr;
  ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return base::fail(base::Code::kInvalid, key + ": there is no group '" + name + "'");
  return found->gr_gid;
}

template <class Item>
bool holds(const std::vector<Item>& items, Item item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

bool any_in(const std::vector<gid_t>& groups, const std::vector<gid_t>& allowed) {
  return std::any_of(groups.begin(), groups.end(), [&](gid_t g) { return holds(allowed, g); });
}

}  // namespace

base::Result<Peer> peer_of(int socket, const SubordinateIds& subordinates, Door door, os::PeerLookup lookup) {
  const auto credentials = os::peer_credentials(socket);
  if (!credentials) return tl::unexpected(credentials.error());
  Peer peer{.pid = credentials->pid, .uid = credentials->uid, .groups = {credentials->gid}, .account = {}};
  peer.by_owners_door = door == Door::kOwners;
  auto process = os::peer_process(socket, peer.pid, lookup);
  peer.is_contained = !is_where_we_are(peer.pid);
  peer.account = account_of(peer.pid, peer.uid, peer.is_contained, subordinates);
  const bool is_certain = process && (process->is_certain || door == Door::kOwners);
  if (process && !os::has_ended(process->pidfd.get()))
    peer.process = std::make_shared<const os::FileDescriptor>(std::move(process->pidfd));
  if (peer.process == nullptr) {
    // /proc may have spoken of another process.
    peer.is_contained = true;
    peer.account = {};
  } else if (peer.uid == 0 && !is_certain) {
    peer.is_contained = true;
  }
  // The kernel answers with the length that it needs when the buffer is too small.
  std::vector<gid_t> groups(32);
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    const int result = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes);
    const int saved_errno = errno;
    groups.resize(bytes / sizeof(gid_t));
    if (result == 0) {
      peer.groups.insert(peer.groups.end(), groups.begin(), groups.end());
      break;
    }
    // Linux before 4.13 cannot say: the primary group then has to do.
    if (saved_errno != ERANGE) break;
  }
  return peer;
}

base::Result<AccessRules> AccessRules::make(const settings::DaemonSettings& config, uid_t owner, bool is_private) {
  AccessRules rules;
  rules.owner_ = owner;
  rules.private_ = is_private;
  rules.subordinates_ = SubordinateIds::read();
  rules.everybody_ = config.allow_users.empty() && config.allow_groups.empty();
  for (const std::string& name : config.allow_users) {
    const auto uid = user_id(name);
    if (!uid) return base::fail(base::Code::kInvalid, "allow_users: there is no user '" + name + "'");
    rules.users_.push_back(*uid);
  }
  for (const std::string& name : config.allow_groups) {
    const auto gid = find_group("allow_groups", name);
    if (!gid) return tl::unexpected(gid.error());
    rules.groups_.push_back(*gid);
  }
  if (!config.admin_group.empty()) {
    const auto gid = find_group("admin_group", config.admin_group);
    if (gid) rules.admin_groups_.push_back(*gid);
    // The default group is a convenience that not every machine has made.
    if (!gid && config.admin_group != settings::DaemonSettings().admin_group) return tl::unexpected(gid.error());
  }
  return rules;
}

bool AccessRules::may_connect(const Peer& peer) const {
  if (peer.uid == owner_) return true;
  if (private_) return false;
  return peer.uid == 0 || everybody_ || holds(users_, peer.uid) || any_in(peer.groups, groups_) ||
         any_in(peer.groups, admin_groups_);
}

bool AccessRules::may_change(const Peer& peer) const {
  if (peer.is_contained) return false;
  if (peer.uid == owner_ || peer.uid == 0) return true;
  return !private_ && any_in(peer.groups, admin_groups_);
}

}  // namespace gpumux::server
