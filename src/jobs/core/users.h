// SPDX-License-Identifier: Apache-2.0
// Users: their recent use of the GPUs, and their limits. Private to src/jobs/core.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "jobs/core/part.h"

namespace gpumux::jobs {

// GPU time that lies back counts less: half after one half-life, a quarter after two. Instead of decaying every user's
// past use, new time counts more and more: twice as much after each half-life, and between two linearly. So the order
// of two users changes only when one of them is charged, and integers do. When the weight has grown for kRenewAfter
// half-lives, every user's sum is divided by it.
class Shares {
 public:
  static constexpr std::uint64_t kUnit = 64;       // the weight at the beginning
  static constexpr std::uint32_t kRenewAfter = 8;  // 128 GPUs over a half-life of a year stay below 2^63
  void begin(TimePoint now, Duration half_life) { epoch_ = now, half_life_ = std::max(half_life, Duration(1'000'000)); }
  std::uint64_t weight(TimePoint now) const;
  // How many half-lives to go on by; 0: none yet. The caller shifts every user's sum right by as many bits.
  std::uint32_t renew(TimePoint now);

 private:
  TimePoint epoch_{};
  Duration half_life_ = std::chrono::hours(24);
};

// A user's jobs that are to start, for GPUs are kept for them.
struct ToStart {
  JobId first = kNoJob;
  std::uint32_t jobs = 0, gpus = 0;
};

class Users : Part {
 public:
  explicit Users(Common& common) : Part(common) {}

  std::map<std::uint32_t, User>& all() { return users_; }
  const std::map<std::uint32_t, User>& all() const { return users_; }
  // Made at the first mention.
  User& of(std::uint32_t uid);
  // Jobs of the user that wait. 0: the user is not known.
  std::uint32_t queued_of(std::uint32_t uid) const;

  // ---- limits ----
  const UserLimits& limits_of(const User& user) const { return user.limits ? *user.limits : settings().limits; }
  const UserLimits& limits_of(std::uint32_t uid) const;
  std::int32_t capped(const User& user, std::int32_t priority, bool by_admin) const;
  // Whether the job is within its user's limits, if the user's jobs that are to start ran, too.
  bool may_run(const Job& job) const;
  // Of its user, but for this job.
  ToStart other_to_start(const Job& job) const;
  // GPUs are kept for these jobs, as the last look has found. They count as if they ran.
  void clear_to_start() { to_start_.clear(); }
  void add_to_start(JobId job) { to_start_.push_back(job); }

  // ---- past use ----
  // At the first event.
  void begin_shares() { shares_.begin(now(), settings().half_life); }
  // The settings have another half-life. Ranks have to be made anew.
  void change_half_life();
  // As it was before a restart.
  void restore(User& user, std::uint64_t gpu_microseconds);
  // A job of the user takes GPUs, or leaves them.
  void begin_use(User& user, std::uint32_t gpus);
  void end_use(User& user, std::uint32_t gpus);
  // Charges the users whose jobs have GPUs, each kSettlePeriod. False: it is not time yet.
  bool settle();
  // True: all sums have been divided, so ranks have to be made anew.
  bool renew();
  // A user's place among users: less goes first. 0 in fifo.
  std::uint64_t usage_key(const User& user) const;
  std::vector<UserUsage> usage(TimePoint until) const;

  std::string check() const;  // invariants.cc

 private:
  void charge(User& user, TimePoint until) const;
  // Of all users, and the floors of jobs with them.
  template <class Change>
  void change_usage(Change change);

  std::map<std::uint32_t, User> users_;
  Shares shares_;
  TimePoint settled_at_{};
  std::vector<JobId> to_start_;  // in order
};

}  // namespace gpumux::jobs
