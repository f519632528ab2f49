// SPDX-License-Identifier: Apache-2.0
// Users' recent use of the GPUs, in integers.
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

void JobCore::State::update_shares() {
  if (now < settled_at + kSettlePeriod) return;
  settled_at = now;
  for (const std::uint32_t uid : active_users) charge(users.at(uid), now);
  renew_shares();
  for (const std::uint32_t uid : active_users) rank(users.at(uid));
}

std::uint64_t JobCore::State::usage_key(const User& user) const {
  if (settings.order == Order::kFifo) return 0;
  constexpr std::uint64_t kAdvanceMicroseconds = kAdvance / std::chrono::microseconds(1);
  return user.usage + (user.gpus + user.suspended_gpus) * kAdvanceMicroseconds * shares.weight(settled_at);
}

}  // namespace gpumux::jobs
