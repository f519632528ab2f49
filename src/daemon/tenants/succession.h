// SPDX-License-Identifier: Apache-2.0
// One daemon after another (daemon/peers/known_tenants.h): this daemon grants nothing until the tenants of the earlier
// one are back, and writes down its own tenants for the next one.
//
// Owned by the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <string>

#include "base/clock.h"
#include "daemon/gpus/leases.h"
#include "daemon/loop/loop_timer.h"
#include "daemon/peers/known_tenants.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/translate.h"

namespace gpumux::daemon {

class Succession {
 public:
  // `files` writes the list.
  Succession(boost::asio::io_context& io, boost::asio::thread_pool& files, const base::Clock& clock, Leases& leases,
             Translator& translator, std::string runtime_dir);

  // At start, before the sockets are made. `takes_over`: a private daemon gave way. Its tenants come as those of a
  // killed daemon do, for their number is not known.
  void begin(bool takes_over);
  // Tenants of the earlier daemon may still come back.
  bool may_return() const;
  // Gives up waiting for tenants that did not come back in time.
  void look();

  void tenant_changed(const Session& session);
  void tenant_gone();
  // This daemon ends: the list is written before the connections go.
  void end();

 private:
  KnownTenants known_tenants() const;
  void write();

  boost::asio::thread_pool& files_;
  const base::Clock& clock_;
  Leases& leases_;
  Translator& translator_;
  const std::string runtime_dir_;
  LoopTimer write_timer_;
  Returning returning_;
  base::TimePoint grants_held_until_{};
  base::TimePoint earliest_grant_{};  // after an earlier daemon was killed
};

}  // namespace gpumux::daemon
