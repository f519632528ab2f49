// SPDX-License-Identifier: Apache-2.0
// Jobs that come after others.
#include "jobs/core/dependencies.h"

namespace gpumux::jobs {
namespace {

Target target_of(const Dependency& dependency) { return {dependency.on, dependency.whole_array, dependency.need}; }

}  // namespace

bool Dependencies::await(Job& job) {
  bool possible = true;
  for (std::uint32_t place = 0; place < job.spec.after.size(); ++place) {
    Dependency& dependency = job.spec.after[place];
    const bool there = dependency.on != job.spec.id && is_there(dependency);
    if (dependency.fate == Dependency::Fate::kPending && !there) dependency.fate = Dependency::Fate::kBroken;
    if (dependency.fate == Dependency::Fate::kBroken) {
      if (possible) job.broken_by = dependency.on;
      possible = false;
    }
    if (dependency.fate != Dependency::Fate::kPending) continue;
    ++job.pending;
    dependents_[target_of(dependency)].insert({job.spec.id, place});
  }
  return possible;
}

void Dependencies::unawait(Job& job) {
  if (job.pending == 0) return;
  for (std::uint32_t place = 0; place < job.spec.after.size(); ++place) {
    const auto found = dependents_.find(target_of(job.spec.after[place]));
    if (found == dependents_.end()) continue;
    found->second.erase({job.spec.id, place});
    if (found->second.empty()) dependents_.erase(found);
  }
  job.pending = 0;
}

void Dependencies::settle(const Target& target, bool met, JobId by, std::vector<JobId>& broken) {
  const auto waiting = dependents_.extract(target);
  if (waiting.empty()) return;
  for (const Dependent& dependent : waiting.mapped()) {
    Job& job = *find(dependent.job);
    job.spec.after[dependent.place].fate = met ? Dependency::Fate::kMet : Dependency::Fate::kBroken;
    if (!met) {
      if (job.broken_by == kNoJob) job.broken_by = by;
      broken.push_back(dependent.job);
    } else if (--job.pending == 0) {
      waiting_.enqueue(job);
    }
  }
}

}  // namespace gpumux::jobs
