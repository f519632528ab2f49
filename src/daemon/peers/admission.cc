// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/admission.h"

#include <utility>

namespace gpumux::daemon {

Admission::Admission(Limits limits, std::string what, const server::AccessRules& access, const Closer& closer)
    : limits_(limits), what_(std::move(what)), access_(access), closer_(closer) {}

std::optional<std::string> Admission::refusal(const server::Peer& peer) const {
  const bool is_privileged = access_.may_change(peer);
  const std::size_t most = limits_.all - (is_privileged ? 0 : limits_.reserve);
  if (all_ >= most) return "the daemon has " + std::to_string(all_) + " " + what_ + ", which is the limit: try again";
  if (is_privileged || of(peer.account) + closer_.unclosed(peer.account) < limits_.per_account) return std::nullopt;
  return peer.account.text() + " has as many " + what_ + " as one user or container may have (" +
         std::to_string(limits_.per_account) + "): close some of them";
}

void Admission::entered(const server::Account& account) {
  ++all_;
  ++per_account_[account];
}

void Admission::left(const server::Account& account) {
  const auto found = per_account_.find(account);
  if (found == per_account_.end()) return;
  --all_;
  if (--found->second == 0) per_account_.erase(found);
}

std::size_t Admission::of(const server::Account& account) const {
  const auto found = per_account_.find(account);
  return found == per_account_.end() ? 0 : found->second;
}

}  // namespace gpumux::daemon
