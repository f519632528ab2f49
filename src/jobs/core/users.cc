// SPDX-License-Identifier: Apache-2.0
// Users: their recent use of the GPUs, in integers, and their limits.
#include "jobs/core/state.h"

namespace gpumux::jobs {

std::uint64_t Shares::weight(TimePoint now) const {
  if (now <= epoch_) return kUnit;
  const std::uint64_t passed = static_cast<std::uint64_t>((now - epoch_).count());
  const std::uint64_t half_life = static_cast<std::uint64_t>(half_life_.count());
  const std::uint64_t whole = std::min<std::uint64_t>(passed / half_life, 2 * kRenewAfter);
  return (kUnit + passed % half_life * kUnit / half_life) << whole;
}

std::uint32_t Shares::renew(TimePoint now) {
  const std::int64_t whole = now <= epoch_ ? 0 : (now - epoch_).count() / half_life_.count();
  if (whole < kRenewAfter) return 0;
  epoch_ += half_life_ * whole;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(whole, 63));
}

User& JobCore::State::user_of(std::uint32_t uid) {
  const auto [slot, is_new] = users.try_emplace(uid);
  if (is_new) {
    slot->second.uid = uid;
    slot->second.charged_to = now;
  }
  return slot->second;
}

std::int32_t JobCore::State::capped(const User& user, std::int32_t priority, bool by_admin) const {
  return by_admin ? priority : limits_of(user).priority_cap.at_most(priority);
}

void JobCore::State::charge(User& user, TimePoint until) const {
  if (user.gpus == 0 || until <= user.charged_to) {
    user.charged_to = until;
    return;
  }
  // A rest of less than a microsecond is charged the next time.
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(until - user.charged_to);
  user.charged_to += microseconds;
  const std::uint64_t time = static_cast<std::uint64_t>(microseconds.count()) * user.gpus;
  const std::uint64_t weight = shares.weight(until);
  // Half of what 64 bits hold: usage_key() adds to it.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
  user.usage = time > (kMost - std::min(kMost, user.usage)) / weight ? kMost : user.usage + time * weight;
}

void JobCore::State::renew_shares() {
  const std::uint32_t by = shares.renew(now);
  if (by == 0) return;
  for (auto& [uid, user] : users) {
    user.usage >>= by;
    for (auto& [key, lane] : user.lanes) lane->floor >>= by;
  }
  for (auto& [id, job] : jobs) {
    if (job->floor) *job->floor >>= by;
  }
  rebuild_ranks();
}

std::uint64_t JobCore::State::usage_key(const User& user) const {
  if (settings.order == Order::kFifo) return 0;
  constexpr std::uint64_t kAdvanceMicroseconds = kAdvance / std::chrono::microseconds(1);
  return user.usage + (user.gpus + user.suspended_gpus) * kAdvanceMicroseconds * shares.weight(settled_at);
}

ToStart JobCore::State::other_to_start(const Job& job) const {
  ToStart others;
  for (const JobId id : to_start) {
    const auto other = jobs.find(id);
    if (other == jobs.end() || other->second->user != job.user || id == job.spec.id) continue;
    if (others.jobs++ == 0) others.first = id;
    others.gpus += other->second->wanted_gpus();
  }
  return others;
}

bool JobCore::State::user_may(const Job& job) const {
  const UserLimits& limits = limits_of(*job.user);
  const ToStart others = other_to_start(job);
  const std::uint32_t wanted = job.wanted_gpus();
  return job.user->running + others.jobs < limits.running && job.user->gpus + others.gpus + wanted <= limits.gpus;
}

}  // namespace gpumux::jobs
