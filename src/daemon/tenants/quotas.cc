// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/quotas.h"

#include <algorithm>

namespace gpumux::daemon {

// In claims the claims' quotas count, whatever the process says. Otherwise the first process of a run names its limit.
// Later processes belong to the run: they cannot raise the limit, nor escape it by saying nothing.
void Quotas::join(Session& session, std::uint64_t memory_limit) {
  const auto enter = [&](Key key, std::uint64_t limit) {
    Group& group = groups_[std::move(key)];
    if (group.tenants++ == 0) {
      group.number = next_group_++;
      group.memory_limit = limit;
    }
    session.quota_groups.push_back(group.number);
    session.memory_limit = group.memory_limit;
  };
  const auto has_quotas = [](const containers::Claim& claim) { return !claim.quotas.empty() || claim.on_each; };
  if (session.container != nullptr &&
      std::any_of(session.container->claims.begin(), session.container->claims.end(), has_quotas)) {
    for (const containers::Claim& claim : session.container->claims) enter({std::nullopt, claim.uid}, 0);
    return;
  }
  Key key{session.peer.uid, session.run.empty() ? "tenant:" + std::to_string(session.id.value) : session.run};
  if (memory_limit != 0 || groups_.contains(key)) enter(std::move(key), memory_limit);
}

void Quotas::leave(const Session& session) {
  for (const std::uint64_t number : session.quota_groups) {
    const auto group =
        std::find_if(groups_.begin(), groups_.end(), [&](const auto& one) { return one.second.number == number; });
    if (--group->second.tenants == 0) groups_.erase(group);
  }
}

sched::Quota Quotas::on(const Session& session, base::GpuIndex gpu) const {
  if (session.quota_groups.empty()) return {};
  if (session.memory_limit != 0) return {.group = session.quota_groups.front(), .bytes = session.memory_limit};
  const auto& info = leases_.gpus()[gpu.value].info;
  for (std::size_t i = 0; i < session.quota_groups.size(); ++i) {
    if (const auto bytes = containers::bytes_on(session.container->claims[i], info.uuid_text, info.memory_total))
      return {.group = session.quota_groups[i], .bytes = *bytes};
  }
  return {};
}

}  // namespace gpumux::daemon
