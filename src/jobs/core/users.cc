// SPDX-License-Identifier: Apache-2.0
// Users: their recent use of the GPUs, in integers, and their limits.
#include "jobs/core/users.h"

#include <algorithm>
#include <chrono>

namespace gpumux::jobs {
namespace {

// The core charges users for their GPUs this often while jobs run. Turns among users are minutes and hours.
constexpr Duration kSettlePeriod = std::chrono::seconds(1);
// Each GPU of a job counts this much for its user from the start to the end. So users take turns also when many jobs
// start in one moment, when no user has had any time yet. While the job is suspended it counts, too. Otherwise its user
// would go before others as soon as it makes way for them, and it would be resumed.
constexpr Duration kAdvance = std::chrono::seconds(60);

}  // namespace

std::uint64_t Shares::weight(TimePoint now) const {
  if (now <= epoch_) return kUnit;
  const std::uint64_t passed = static_cast<std::uint64_t>((now - epoch_).count());
  const std::uint64_t half_life = static_cast<std::uint64_t>(half_life_.count());
  const std::uint64_t whole = std::min<std::uint64_t>(passed / half_life, std::uint64_t{2} * kRenewAfter);
  return (kUnit + passed % half_life * kUnit / half_life) << whole;
}

std::uint32_t Shares::renew(TimePoint now) {
  const std::int64_t whole = now <= epoch_ ? 0 : (now - epoch_).count() / half_life_.count();
  if (whole < kRenewAfter) return 0;
  epoch_ += half_life_ * whole;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(whole, 63));
}

User& Users::of(std::uint32_t uid) {
  const auto [slot, is_new] = users_.try_emplace(uid);
  if (is_new) {
    slot->second.uid = uid;
    slot->second.charged_to = now();
  }
  return slot->second;
}

std::uint32_t Users::queued_of(std::uint32_t uid) const {
  const auto user = users_.find(uid);
  return user == users_.end() ? 0 : user->second.queued;
}

// ---- limits -------------------------------------------------------------------------------------

const UserLimits& Users::limits_of(std::uint32_t uid) const {
  const auto user = users_.find(uid);
  return user == users_.end() ? settings().limits : limits_of(user->second);
}

std::int32_t Users::capped(const User& user, std::int32_t priority, bool by_admin) const {
  return by_admin ? priority : limits_of(user).priority_cap.at_most(priority);
}

ToStart Users::other_to_start(const Job& job) const {
  ToStart others;
  for (const JobId id : to_start_) {
    const Job* const other = find(id);
    if (other == nullptr || other->user != job.user || other == &job) continue;
    if (others.jobs++ == 0) others.first = id;
    others.gpus += other->wanted_gpus();
  }
  return others;
}

bool Users::may_run(const Job& job) const {
  const UserLimits& limits = limits_of(*job.user);
  const ToStart others = other_to_start(job);
  const std::uint32_t wanted = job.wanted_gpus();
  return job.user->running + others.jobs < limits.running && job.user->gpus + others.gpus + wanted <= limits.gpus;
}

// ---- past use -----------------------------------------------------------------------------------

void Users::charge(User& user, TimePoint until) const {
  if (user.gpus == 0 || until <= user.charged_to) {
    user.charged_to = until;
    return;
  }
  // A rest of less than a microsecond is charged the next time.
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(until - user.charged_to);
  user.charged_to += microseconds;
  const std::uint64_t time = static_cast<std::uint64_t>(microseconds.count()) * user.gpus;
  const std::uint64_t weight = shares_.weight(until);
  // Half of what 64 bits hold: usage_key() adds to it.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
  user.usage = time > (kMost - std::min(kMost, user.usage)) / weight ? kMost : user.usage + time * weight;
}

void Users::begin_use(User& user, std::uint32_t gpus) {
  charge(user, now());
  ++user.running;
  user.gpus += gpus;
}

void Users::end_use(User& user, std::uint32_t gpus) {
  charge(user, now());
  --user.running;
  user.gpus -= gpus;
}

void Users::restore(User& user, std::uint64_t gpu_microseconds) {
  charge(user, now());
  user.usage += std::min(gpu_microseconds, std::uint64_t{1} << 50) * shares_.weight(now());
}

template <class Change>
void Users::change_usage(Change change) {
  for (auto& [uid, user] : users_) user.usage = change(user.usage);
  for (const auto& entry : jobs()) {
    Job& job = *entry.second;
    auto* const suspended = job.in<Job::Suspended>();
    if (suspended != nullptr && suspended->floor) suspended->floor = change(*suspended->floor);
  }
}

void Users::change_half_life() {
  for (auto& [uid, user] : users_) charge(user, now());
  const std::uint64_t old_weight = shares_.weight(now());
  begin_shares();
  change_usage([old_weight](std::uint64_t usage) { return usage / old_weight * Shares::kUnit; });
}

bool Users::settle() {
  if (now() < settled_at_ + kSettlePeriod) return false;
  settled_at_ = now();
  for (auto& [uid, user] : users_) {
    if (user.running > 0) charge(user, now());
  }
  return true;
}

bool Users::renew() {
  const std::uint32_t by = shares_.renew(now());
  if (by > 0) change_usage([by](std::uint64_t usage) { return usage >> by; });
  return by > 0;
}

std::uint64_t Users::usage_key(const User& user) const {
  if (settings().order == Order::kFifo) return 0;
  constexpr std::uint64_t kAdvanceMicroseconds = kAdvance / std::chrono::microseconds(1);
  return user.usage + (user.gpus + user.suspended_gpus) * kAdvanceMicroseconds * shares_.weight(settled_at_);
}

std::vector<UserUsage> Users::usage(TimePoint until) const {
  std::vector<UserUsage> all;
  for (const auto& [uid, user] : users_) {
    User charged;
    charged.usage = user.usage;
    charged.charged_to = user.charged_to;
    charged.gpus = user.gpus;
    charge(charged, until);
    all.push_back({uid, charged.usage / shares_.weight(until), user.running, user.queued, user.gpus});
  }
  return all;
}

}  // namespace gpumux::jobs
