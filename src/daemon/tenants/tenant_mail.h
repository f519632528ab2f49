// SPDX-License-Identifier: Apache-2.0
// Sends messages to tenants, and remembers the tenants that cannot be written to.
//
// Owned by the loop's thread.
#pragma once

#include <utility>
#include <vector>

#include "base/ids.h"
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

class TenantMail {
 public:
  template <class Message>
  void send(Session& session, const Message& message, int fd = -1) {
    if (session.ended() || session.send(message, fd)) return;
    // The caller ends it once the core is at rest: the core must not hear of it in the middle of a command.
    session.end();
    unwritable_.push_back(session.id);
  }

  // Sessions that could not be written to since the last call: to be ended by the caller.
  std::vector<base::TenantId> take_unwritable() { return std::exchange(unwritable_, {}); }

 private:
  std::vector<base::TenantId> unwritable_;
};

}  // namespace gpumux::daemon
