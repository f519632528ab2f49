// SPDX-License-Identifier: Apache-2.0
// The waiting jobs, kept in order.
#include "jobs/core/waiting.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace gpumux::jobs {
namespace {

Turn turn_of(const Class& c) { return {c.key.priority, c.jobs.begin()->first}; }

}  // namespace

void Waiting::enqueue(Job& job) {
  const auto* const queued = job.in<Job::Queued>();
  const bool not_yet = queued != nullptr && (queued->begins_at || queued->retry_at);
  if (!job.waits() || job.spec.held || job.pending > 0 || not_yet || job.in_class != nullptr) return;
  insert(job, false);
}

void Waiting::put_first(Job& job) {
  if (settings().order == Order::kFifo) return;
  dequeue(job);
  insert(job, true);
}

void Waiting::insert(Job& job, bool is_first) {
  User& user = *job.user;
  const JobId alone = is_first || job.floor() ? job.spec.id : kNoJob;
  std::unique_ptr<Lane>& lane = user.lanes[{job.spec.capped, alone}];
  if (lane == nullptr) {
    lane = std::make_unique<Lane>();
    lane->user = &user;
    lane->priority = job.spec.capped;
    lane->alone = alone;
    lane->is_first = is_first;
    lane->level = &levels_[job.spec.capped];
    ++lane->level->members;
  }
  const bool resume = job.in<Job::Suspended>() != nullptr;
  ClassKey key{job.spec.priority,
               {resume ? job.gpus : job.spec.gpus, job.spec.wanted_gpus(), job.spec.memory, job.spec.exclusive,
                job.spec.time_limit},
               !resume && job.in_array_with_limit() ? job.spec.array : kNoJob,
               resume};
  std::unique_ptr<Class>& c = lane->classes[key];
  if (c == nullptr) {
    c = std::make_unique<Class>();
    c->key = key;
    c->lane = lane.get();
    ++memories_[key.shape.memory];
  }
  const std::uint64_t head = c->jobs.empty() ? 0 : c->jobs.begin()->first;
  c->jobs.insert({job.spec.order, &job});
  job.in_class = c.get();
  if (c->parked == Parked::kNo) ++lane->jobs;
  if (c->jobs.begin()->first != head) set_head(*c, head);
}

void Waiting::dequeue(Job& job) {
  Class* const c = job.in_class;
  if (c == nullptr) return;
  job.in_class = nullptr;
  Lane& lane = *c->lane;
  const std::uint64_t head = c->jobs.begin()->first;
  c->jobs.erase(job.spec.order);
  if (c->parked == Parked::kNo) --lane.jobs;
  if (head != job.spec.order) return;
  if (c->jobs.empty() && c->parked == Parked::kArray) std::erase(arrays().at(c->key.array).parked, c);
  if (c->jobs.empty() && c->parked == Parked::kGpus) std::erase(parked_for_gpus_, c);
  set_head(*c, head);
  if (!c->jobs.empty()) return;
  const ClassKey key = c->key;  // the class goes with its key
  if (--memories_.at(key.shape.memory) == 0) memories_.erase(key.shape.memory);
  lane.classes.erase(key);
  if (!lane.classes.empty()) return;
  if (--lane.level->members == 0) levels_.erase(lane.priority);
  lane.user->lanes.erase({lane.priority, lane.alone});
}

// The first of the class is another one than `before`: it takes its place among the lane's candidates.
void Waiting::set_head(Class& c, std::uint64_t before) {
  look_again();
  if (c.parked != Parked::kNo) return;
  if (before != 0) c.lane->heads.erase({c.key.priority, before});
  if (!c.jobs.empty()) c.lane->heads.emplace(turn_of(c), &c);
  rank(*c.lane);
}

void Waiting::park(Class& c, Parked why) {
  c.lane->heads.erase(turn_of(c));
  c.lane->jobs -= c.jobs.size();
  c.parked = why;
  if (why == Parked::kArray) arrays().at(c.key.array).parked.push_back(&c);
  if (why == Parked::kGpus) parked_for_gpus_.push_back(&c);
  rank(*c.lane);
}

// Its owner takes it off the list where it was parked.
void Waiting::unpark(Class& c) {
  c.parked = Parked::kNo;
  c.lane->jobs += c.jobs.size();
  set_head(c, 0);
}

void Waiting::unpark(Array& array) {
  for (Class* c : std::exchange(array.parked, {})) unpark(*c);
}

void Waiting::unpark_gpus() {
  for (Class* c : std::exchange(parked_for_gpus_, {})) unpark(*c);
  look_again();
}

// Its place among the lanes of its level.
void Waiting::rank(Lane& lane) {
  LaneRank rank;
  if (!lane.heads.empty()) {
    const auto& [turn, c] = *lane.heads.begin();
    if (!lane.is_first)
      rank.usage = std::max(users_.usage_key(*lane.user), c->jobs.begin()->second->floor().value_or(0));
    rank.order = turn.order;
    rank.uid = lane.user->uid;
  }
  if (lane.ranked == !lane.heads.empty() && (!lane.ranked || lane.rank == rank)) return;
  if (lane.ranked) lane.level->lanes.erase(lane.rank);
  lane.rank = rank;
  lane.ranked = !lane.heads.empty();
  if (lane.ranked) lane.level->lanes.emplace(rank, &lane);
}

void Waiting::rank(User& user) {
  for (auto& [key, lane] : user.lanes) rank(*lane);
}

void Waiting::rebuild_ranks() {
  for (auto& [priority, level] : levels_) level.lanes.clear();
  for (auto& [uid, user] : users_.all()) {
    for (auto& [key, lane] : user.lanes) lane->ranked = false;
    rank(user);
  }
}

