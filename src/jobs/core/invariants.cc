// SPDX-License-Identifier: Apache-2.0
// The invariants after every event, checked from the jobs up: every counter is counted again, every index compared with
// its entries.
#include "jobs/core/state.h"

namespace gpumux::jobs {
namespace {

std::string name(const Job& job) { return "job " + std::to_string(job.spec.id.value); }
std::string name(const Gpu& gpu) { return "GPU " + std::to_string(gpu.index.value); }

bool is_waiting(const Job& job) {
  return job.state() == JobState::kQueued || job.state() == JobState::kHeld || job.state() == JobState::kSuspended;
}
bool should_occupy(const Job& job) {
  return job.state() == JobState::kStarting || job.state() == JobState::kRunning ||
         job.state() == JobState::kSuspending || job.state() == JobState::kResuming;
}

}  // namespace

std::string Users::check() const {
  for (const auto& [uid, user] : users_) {
    std::uint32_t running = 0, gpus = 0, suspended_gpus = 0, queued = 0;
    for (const auto& [id, job] : jobs()) {
      if (job->user != &user) continue;
      if (is_waiting(*job)) ++queued;
      if (job->state() == JobState::kSuspended) suspended_gpus += job->gpus.size();
      if (!job->occupies()) continue;
      ++running;
      gpus += job->gpus.size();
    }
    const bool is_counted = running == user.running && gpus == user.gpus && suspended_gpus == user.suspended_gpus;
    if (!is_counted || queued != user.queued) return "user " + std::to_string(uid) + " is miscounted";
  }
  return {};
}

std::string Gpus::check() const {
  for (const Gpu& gpu : gpus_) {
    std::uint64_t promised = 0;
    bool exclusive = false;
    std::uint32_t suspended = 0;
    for (const Job* job : gpu.occupants) {
      promised += on_gpu(*job->request, gpu);
      exclusive |= job->spec.exclusive;
      if (!job->occupies() || !job->gpus.contains(gpu.index)) return name(gpu) + " has an occupant that is not there";
    }
    if (promised != gpu.promised) return name(gpu) + " has miscounted what it promised";
    if (exclusive && gpu.occupants.size() > 1) return name(gpu) + " has an exclusive job and others";
    for (const auto& [id, job] : jobs()) {
      if (job->state() == JobState::kSuspended && job->gpus.contains(gpu.index)) ++suspended;
      const bool there = std::count(gpu.occupants.begin(), gpu.occupants.end(), job.get()) == 1;
      if ((job->occupies() && job->gpus.contains(gpu.index)) != there)
        return name(gpu) + " does not know " + name(*job);
    }
    if (suspended != gpu.suspended) return name(gpu) + " has miscounted who will come back";
  }
  return {};
}

std::string Waiting::check(const Lane& lane) const {
  std::uint64_t heads = 0, not_parked = 0;
  for (const auto& [key, c] : lane.classes) {
    if (c->jobs.empty()) return "an empty class is kept";
    if (c->parked == Parked::kNo) not_parked += c->jobs.size();
    for (const auto& [order, job] : c->jobs) {
      if (job->in_class != c.get() || job->spec.order != order) return name(*job) + " is in a class that it is not in";
      if (job->spec.capped != lane.priority || job->spec.priority != key.priority || job->user != lane.user)
        return name(*job) + " is in a wrong lane";
    }
    const auto head = lane.heads.find({key.priority, c->jobs.begin()->first});
    const bool listed = head != lane.heads.end() && head->second == c.get();
    if (listed != (c->parked == Parked::kNo))
      return name(*c->jobs.begin()->second) + " is not the head that it should be";
    if (listed) ++heads;
    if (c->parked == Parked::kArray) {
      const auto array = arrays().find(key.array);
      if (array == arrays().end() || array->second.active < array->second.limit)
        return name(*c->jobs.begin()->second) + " waits for its array in vain";
    }
    if (c->parked == Parked::kGpus && std::count(parked_for_gpus_.begin(), parked_for_gpus_.end(), c.get()) != 1)
      return name(*c->jobs.begin()->second) + " is parked and forgotten";
  }
  if (heads != lane.heads.size()) return "a lane has heads that are none";
  if (not_parked != lane.jobs) return "a lane has miscounted its jobs";
  if (lane.ranked != !lane.heads.empty()) return "a lane has no rank";
  if (lane.ranked) {
    const auto found = lane.level->lanes.find(lane.rank);
    if (found == lane.level->lanes.end() || found->second != &lane) return "a lane is not where its rank is";
    if (lane.rank.order != lane.heads.begin()->first.order) return "a lane has an old rank";
  }
  return {};
}

std::string Waiting::check() const {
  std::uint64_t in_lanes = 0, in_classes = 0;
  for (const auto& [uid, user] : users_.all()) {
    for (const auto& [key, lane] : user.lanes) {
      if (std::string wrong = check(*lane); !wrong.empty()) return wrong;
      for (const auto& [class_key, c] : lane->classes) in_lanes += c->jobs.size();
    }
  }
  for (const auto& [id, job] : jobs()) in_classes += job->in_class != nullptr ? 1u : 0u;
  return in_lanes == in_classes ? "" : "the queue has lost count";
}

std::string Dependencies::check(const Job& job) const {
  std::uint32_t pending = 0;
  for (std::uint32_t place = 0; place < job.spec.after.size(); ++place) {
    const Dependency& dependency = job.spec.after[place];
    if (job.state() != JobState::kQueued && job.state() != JobState::kHeld) break;
    if (dependency.fate != Dependency::Fate::kPending) continue;
    ++pending;
    const auto target = dependents_.find({dependency.on, dependency.whole_array, dependency.need});
    if (target == dependents_.end() || !target->second.contains({job.spec.id, place}))
      return name(job) + " waits for a job that does not know";
    if (!is_there(dependency)) return name(job) + " waits for a job that is not there";
  }
  if (pending != job.pending) return name(job) + " has miscounted what it waits for";
  return {};
}

std::string Runs::check(const Job& job) const {
  const std::string who = name(job);
  if (job.state() == JobState::kDone) return who + " is done and still there";
  if (job.state() != JobState::kEnding && job.occupies() != should_occupy(job))
    return who + " occupies GPUs or not, against its state";
  if (is_waiting(job) && job.occupies()) return who + " waits and occupies GPUs";
  if (job.occupies() && job.gpus.empty()) return who + " occupies no GPUs";
  if (job.occupies() && job.gpus.size() != job.spec.wanted_gpus())
    return who + " has another number of GPUs than it wants";
  if (job.occupies() && !job.spec.gpus.empty() && job.gpus != job.spec.gpus)
    return who + " has other GPUs than it named";
  if ((job.state() == JobState::kQueued || job.state() == JobState::kHeld) && !job.gpus.empty())
    return who + " has GPUs and has not been started";
  if (job.state() == JobState::kSuspended && job.gpus.empty())
    return who + " is suspended and has nowhere to go back to";
  const auto* const queued = job.in<Job::Queued>();
  const bool eligible = (job.state() == JobState::kQueued || job.state() == JobState::kSuspended) && !job.spec.held &&
                        job.pending == 0 && (queued == nullptr || (!queued->begins_at && !queued->retry_at));
  if (eligible != (job.in_class != nullptr)) return who + (eligible ? " is not in the queue" : " is in the queue");
  if (job.wake != TimePoint::max() && !deadlines_.contains({job.wake, job.spec.id}))
    return who + " has lost its deadline";
  const bool needs_wake = job.state() == JobState::kRunning && !job.overdue() && limit_at(job) != TimePoint::max();
  if (needs_wake && job.wake > limit_at(job)) return who + " would never reach its time limit";
  return dependencies_.check(job);
}

std::string Runs::check() const {
  std::uint32_t over = 0, leave = 0, deadlines_of_jobs = 0;
  std::map<JobId, std::pair<std::uint64_t, std::uint32_t>> counted;
  for (const auto& [id, job] : jobs()) {
    if (std::string wrong = check(*job); !wrong.empty()) return wrong;
    if (job->overdue()) ++over;
    if (job->wake != TimePoint::max()) ++deadlines_of_jobs;
    if (job->occupies() && (job->state() == JobState::kSuspending || job->state() == JobState::kEnding)) ++leave;
    if (job->spec.array == kNoJob) continue;
    ++counted[job->spec.array].first;
    if (job->counts_in_array()) ++counted[job->spec.array].second;
  }
  JobCounts by_state{};
  for (const auto& [id, job] : jobs()) ++by_state[static_cast<std::size_t>(job->state())];
  if (by_state != counts_) return "jobs are miscounted by state";
  if (over != overdue_ || leave != leaving_) return "those who have to go are miscounted";
  if (deadlines_of_jobs != deadlines_.size()) return "a deadline belongs to no job";
  if (counted.size() != arrays().size()) return "an array has no jobs";
  for (const auto& [id, array] : arrays()) {
    if (counted[id] != std::pair(array.unfinished, array.active))
      return "array " + std::to_string(id.value) + " is miscounted";
  }
  return {};
}

// No job that could start waits: neither the reserved one nor, without a reservation, any other.
std::string JobCore::State::check_order() const {
  if (common.held) return {};
  if (gpus.reservation().job != kNoJob) {
    const auto found = common.jobs.find(gpus.reservation().job);
    if (found == common.jobs.end() || found->second->in_class == nullptr)
      return "GPUs are kept for a job that does not wait";
    const Job& job = *found->second;
    if (gpus.reservation().gpus.size() != job.wanted_gpus()) return "too few GPUs are kept for " + name(job);
    for (const GpuIndex index : gpus.reservation().gpus) {
      if (!gpus.fits(job, gpus.at(index), {})) return {};
    }
    return name(job) + " waits and could start";
  }
  std::set<const User*> limited;
  const Job* free = nullptr;
  for (const auto& [priority, level] : waiting.levels()) {
    for (const auto& [rank, lane] : level.lanes) {
      for (const auto& [order, c] : lane->heads) {
        const Job& job = *c->jobs.begin()->second;
        if (!users.may_run(job)) limited.insert(job.user);
        if (free == nullptr && !limited.contains(job.user)) free = &job;
      }
    }
  }
  // A user's order holds across the user's lanes: a job that may not start keeps those behind it.
  if (free != nullptr && !limited.contains(free->user)) return name(*free) + " waits for nobody";
  return {};
}

std::string JobCore::State::check() const {
  for (const std::string& wrong : {runs.check(), users.check(), gpus.check(), waiting.check()}) {
    if (!wrong.empty()) return wrong;
  }
  return check_order();
}

}  // namespace gpumux::jobs
