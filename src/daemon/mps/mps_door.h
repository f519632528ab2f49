// SPDX-License-Identifier: Apache-2.0
// Which programs become clients of MPS, and the answers to them.
//
// A program is a client if it asks to be one (`gpumux run --mps`). It is also one if `mps` is on for every GPU that it
// may see. These never are: programs in containers, whose MPS would have to reach into the container; and root's, for
// no MPS runs as root.
//
// Owned by the loop's thread.
#pragma once

#include <string>

#include "daemon/config/config.h"
#include "daemon/mps/mps_servers.h"
#include "daemon/tenants/ports.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/tenant_table.h"

namespace gpumux::daemon {

class MpsDoor {
 public:
  MpsDoor(boost::asio::io_context& io, boost::asio::thread_pool& pool, MpsPort& port, const TenantTable& table,
          Leases& leases);
  // Finds the servers of an earlier daemon. `control`: the setting mps_control.
  void open(const std::string& runtime_dir, bool is_private, std::string control, const Environment& environment);
  // About once a second: as MpsServers::look().
  void look() { servers_.look(); }

 private:
  // A file says that a program that does not want MPS by itself may get it. Without it, its library does not ask.
  void invite();
  base::Status on(Session& session, const wire::MpsAsked& asked);
  std::string why_not(const Session& session) const;
  bool is_on_for_all(std::string_view visible) const;
  std::uint32_t thread_percentage(const Session& session, std::string_view visible) const;
  std::vector<bool> visible_to(std::string_view list) const;

  const TenantTable& table_;
  Leases& leases_;
  MpsServers servers_;
  std::string folder_;
};

}  // namespace gpumux::daemon
