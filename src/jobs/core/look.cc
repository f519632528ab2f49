// SPDX-License-Identifier: Apache-2.0
// A look through the queue: it starts jobs, makes jobs give way, and keeps GPUs for a job.
#include "jobs/core/planner.h"

namespace gpumux::jobs {
namespace {

// Goes through the first ones of classes in order. Lanes must not move during a pass. Starting a job moves them, so it
// then begins again and passes over the jobs that it has seen.
//
// fifo: the lanes of a level are merged by order, and opened only when one of theirs can be next. A job's order there
// is at least that of each one that goes before it in its lane. So a user's priorities above the cap pass no other
// user's jobs. fair: one lane after the other.
class Candidates {
 public:
  Candidates(Waiting& waiting, bool merge) : waiting_(waiting), merge_(merge) { restart(); }

  void restart() {
    level_ = waiting_.levels().begin();
    enter();
  }

  Class* next() {
    while (level_ != waiting_.levels().end()) {
      while (lane_ != level_->second.lanes.end() &&
             (open_.empty() || (merge_ && lane_->first.order < open_.begin()->first))) {
        Lane& lane = *(lane_++)->second;
        open_.emplace(lane.heads.begin()->first.order, Position{&lane, lane.heads.begin()});
      }
      if (open_.empty()) {
        ++level_;
        enter();
        continue;
      }
      Position at = open_.begin()->second;
      const std::uint64_t order = open_.begin()->first;
      open_.erase(open_.begin());
      if (waiting_.has_reached_limit(*at.lane->user)) continue;  // nothing of this user
      Class* const c = at.head->second;
      if (++at.head != at.lane->heads.end()) open_.emplace(std::max(order, at.head->first.order), at);
      if (!waiting_.is_passed_over(*c)) return c;
    }
    return nullptr;
  }

 private:
  struct Position {
    Lane* lane;
    std::map<Turn, Class*>::iterator head;
  };
  void enter() {
    open_.clear();
    if (level_ != waiting_.levels().end()) lane_ = level_->second.lanes.begin();
  }

  Waiting& waiting_;
  bool merge_;
  Waiting::Levels::iterator level_;
  std::map<LaneRank, Lane*>::iterator lane_;
  std::map<std::uint64_t, Position> open_;  // by the order of what comes next
};

}  // namespace

void Planner::look_through() {
  waiting_.settle_shares();
  waiting_.begin_look();
  const Reservation before = gpus_.reservation();
  const JobId claimant = std::exchange(claimant_, kNoJob);
  gpus_.reserve({});
  users_.clear_to_start();
  GpuSet closed;                                   // kept for jobs that wait for others to go
  std::vector<std::pair<Class*, Parked>> to_park;  // afterwards: it moves lanes, and Candidates stands on them
  Job* to_put_first = nullptr;                     // afterwards, too
  std::uint32_t depth = 0;
  survey_room();
  Candidates candidates(waiting_, settings().order == Order::kFifo);
  while (Class* const c = candidates.next()) {
    Job& job = *c->jobs.begin()->second;
    const std::uint32_t wanted = c->key.shape.count;
    const Array* const array = c->key.array != kNoJob ? &arrays().at(c->key.array) : nullptr;
    if (array != nullptr && array->active >= array->limit) {
      waiting_.pass_over(*c);
      to_park.push_back({c, Parked::kArray});
      continue;
    }
    if (wanted > users_.limits_of(*job.user).gpus || gpus_.usable_for(job).size() < wanted) {
      waiting_.pass_over(*c);
      to_park.push_back({c, Parked::kGpus});
      continue;
    }
    if (!users_.may_run(job)) {
      // The user's own order holds within the user's limits: smaller jobs do not pass larger ones there. A job for
      // which GPUs are kept counts_ as if it ran. Otherwise one behind it could start, and its limit would then keep it
      // waiting_.
      waiting_.reach_limit(job);
      continue;
    }
    if (const std::optional<GpuSet> on = best_fit(job, closed)) {
      runs_.start(job, *on);
      survey_room();
      candidates.restart();
      continue;
    }
    waiting_.pass_over(*c);
    if (const std::optional<WayIn> way = way_in(job, closed, job.spec.id == claimant ? before.gpus : GpuSet())) {
      users_.add_to_start(job.spec.id);
      make_way(*way);
      closed = closed | way->gpus;
      if (gpus_.reservation().job == kNoJob) {
        gpus_.reserve({job.spec.id, way->gpus, now()});
        if (!way->victims.empty()) to_put_first = &job;
        if (!way->victims.empty() || job.spec.id == claimant) claimant_ = job.spec.id;
      } else {
        // A user's own job that makes way for another of that user's may have been in the way of the first, too.
        gpus_.reserve(reserve(*jobs().at(gpus_.reservation().job), gpus_.reservation()));
      }
    } else if (gpus_.reservation().job == kNoJob) {
      users_.add_to_start(job.spec.id);
      gpus_.reserve(reserve(job, before));
    }
    const std::uint64_t least = least_need_of_all();
    if (++depth == kBackfillDepth || (least > most_free_ && least > most_gain_)) break;
  }
  for (const auto& [c, why] : to_park) waiting_.park(*c, why);
  if (to_put_first != nullptr) waiting_.put_first(*to_put_first);
}

void Planner::make_way(const WayIn& way) {
  for (Job* job : way.victims) {
    const bool for_time = job->overdue();
    if (for_time && job->spec.on_limit == OnLimit::kCancel) {
      runs_.ask_to_end(*job, CancelReason::kTimeLimit);
      continue;
    }
    runs_.suspend(*job, for_time ? SuspendReason::kTimeLimit : SuspendReason::kPriority);
  }
}

}  // namespace gpumux::jobs
