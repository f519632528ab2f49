// SPDX-License-Identifier: Apache-2.0
// Jobs that come after others.
#include "sched/jobs/state.h"

namespace gpumux::sched::jobs {

// Counts what is still to come, and asks to be told of it.
bool JobCore::State::await(Job& job) {
  bool possible = true;
  for (Dependency& dependency : job.spec.after) {
    if (dependency.fate == Dependency::Fate::kBroken) possible = false;
    if (dependency.fate != Dependency::Fate::kPending) continue;
    const bool there = dependency.on != job.spec.id &&
                       (dependency.whole_array ? arrays.contains(dependency.on) : jobs.contains(dependency.on));
    if (!there) {
      dependency.fate = Dependency::Fate::kBroken;
      possible = false;
      continue;
    }
    ++job.pending;
    dependents[{dependency.on, dependency.whole_array}].insert(job.spec.id);
  }
  return possible;
}

void JobCore::State::unawait(Job& job) {
  if (job.pending == 0) return;
  for (const Dependency& dependency : job.spec.after) {
    const auto found = dependents.find({dependency.on, dependency.whole_array});
    if (found == dependents.end()) continue;
    found->second.erase(job.spec.id);
    if (found->second.empty()) dependents.erase(found);
  }
  job.pending = 0;
}

// The target is done, or (`ended` is false) one of an array's elements has failed and others are still to come. Those
// that can never start now are appended to `broken`.
void JobCore::State::settle_dependents(Target target, bool ok, bool ended, std::vector<JobId>& broken) {
  const auto found = dependents.find(target);
  if (found == dependents.end()) return;
  const std::set<JobId> waiting = ended ? std::move(found->second) : found->second;
  if (ended) dependents.erase(found);
  for (const JobId id : waiting) {
    Job& job = *find(id);
    bool possible = true;
    for (Dependency& dependency : job.spec.after) {
      if (dependency.on != target.first || dependency.whole_array != target.second) continue;
      if (dependency.fate != Dependency::Fate::kPending) continue;
      const bool met = ok || dependency.need == Dependency::Need::kAny;
      possible &= met;
      if (!ended) continue;
      dependency.fate = met ? Dependency::Fate::kMet : Dependency::Fate::kBroken;
      --job.pending;
    }
    if (!possible) broken.push_back(id);
    if (possible && ended && job.pending == 0) enqueue(job);
  }
}

}  // namespace gpumux::sched::jobs
