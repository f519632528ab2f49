// SPDX-License-Identifier: Apache-2.0
// Jobs that come after others.
#include "jobs/core/state.h"

namespace gpumux::jobs {
namespace {

Target target_of(const Dependency& dependency) { return {dependency.on, dependency.whole_array, dependency.need}; }

}  // namespace

// Counts what is still to come, and asks to be told of it.
bool JobCore::State::await(Job& job) {
  bool possible = true;
  for (std::uint32_t place = 0; place < job.spec.after.size(); ++place) {
    Dependency& dependency = job.spec.after[place];
    const bool there = dependency.on != job.spec.id &&
                       (dependency.whole_array ? arrays.contains(dependency.on) : jobs.contains(dependency.on));
    if (dependency.fate == Dependency::Fate::kPending && !there) dependency.fate = Dependency::Fate::kBroken;
    if (dependency.fate == Dependency::Fate::kBroken) {
      if (possible) job.broken_by = dependency.on;
      possible = false;
    }
    if (dependency.fate != Dependency::Fate::kPending) continue;
    ++job.pending;
    dependents[target_of(dependency)].insert({job.spec.id, place});
  }
  return possible;
}

void JobCore::State::unawait(Job& job) {
  if (job.pending == 0) return;
  for (std::uint32_t place = 0; place < job.spec.after.size(); ++place) {
    const auto found = dependents.find(target_of(job.spec.after[place]));
    if (found == dependents.end()) continue;
    found->second.erase({job.spec.id, place});
    if (found->second.empty()) dependents.erase(found);
  }
  job.pending = 0;
}

// Tells everything that waits for the target, once: it is met, or never will be. Jobs that can never start now are
// appended to `broken`; they stay pending, so that nothing starts them until they are ended.
void JobCore::State::settle_dependents(const Target& target, bool met, JobId by, std::vector<JobId>& broken) {
  const auto waiting = dependents.extract(target);
  if (waiting.empty()) return;
  for (const Dependent& dependent : waiting.mapped()) {
    Job& job = *find(dependent.job);
    job.spec.after[dependent.place].fate = met ? Dependency::Fate::kMet : Dependency::Fate::kBroken;
    if (!met) {
      if (job.broken_by == kNoJob) job.broken_by = by;
      broken.push_back(dependent.job);
    } else if (--job.pending == 0) {
      enqueue(job);
    }
  }
}

}  // namespace gpumux::jobs
