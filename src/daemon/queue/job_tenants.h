// SPDX-License-Identifier: Apache-2.0
// Where the job queue and the tenants meet: a job's programs are tenants like others, known by the name of their run.
//
// Owned by the loop's thread.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "jobs/service/job_queue.h"
#include "jobs/service/node.h"

namespace gpumux::daemon {

class Leases;
class Trace;
struct TenantParts;

class JobTenants : public jobs::Node {
 public:
  // `trace` has an entry for each change of a job's state. `settle`: brings the consequences to rest; soon, not now.
  JobTenants(const Leases& leases, TenantParts& tenants, Trace& trace, std::function<void()> settle);
  void suspend(uid_t uid, const std::string& run) override;
  void resume(uid_t uid, const std::string& run) override;
  void set_priority(uid_t uid, const std::string& run, std::int32_t priority) override;
  jobs::ProgramsState state(uid_t uid, const std::string& run) const override;
  void changed(const jobs::StateChange& change) override;

  // Tells the queue, now and then, of memory that jobs cannot have: not ours, or of tenants of no job. Memory that a
  // suspended job could not take along is no reason to keep jobs waiting, least of all that job itself.
  void look_for_foreign_use(jobs::JobQueue& jobs) const;
  // After each look at the driver, made at `asked_at`: if it is the first that tells what others use, jobs may start.
  void look_at_first(jobs::JobQueue& jobs, base::TimePoint asked_at);

 private:
  std::vector<std::vector<jobs::ForeignProgram>> programs_outside(
      const std::set<std::pair<uid_t, std::string>>& runs) const;

  const Leases& leases_;
  TenantParts& tenants_;
  Trace& trace_;
  std::function<void()> settle_;
  std::optional<base::TimePoint> first_look_at_;
};

}  // namespace gpumux::daemon
