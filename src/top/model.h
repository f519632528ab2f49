// SPDX-License-Identifier: Apache-2.0
// The data of `gpumux top`: the daemon's last answers, the history of turns, and whether the daemon is there. Pure:
// times are passed in.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api_client/jobs.h"
#include "api_client/types.h"
#include "base/clock.h"
#include "base/result.h"
#include "cli/views/trace_history.h"
#include "top/marks.h"

namespace gpumux::top {

// The longest time that the timeline shows; older turns are forgotten.
inline constexpr base::Duration kHistory = std::chrono::minutes(5);

// The clocks when the screen is drawn.
struct Clocks {
  base::TimePoint now{};
  std::int64_t unix_ns = 0;
};

class Model {
 public:
  explicit Model(std::string runtime_dir) : runtime_dir_(std::move(runtime_dir)) {}

  // ---- from the daemon

  // Another daemon, or the same one again: its trace begins anew, and so do the numbers of its tenants.
  void begin_anew();
  void take_snapshot(api_client::Snapshot snapshot, base::TimePoint now);
  // Lines of GET /v1/trace, asked for after the snapshot; some or none. Gives the error of a line that is none.
  base::Status take_trace(std::string_view lines);
  void take_jobs(api_client::JobPage page);
  // The daemon is gone, or does not answer. Only the first time since it answered last counts as the beginning.
  void lose(const base::Error& error, std::int64_t unix_ns);
  void find() { lost_.reset(); }

  // ---- for the screen

  struct Lost {
    std::string why;
    bool is_gone = false;  // there is none; otherwise it does not answer, or not as it should
    std::int64_t since_unix_ns = 0;
  };

  const std::string& runtime_dir() const { return runtime_dir_; }
  const std::optional<api_client::Snapshot>& snapshot() const { return snapshot_; }
  // One page, in the order of the queue.
  const api_client::JobPage& jobs() const { return jobs_; }
  const cli::TraceHistory& history() const { return history_; }
  const std::optional<Lost>& lost() const { return lost_; }
  Mark mark_of(std::uint32_t gpu, std::uint64_t tenant) const { return marks_.of(gpu, tenant); }
  // The job that the tenant belongs to. 0: none that is known.
  std::uint64_t job_of(std::uint64_t tenant) const;

  // The first event of the trace that has not been taken. 0: none has been.
  std::uint64_t next_event() const { return next_event_; }
  // Whether a job has changed since the last call.
  bool take_job_changes() { return std::exchange(jobs_have_changed_, false); }

 private:
  std::string runtime_dir_;
  std::optional<api_client::Snapshot> snapshot_;
  base::TimePoint snapshot_time_{};
  api_client::JobPage jobs_;
  static constexpr base::TimePoint kAllTimes{};
  cli::TraceHistory history_{kAllTimes};
  Marks marks_;
  std::map<std::uint64_t, std::uint64_t> job_of_;  // by tenant
  std::optional<Lost> lost_;
  std::uint64_t next_event_ = 0;
  bool jobs_have_changed_ = true;
};

}  // namespace gpumux::top
