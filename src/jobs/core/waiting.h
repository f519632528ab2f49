// SPDX-License-Identifier: Apache-2.0
// The waiting jobs, kept in order, and which of them are not looked at for now. Private to src/jobs/core. lanes.h has
// the order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "jobs/core/gpus.h"
#include "jobs/core/part.h"
#include "jobs/core/users.h"

namespace gpumux::jobs {

// A job's place among the jobs that could take one of its GPUs, as Waiting::place_of, and the first of those; kNoJob:
// there is none, or it is not known.
struct Rivals {
  std::uint64_t place = 0;
  JobId first = kNoJob;
};

class Waiting : Part {
 public:
  using Levels = std::map<std::int32_t, Level, std::greater<>>;

  Waiting(Common& common, Users& users, const Gpus& gpus) : Part(common), users_(users), gpus_(gpus) {}

  // If nothing but others keeps it from starting.
  void enqueue(Job& job);
  // Other jobs make way for this one, the first that cannot start. With fair it goes before all others of its capped
  // priority until it leaves the queue. Otherwise users' turns could change while those jobs leave. They would come
  // back then, and make way once more. REQUIRES: it is in the queue.
  void put_first(Job& job);
  // Nothing happens if it is not in the queue. To be called before anything changes that decides its place.
  void dequeue(Job& job);

  // ---- the order ----
  Levels& levels() { return levels_; }
  const Levels& levels() const { return levels_; }
  // The user's past use has changed, or the GPUs that count for it.
  void rank(User& user);
  void rebuild_ranks();
  // Charges users for their GPUs, and orders their jobs by that.
  void settle_shares();
  // The past use behind which are all that wait at this priority.
  std::uint64_t last_usage(std::int32_t priority) const;
  // A floor is a place in the fair order. Another order begins without floors, so in fifo no job has one.
  void drop_floors();

  // ---- a look through the queue ----
  void begin_look() { ++look_; }
  // The first of the class cannot start in this look.
  void pass_over(Class& c) const { c.seen = look_; }
  bool is_passed_over(const Class& c) const { return c.seen == look_; }
  // The user's limits keep this job waiting, and so all behind it.
  void reach_limit(const Job& job) const;
  bool has_reached_limit(const User& user) const { return user.limited == look_; }
  // A job of the user before it has reached the limit, and the user's own order holds.
  bool behind_limited(const Job& job) const;

  // ---- jobs that are not looked at until something else has changed ----
  void park(Class& c, Parked why);
  // An array has fewer elements that run.
  void unpark(Array& array);
  // A GPU, a setting or a limit has changed.
  void unpark_gpus();

  // Memory that classes want (JobSpec::memory): how many of them.
  const std::map<std::uint64_t, std::uint64_t>& memories() const { return memories_; }

  // A job that a limit keeps waiting has no place, and counts for no other's. With fifo the place is the number of jobs
  // before it. With fair users take turns. The place is then the number of jobs that start before it if all jobs are of
  // one length. Of each other user it counts as many as are before the job in its own lane, and one more if that user
  // is ahead. `on`: counts only jobs that could take one of these GPUs.
  std::uint64_t place_of(const Job& job, const GpuSet* on = nullptr) const;
  // Jobs that want other GPUs go before it in order, and do not keep it waiting.
  Rivals rivals_of(const Job& job) const;

  std::string check() const;  // invariants.cc

 private:
  void insert(Job& job, bool is_first);
  void set_head(Class& c, std::uint64_t before);
  void unpark(Class& c);
  void rank(Lane& lane);
  std::string check(const Lane& lane) const;  // invariants.cc
  std::uint64_t jobs_in_turn(const Lane& lane, std::uint64_t of) const;

  Users& users_;
  const Gpus& gpus_;
  Levels levels_;
  std::vector<Class*> parked_for_gpus_;
  std::map<std::uint64_t, std::uint64_t> memories_;
  std::uint64_t look_ = 0;
};

}  // namespace gpumux::jobs
