// SPDX-License-Identifier: Apache-2.0
// How many connections a socket may have, in all and for each account.
//
// A reserve is for root on the host, the daemon's owner and administrators. They get in whatever the others do, and no
// limit per account holds for them. A contained peer is never one of them.
//
// Owned by the loop's thread.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "daemon/peers/closer.h"
#include "server/peers/access.h"

namespace gpumux::daemon {

class Admission {
 public:
  struct Limits {
    std::size_t all = 0;
    std::size_t per_account = 0;
    std::size_t reserve = 0;  // of `all`
  };
  // `what`: the word for the counted things in messages: "tenants".
  Admission(Limits limits, std::string what, const server::AccessRules& access, const Closer& closer);

  // Why the peer is not let in; none: it is. A descriptor that is not closed yet counts as a connection does.
  std::optional<std::string> refusal(const server::Peer& peer) const;
  void entered(const server::Account& account);
  void left(const server::Account& account);
  std::size_t of(const server::Account& account) const;

 private:
  const Limits limits_;
  const std::string what_;
  const server::AccessRules& access_;
  const Closer& closer_;
  std::size_t all_ = 0;
  std::map<server::Account, std::size_t> per_account_;
};

}  // namespace gpumux::daemon
