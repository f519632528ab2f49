// SPDX-License-Identifier: Apache-2.0
// The standing of a tenant's seats among others: priority, share and cap, as the tenant asks and as the daemon allows.
#include <algorithm>
#include <limits>
#include <utility>

#include "daemon/loop/log.h"
#include "daemon/tenants/translate.h"

namespace gpumux::daemon {
namespace {

// Of its claims, if they have shares: the smallest, for GPUs on which none of them counts.
std::optional<std::uint32_t> share_of_claims(const Session& session) {
  std::optional<std::uint32_t> least;
  if (session.container == nullptr) return least;
  for (const containers::Claim& claim : session.container->claims) {
    const auto take = [&](std::uint64_t cores) {
      least = std::min(least.value_or(base::kMostShare), static_cast<std::uint32_t>(cores));
    };
    for (const containers::Share& share : claim.shares) take(share.cores);
    if (claim.on_each) take(claim.on_each->cores);
  }
  return least;
}

}  // namespace

// The highest priority that a tenant may ask for. In claims it is what the claims give, even if that is below 0.
// Otherwise it is 0, or what the tenant's run was granted.
std::int32_t Translator::most_priority(const Session& session) const {
  if (session.container != nullptr) {
    if (const auto most = containers::most_priority(session.container->claims)) return *most;
  }
  return std::max(granted_priority_ ? granted_priority_(session.peer.uid, session.run) : 0, 0);
}

// Every tenant may ask for less than others. Only a tenant that may change settings gets more than most_priority().
std::int32_t Translator::allowed_priority(const Session& session, std::int32_t asked) const {
  return access_.may_change(session.peer) ? asked : std::min(asked, most_priority(session));
}

base::Standing Translator::standing_of(const Session& session, const wire::Hello& hello) const {
  base::Standing standing;
  standing.priority = std::clamp(hello.priority, -base::kMostPriority, base::kMostPriority);
  if (hello.share != 0) standing.share = std::min(hello.share, base::kMostShare);
  const auto claimed = share_of_claims(session);
  if (claimed) standing.share = *claimed;
  if (hello.max_share != 0) standing.max_share = std::min(hello.max_share, base::kWholeGpu);
  if (access_.may_change(session.peer)) return standing;
  const base::Standing asked = standing;
  standing.priority = allowed_priority(session, standing.priority);
  if (!claimed) standing.share = std::min(standing.share, base::kOneShare);
  // A program that asks for no priority has less than that if its claim says so: nothing to warn of.
  if (standing.share != asked.share || (standing.priority != asked.priority && asked.priority > 0)) {
    log_warning(
        "a tenant may not put itself above others: only a claim's DeviceClass and users who may change settings "
        "(admin_group) can raise it",
        {{"tenant", session.id.value},
         {"uid", session.peer.uid},
         {"priority", asked.priority},
         {"most_priority", most_priority(session)},
         {"share", base::format_share(asked.share)}});
  }
  return standing;
}

// All programs of a claim have its share of a GPU together. Other seats have their program's, each for itself.
Translator::Share Translator::share_on(const Session& session, base::GpuIndex gpu) const {
  if (session.container != nullptr) {
    const std::string& uuid = leases_.gpus()[gpu.value].info.uuid_text;
    for (const containers::Claim& claim : session.container->claims) {
      if (const auto cores = containers::cores_on(claim, uuid)) return {claim.uid, static_cast<std::uint32_t>(*cores)};
    }
  }
  return {{}, session.standing.share};
}

void Translator::tell_standing(const Session& session, const Slot& slot) {
  const base::Standing& standing = session.standing;
  leases_.apply(sched::StandingChanged{seat_of(session, slot), standing.priority, share_on(session, slot.gpu).weight,
                                       standing.max_share});
}

// A tenant's own user may give it any standing that it would get if it were started again. The tenant never has to keep
// less than it has.
base::Status Translator::change_standing(Session& session, const base::Standing& wanted, const Peer& by) {
  if (!access_.may_change(by)) {
    const std::string user = "user " + std::to_string(by.uid);
    if (by.uid != session.peer.uid) {
      return base::fail(base::Code::kDenied, user + " may not change a tenant of user " +
                                                 std::to_string(session.peer.uid) +
                                                 ": only that user, and users who may change settings, may");
    }
    const std::int32_t most = std::max(session.standing.priority, most_priority(session));
    if (wanted.priority > most || wanted.share > std::max(session.standing.share, base::kOneShare)) {
      return base::fail(base::Code::kDenied,
                        user + " may not put this tenant above others (a priority up to " + std::to_string(most) +
                            ", a share up to 1): only the daemon's owner, root and members of its admin_group may");
    }
  }
  if (session.standing == wanted) return {};
  if (wanted.share != session.standing.share && share_of_claims(session)) {
    std::string claims;
    for (const containers::Claim& claim : session.container->claims)
      claims += (claims.empty() ? "" : ", ") + printable(claim.uid);
    return base::fail(base::Code::kDenied, "tenant " + std::to_string(session.id.value) +
                                               " has the shares of its claims (" + claims +
                                               "): change the claims' cores and start its pods again, or ask Slurm "
                                               "for another part of the GPU");
  }
  session.standing = wanted;
  for (const auto& [number, slot] : session.slots()) tell_standing(session, slot);
  log_info("a tenant's priority or share has changed", {{"tenant", session.id.value},
                                                        {"pid", session.peer.pid},
                                                        {"by_uid", by.uid},
                                                        {"priority", wanted.priority},
                                                        {"share", base::format_share(wanted.share)},
                                                        {"max_share", base::format_max_share(wanted.max_share)}});
  return {};
}

void Translator::set_run_priority(uid_t uid, const std::string& run, std::int32_t priority) {
  for (const auto& [id, session] : sessions_) {
    if (session->peer.uid != uid || session->run != run) continue;
    session->standing.priority = session->first_standing.priority = allowed_priority(*session, priority);
    for (const auto& [number, slot] : session->slots()) tell_standing(*session, slot);
  }
}

}  // namespace gpumux::daemon
