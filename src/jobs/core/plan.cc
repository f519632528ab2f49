// SPDX-License-Identifier: Apache-2.0
// Expected starts of waiting jobs: of the first kPlannedJobs in order. Each starts where it first fits if every job
// that runs or goes first uses its whole time limit. A job after one without a time limit has no such time.
//
// Of the job that has the reservation it is the latest start. Of the others it is an estimate: users' turns change, and
// shorter jobs start in between.
#include <map>

#include "jobs/core/planner.h"

namespace gpumux::jobs {
namespace {

// The first jobs of the lane, `most` of them at most, of classes that are not parked.
std::vector<std::pair<Turn, const Job*>> first_of(const Lane& lane, std::size_t most) {
  std::vector<std::pair<Turn, const Job*>> jobs;
  std::size_t classes = 0;
  for (const auto& [turn, c] : lane.heads) {
    if (classes++ == most) break;
    std::size_t taken = 0;
    for (auto job = c->jobs.begin(); job != c->jobs.end() && taken < most; ++job, ++taken)
      jobs.push_back({{c->key.priority, job->first}, job->second});
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  jobs.resize(std::min(jobs.size(), most));
  return jobs;
}

// Limits of users and arrays, with those that are planned.
class Begun {
 public:
  bool may_begin(const Job& job, const UserLimits& limits, const Array* array) {
    const std::uint32_t gpus = job.wanted_gpus();
    auto& [of_user, gpus_of_user] = users_.try_emplace(job.user, job.user->running, job.user->gpus).first->second;
    if (of_user >= limits.running || gpus_of_user + gpus > limits.gpus) return false;
    if (array != nullptr) {
      std::uint32_t& of_array = arrays_.try_emplace(array, array->active).first->second;
      if (of_array >= array->limit) return false;
      ++of_array;
    }
    ++of_user;
    gpus_of_user += gpus;
    return true;
  }

 private:
  std::map<const User*, std::pair<std::uint32_t, std::uint32_t>> users_;  // jobs, GPUs
  std::map<const Array*, std::uint32_t> arrays_;
};

}  // namespace

std::vector<const Job*> Planner::first_in_order(std::size_t most) const {
  std::vector<const Job*> found;
  for (const auto& [priority, level] : waiting_.levels()) {
    const std::size_t wanted = most - found.size();
    if (wanted == 0) break;
    std::vector<std::tuple<std::uint64_t, std::size_t, const Job*>> all;  // whose turn; the lane
    std::size_t lanes = 0;
    for (const auto& [rank, lane] : level.lanes) {
      if (lanes == wanted) break;
      std::uint64_t turn = 0;
      for (const auto& [at, job] : first_of(*lane, wanted)) {
        all.emplace_back(turn, lanes, job);
        if (settings().order == Order::kFifo) std::get<0>(all.back()) = turn = std::max(turn, at.order);
        if (settings().order == Order::kFair) ++turn;
      }
      ++lanes;
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return std::pair(std::get<0>(a), std::get<1>(a)) < std::pair(std::get<0>(b), std::get<1>(b));
    });
    for (std::size_t i = 0; i < std::min(wanted, all.size()); ++i) found.push_back(std::get<2>(all[i]));
  }
  return found;
}

std::map<JobId, TimePoint> Planner::expected_starts() const {
  std::map<JobId, TimePoint> starts;
  std::vector<Planned> planned;
  Begun begun;
  for (const Job* job : first_in_order(kPlannedJobs)) {
    const bool in_array = job->in<Job::Queued>() && job->in_array_with_limit();
    if (!begun.may_begin(*job, users_.limits_of(*job->user), in_array ? &arrays().at(job->spec.array) : nullptr))
      continue;
    const std::uint32_t wanted = job->wanted_gpus();
    std::vector<std::pair<TimePoint, GpuIndex>> choice;
    for (const GpuIndex index :
         gpus_.reservation().job == job->spec.id ? gpus_.reservation().gpus : gpus_.usable_for(*job))
      choice.emplace_back(earliest(*job, gpus_.at(index), planned), index);
    if (choice.size() < wanted) continue;
    std::partial_sort(choice.begin(), choice.begin() + wanted, choice.end());
    Planned next{job, {}, now()};
    for (std::uint32_t i = 0; i < wanted; ++i) {
      next.gpus.insert(choice[i].second);
      next.start = std::max(next.start, choice[i].first);
    }
    if (next.start != TimePoint::max()) starts.emplace(job->spec.id, next.start);
    planned.push_back(next);
  }
  return starts;
}

}  // namespace gpumux::jobs
