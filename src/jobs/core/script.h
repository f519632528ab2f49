// SPDX-License-Identifier: Apache-2.0
// A job core and a clock for tests: tells the core the events and gives back its commands, as one line of text. Records
// are kept apart, as what a store would hold.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "jobs/core/job_core.h"

namespace gpumux::jobs {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

class Script {
 public:
  // `count` GPUs of 80 GiB; fifo unless told otherwise, for then the order is plain.
  explicit Script(std::uint32_t count = 1, QueueSettings settings = fifo()) {
    tell(SettingsChanged{settings});
    for (std::uint32_t i = 0; i < count; ++i) tell(GpuAdded{GpuIndex{i}, 80 * kGiB});
    tell(SchedulingHeld{false});
  }
  static QueueSettings fifo() {
    QueueSettings settings;
    settings.order = Order::kFifo;
    return settings;
  }

  std::string tell(const Event& event) {
    std::vector<Command> commands;
    core_.apply(now_, event, commands);
    EXPECT_EQ(core_.check_invariants(), "") << "after " << to_string(event);
    std::string text;
    for (const Command& command : commands) {
      if (const auto* record = std::get_if<Record>(&command)) {
        records_[record->job] = *record;
        continue;
      }
      text += (text.empty() ? "" : "; ") + to_string(command);
    }
    return text;
  }

  // A specification with the next id.
  JobSpec spec(std::uint32_t gpus = 1, std::uint64_t gib = 0) {
    JobSpec spec;
    spec.id = JobId{next_id_++};
    spec.uid = 1000;
    spec.gpu_count = gpus;
    spec.memory = gib * kGiB;
    return spec;
  }
  std::string submit(const JobSpec& spec) { return tell(Submitted{spec}); }
  std::string submit(std::uint32_t gpus = 1, std::uint64_t gib = 0) { return submit(spec(gpus, gib)); }
  // Submits a job that is to start at once, and confirms it.
  JobId run(const JobSpec& spec) {
    const std::string told = submit(spec);
    EXPECT_NE(told.find("Start job " + std::to_string(spec.id.value) + ".1 "), std::string::npos) << told;
    tell(StartConfirmed{spec.id, 1});
    return spec.id;
  }
  JobId run(std::uint32_t gpus = 1, std::uint64_t gib = 0) { return run(spec(gpus, gib)); }

  std::string confirm(std::uint64_t job) { return tell(StartConfirmed{JobId{job}, attempt(job)}); }
  std::string end(std::uint64_t job, End how = End::kOk) { return tell(Ended{JobId{job}, attempt(job), how}); }
  std::string suspended(std::uint64_t job) { return tell(Suspended{JobId{job}, attempt(job)}); }
  std::string refused(std::uint64_t job) { return tell(SuspendRefused{JobId{job}, attempt(job)}); }
  std::string resumed(std::uint64_t job) { return tell(Resumed{JobId{job}, attempt(job)}); }
  std::string cancel(std::uint64_t job) { return tell(CancelAsked{JobId{job}}); }

  // Lets time pass, waking the core at each of its deadlines.
  std::string wait(Duration duration) {
    const TimePoint end = now_ + duration;
    std::string text;
    for (auto next = core_.next_deadline(); next && *next <= end; next = core_.next_deadline()) {
      now_ = std::max(now_, *next);
      const std::string more = tell(TimePassed{});
      if (!more.empty()) text += (text.empty() ? "" : "; ") + more;
    }
    now_ = end;
    return text;
  }

  JobStanding standing(std::uint64_t job) const { return core_.standing(JobId{job}).value_or(JobStanding()); }
  std::string reason(std::uint64_t job) const { return std::string(to_string(standing(job).reason)); }
  std::uint64_t place(std::uint64_t job) const { return standing(job).place; }
  const Record& record(std::uint64_t job) { return records_[JobId{job}]; }
  std::string outcome(std::uint64_t job) { return std::string(to_string(record(job).outcome)); }
  std::uint32_t attempt(std::uint64_t job) const { return standing(job).attempt; }
  JobCore& core() { return core_; }
  TimePoint now() const { return now_; }

 private:
  JobCore core_;
  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t next_id_ = 1;
  std::map<JobId, Record> records_;
};

}  // namespace gpumux::jobs