void Waiting::settle_shares() {
  if (!users_.settle()) return;
  if (users_.renew()) rebuild_ranks();
  for (auto& [uid, user] : users_.all()) {
    if (user.running > 0) rank(user);
  }
}

std::uint64_t Waiting::last_usage(std::int32_t priority) const {
  const auto level = levels_.find(priority);
  return level == levels_.end() || level->second.lanes.empty() ? 0 : level->second.lanes.rbegin()->first.usage;
}

void Waiting::reach_limit(const Job& job) const {
  job.user->limited = look_;
  job.user->limited_job = job.spec.id;
}

bool Waiting::behind_limited(const Job& job) const {
  return has_reached_limit(*job.user) && job.user->limited_job != job.spec.id && job.in_class != nullptr &&
         !is_passed_over(*job.in_class);
}

void Waiting::drop_floors() {
  for (auto& [id, job] : jobs()) {
    const bool is_alone = job->in_class != nullptr && job->in_class->lane->alone != kNoJob;
    if (!job->floor() && !is_alone) continue;
    dequeue(*job);
    if (auto* const suspended = job->in<Job::Suspended>()) suspended->floor.reset();
    enqueue(*job);
  }
}

namespace {

// Whether the jobs of the class could take one of these GPUs. Null: any GPU.
bool wants_any_of(const Class& c, const GpuSet* on) {
  return on == nullptr || c.key.shape.gpus.empty() || !(c.key.shape.gpus & *on).empty();
}

std::uint64_t jobs_of(const Lane& lane, const GpuSet* on) {
  if (on == nullptr) return lane.jobs;
  std::uint64_t count = 0;
  for (const auto& [turn, c] : lane.heads) count += wants_any_of(*c, on) ? c->jobs.size() : 0;
  return count;
}

// Jobs of the lane that came before.
std::uint64_t before(const Lane& lane, std::uint64_t order, const GpuSet* on) {
  std::uint64_t count = 0;
  for (const auto& [turn, c] : lane.heads) count += wants_any_of(*c, on) ? c->jobs.order_of_key(order) : 0;
  return count;
}

// Jobs of its own lane that go before it.
std::uint64_t before(const Job& job, const GpuSet* on) {
  std::uint64_t count = 0;
  for (const auto& [turn, c] : job.in_class->lane->heads) {
    if (!wants_any_of(*c, on)) continue;
    if (turn.priority == job.spec.priority) count += c->jobs.order_of_key(job.spec.order);
    if (turn.priority > job.spec.priority) count += c->jobs.size();
  }
  return count;
}

}  // namespace

// How many of these jobs of the lane count for other users' places: as many as its user's limits let start now.
std::uint64_t Waiting::jobs_in_turn(const Lane& lane, std::uint64_t of) const {
  const UserLimits& limits = users_.limits_of(*lane.user);
  const auto left = [of](const settings::Limit<std::uint32_t>& limit, std::uint32_t used) -> std::uint64_t {
    return limit.is_unlimited() ? of : limit.value() - std::min(limit.value(), used);
  };
  return std::min({of, left(limits.running, lane.user->running), left(limits.gpus, lane.user->gpus)});
}

std::uint64_t Waiting::place_of(const Job& job, const GpuSet* on) const {
  if (job.in_class == nullptr || job.in_class->parked != Parked::kNo) return 0;
  if (!users_.may_run(job) || behind_limited(job)) return 0;
  const Lane& lane = *job.in_class->lane;
  std::uint64_t place = 1;
  for (const auto& [priority, level] : levels_) {
    if (priority <= lane.priority) break;
    for (const auto& [rank, other] : level.lanes) place += jobs_in_turn(*other, jobs_of(*other, on));
  }
  const std::uint64_t own = before(job, on);
  place += own;
  for (const auto& [rank, other] : lane.level->lanes) {
    if (other == &lane) continue;
    const std::uint64_t in_turn = settings().order == Order::kFifo
                                      ? before(*other, job.spec.order, on)
                                      : std::min(jobs_of(*other, on), own + (rank < lane.rank ? 1 : 0));
    place += jobs_in_turn(*other, in_turn);
  }
  return place;
}

Rivals Waiting::rivals_of(const Job& job) const {
  if (!job.has_its_gpus()) return {place_of(job), gpus_.reservation().job};
  const GpuSet on = gpus_.usable_for(job);
  Rivals rivals{place_of(job, &on), kNoJob};
  if (rivals.place <= 1) return rivals;
  const Job* const reserved = find(gpus_.reservation().job);
  if (reserved != nullptr && !(gpus_.usable_for(*reserved) & on).empty()) {
    rivals.first = gpus_.reservation().job;
    return rivals;
  }
  // The first in order. With fair, users take turns: a job of a user behind may be before it.
  const Turn own{job.spec.priority, job.spec.order};
  for (const auto& [priority, level] : levels_) {
    for (const auto& [rank, lane] : level.lanes) {
      for (const auto& [turn, c] : lane->heads) {
        const bool is_behind = lane == job.in_class->lane
                                   ? !(turn < own)
                                   : settings().order == Order::kFifo && priority == job.in_class->lane->priority &&
                                         turn.order > own.order;
        if (is_behind || !wants_any_of(*c, &on)) continue;
        rivals.first = c->jobs.begin()->second->spec.id;
        return rivals;
      }
    }
    if (priority == job.in_class->lane->priority) break;
  }
  return rivals;
}

}  // namespace gpumux::jobs
