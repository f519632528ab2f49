// SPDX-License-Identifier: Apache-2.0
// The state that all parts of the job core work with. Private to src/jobs/core.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "jobs/core/events.h"
#include "jobs/core/tables.h"

namespace gpumux::jobs {

// The time, the settings, the jobs that are not done, and what the core does because of an event.
struct Common {
  TimePoint now{};
  QueueSettings settings;
  bool held = true;    // SchedulingHeld
  bool dirty = false;  // something may be able to start, or to have to go: the queue is looked through
  std::vector<Command>* commands = nullptr;    // during JobCore::apply()
  std::map<JobId, std::unique_ptr<Job>> jobs;  // never move in memory
  std::map<JobId, Array> arrays;               // with jobs that are not done
};

// A part calls only the parts that it was given. Each part was given only parts that were made before it. state.h has
// them in that order.
class Part {
 protected:
  // Not owned.
  explicit Part(Common& common) : common_(common) {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() = default;

  TimePoint now() const { return common_.now; }
  const QueueSettings& settings() const { return common_.settings; }
  void look_again() const { common_.dirty = true; }
  template <class OneCommand>
  void command(OneCommand c) const {
    common_.commands->emplace_back(std::move(c));
  }
  std::map<JobId, std::unique_ptr<Job>>& jobs() const { return common_.jobs; }
  std::map<JobId, Array>& arrays() const { return common_.arrays; }
  // nullptr: it is not there.
  Job* find(JobId id) const {
    const auto found = common_.jobs.find(id);
    return found == common_.jobs.end() ? nullptr : found->second.get();
  }

 private:
  Common& common_;
};

}  // namespace gpumux::jobs
