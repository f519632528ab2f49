// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/standings.h"

#include <algorithm>

#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

// Of its claims, if they have shares: the smallest, for GPUs on which none of them counts.
std::optional<std::uint32_t> share_of_claims(const containers::Record* container) {
  std::optional<std::uint32_t> least;
  if (container == nullptr) return least;
  for (const containers::Claim& claim : container->claims) {
    const auto take = [&](std::uint64_t cores) {
      least = std::min(least.value_or(base::kMostShare), static_cast<std::uint32_t>(cores));
    };
    for (const containers::Share& share : claim.shares) take(share.cores);
    if (claim.on_each) take(claim.on_each->cores);
  }
  return least;
}

}  // namespace

// Every program may ask for less than others. More than others get only a user who may change settings, a job's run,
// and a container by its claims, which may give less than 0, too.
Standings::Caps Standings::caps_of(const server::Peer& peer, const containers::Record* container,
                                   const std::string& run) const {
  Caps caps;
  if (const auto share = share_of_claims(container)) caps.share = {*share, Caps::By::kClaims};
  if (access_.may_change(peer)) return caps;
  if (!caps.share) caps.share = {base::kOneShare, Caps::By::kAdminGroup};
  const auto of_claims = container != nullptr ? containers::most_priority(container->claims) : std::nullopt;
  const bool is_jobs = jobs_.job_of(peer.uid, run) != 0;
  const std::int32_t granted = jobs_.granted_priority(peer.uid, run);
  if (of_claims) {
    caps.priority = {*of_claims, Caps::By::kClaims};
  } else {
    caps.priority = {std::max(granted, 0), is_jobs ? Caps::By::kJob : Caps::By::kAdminGroup};
  }
  return caps;
}

Standings::Caps Standings::caps_of(const server::Peer& peer, const std::string& run) const {
  // As for tenants: the answer from /proc is of this process if that has not ended by then.
  auto container = container_of_ && peer.process != nullptr ? container_of_(peer.pid) : nullptr;
  if (peer.has_ended()) container = nullptr;
  return caps_of(peer, container.get(), run);
}

base::Standing Standings::allowed(const Session& session, base::Standing wanted) const {
  const Caps caps = caps_of(session);
  const bool has_claims = caps.share && caps.share->by == Caps::By::kClaims;
  if (has_claims) wanted.share = caps.share->most;
  base::Standing standing = wanted;
  if (caps.priority) standing.priority = std::min(standing.priority, caps.priority->most);
  if (caps.share) standing.share = std::min(standing.share, caps.share->most);
  // A program that asks for no priority has less than that if its claim says so: nothing to warn of.
  if (standing.share != wanted.share || (standing.priority != wanted.priority && wanted.priority > 0)) {
    server::log_warning(
        "a tenant may not put itself above others: only a claim's DeviceClass and users who may change settings "
        "(admin_group) can raise it",
        {{"tenant", session.id.value},
         {"uid", session.peer.uid},
         {"priority", wanted.priority},
         {"most_priority", caps.priority->most},
         {"share", base::format_share(wanted.share)}});
  }
  return standing;
}

// All programs of a claim have its share of a GPU together. Other seats have their program's, each for itself.
Standings::Share Standings::share_on(const Session& session, base::GpuIndex gpu) const {
  if (session.container != nullptr) {
    const std::string& uuid = leases_.gpus()[gpu.value].info.uuid_text;
    for (const containers::Claim& claim : session.container->claims) {
      if (const auto cores = containers::cores_on(claim, uuid)) return {claim.uid, static_cast<std::uint32_t>(*cores)};
    }
  }
  return {{}, session.standing.share};
}

void Standings::tell(const Session& session) {
  const base::Standing& standing = session.standing;
  for (const auto& [number, slot] : session.slots()) {
    leases_.apply(sched::StandingChanged{seat_of(session, slot), standing.priority, share_on(session, slot.gpu).weight,
                                         standing.max_share});
  }
}

// A tenant's own user may give it any standing that it would get if it were started again. The tenant never has to keep
// less than it has.
base::Status Standings::change(Session& session, const base::Standing& wanted, const server::Peer& by) {
  if (!access_.may_change(by)) {
    const std::string user = "user " + std::to_string(by.uid);
    if (by.uid != session.peer.uid) {
      return base::fail(base::Code::kDenied, user + " may not change a tenant of user " +
                                                 std::to_string(session.peer.uid) +
                                                 ": only that user, and users who may change settings, may");
    }
    const Caps caps = caps_of(session);
    const std::int32_t most = std::max(session.standing.priority, caps.priority ? caps.priority->most : 0);
    if (wanted.priority > most || wanted.share > std::max(session.standing.share, base::kOneShare)) {
      return base::fail(base::Code::kDenied,
                        user + " may not put this tenant above others (a priority up to " + std::to_string(most) +
                            ", a share up to 1): only the daemon's owner, root and members of its admin_group may");
    }
  }
  if (session.standing == wanted) return {};
  if (wanted.share != session.standing.share && share_of_claims(session.container.get())) {
    std::string claims;
    for (const containers::Claim& claim : session.container->claims)
      claims += (claims.empty() ? "" : ", ") + printable(claim.uid);
    return base::fail(base::Code::kDenied, "tenant " + std::to_string(session.id.value) +
                                               " has the shares of its claims (" + claims +
                                               "): change the claims' cores and start its pods again, or ask Slurm "
                                               "for another part of the GPU");
  }
  session.standing = wanted;
  tell(session);
  server::log_info("a tenant's priority or share has changed",
                   {{"tenant", session.id.value},
                    {"pid", session.peer.pid},
                    {"by_uid", by.uid},
                    {"priority", wanted.priority},
                    {"share", base::format_share(wanted.share)},
                    {"max_share", base::format_max_share(wanted.max_share)}});
  return {};
}

void Standings::set_run_priority(uid_t uid, const std::string& run, std::int32_t priority) {
  for (const auto& [id, session] : table_.sessions()) {
    if (session->peer.uid != uid || session->run != run) continue;
    const Caps caps = caps_of(*session);
    session->standing.priority = session->first_standing.priority =
        caps.priority ? std::min(priority, caps.priority->most) : priority;
    tell(*session);
  }
}

}  // namespace gpumux::daemon
