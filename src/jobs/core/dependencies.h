// SPDX-License-Identifier: Apache-2.0
// Jobs that come after others. Private to src/jobs/core.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "jobs/core/part.h"
#include "jobs/core/waiting.h"

namespace gpumux::jobs {

// A job or array that dependencies wait for, and how it has to end. Dependencies that need `kOk` are apart, for the
// first element that fails settles them.
struct Target {
  JobId on;
  bool whole_array = false;
  Dependency::Need need = Dependency::Need::kOk;
  auto operator<=>(const Target&) const = default;
};

// One dependency of a job: its place in JobSpec::after. So settling it takes no search through the others.
struct Dependent {
  JobId job;
  std::uint32_t place = 0;
  auto operator<=>(const Dependent&) const = default;
};

class Dependencies : Part {
 public:
  Dependencies(Common& common, Waiting& waiting) : Part(common), waiting_(waiting) {}

  // Whether there is a job or array that the dependency could still wait for.
  bool is_there(const Dependency& dependency) const {
    return dependency.whole_array ? arrays().contains(dependency.on) : jobs().contains(dependency.on);
  }
  // Counts the dependencies that are still to come, and remembers them. False: one is broken already.
  bool await(Job& job);
  void unawait(Job& job);
  // Tells everything that waits for the target, once: it is met, or never will be. `by`: the job that settles it. Jobs
  // that can never start now are appended to `broken`; they stay pending, so that nothing starts them until they are
  // ended.
  void settle(const Target& target, bool met, JobId by, std::vector<JobId>& broken);

  std::string check(const Job& job) const;  // invariants.cc

 private:
  Waiting& waiting_;
  std::map<Target, std::set<Dependent>> dependents_;
};

}  // namespace gpumux::jobs
