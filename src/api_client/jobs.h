// SPDX-License-Identifier: Apache-2.0
// Jobs and their queue as the daemon's HTTP API shows them (docs/api.md, "Jobs").
//
// Strings that come from users (names, arguments, paths) are bytes. Bytes that are no UTF-8 travel as base64, and come
// out here as they were.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

// The daemon takes no larger body.
inline constexpr std::size_t kMaxSubmissionBytes = 16 << 20;

// The longest that one wait may take; a caller that waits longer asks again.
inline constexpr base::Duration kLongestJobWait = std::chrono::seconds(30);

// The daemon lists no more jobs in one answer.
inline constexpr std::uint64_t kMaxPageJobs = 1'000;

struct JobDependency {
  std::uint64_t job = 0;
  std::string need;  // "ok" or "any"
};

struct JobWindow {
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
};

// The body of POST /v1/jobs. The daemon decides the fields that are not set.
struct Submission {
  std::vector<std::string> arguments;
  std::string directory;
  std::vector<std::string> environment;  // NAME=value
  std::optional<std::uint64_t> gpus;
  std::vector<std::uint32_t> gpu_ids;
  std::optional<std::uint64_t> memory_bytes;
  std::optional<base::Duration> time_limit;
  std::string on_time_limit;  // "suspend" or "cancel"
  std::optional<std::int32_t> priority;
  std::string name;
  std::string setup_command;
  std::string output;
  std::string error_output;
  std::optional<std::int64_t> begin_unix_ns;
  bool append = false;
  bool exclusive = false;
  std::vector<JobDependency> after;
  std::string array;
  bool interactive = false;
  std::optional<JobWindow> window;
  bool requeue = false;
  bool held = false;
  std::uint32_t umask = 022;
  std::int32_t nice = 0;
  std::string token;
};

// kInvalid: longer than the daemon takes, with what makes it so long.
base::Result<std::string> submission_body(const Submission& submission);

// The body of PATCH /v1/jobs/ID: the wishes of `submission`, and nothing of its command.
std::string request_body(const Submission& submission);

struct Submitted {
  std::uint64_t id = 0;
  std::uint64_t count = 1;                           // of an array's elements
  std::string array = {};                            // as it was submitted: "0-199%2"
  std::string text;                                  // the daemon's answer
  std::optional<std::int32_t> priority_capped = {};  // the priority counts as this against others' jobs
};

enum class JobsState { kUnfinished, kDone, kAll };

struct JobQuery {
  JobsState state = JobsState::kUnfinished;
  std::string user = {};                    // empty: all users'
  std::optional<std::uint64_t> array = {};  // only elements of this one
  bool latest_end_first = false;            // of kDone; otherwise in order of ids
  std::int64_t ended_since_unix_ns = 0;     // of kDone: those that have ended since then
  std::string outcome = {};                 // of kDone: "failed,timed out"; empty: any
  std::optional<std::uint64_t> limit = {};
  std::optional<std::uint64_t> beyond = {};       // the last job of the page before
  std::optional<std::int64_t> beyond_ended = {};  // and its end, if the latest end comes first
};

struct Job {
  std::uint64_t id = 0;
  std::optional<std::uint64_t> array;
  std::optional<std::uint64_t> array_index;
  std::optional<std::uint64_t> array_limit;  // elements that may run at once
  std::string name;
  std::uint32_t uid = 0;
  std::string user;
  std::string state;
  std::int64_t state_since_unix_ns = 0;  // 0: it is done
  std::string outcome;                   // empty until it is done
  std::optional<std::int32_t> exit_status;
  std::string reason;  // why it waits, in a word
  std::string why;     // and in words
  std::optional<std::uint64_t> place;
  std::optional<base::Duration> starts_in;  // if those that run and go first use their whole time limits
  std::int32_t priority = 0;
  std::optional<std::int32_t> priority_capped;  // as it counts against others' jobs
  std::vector<std::uint32_t> gpus;
  std::uint64_t gpus_wanted = 0;
  std::vector<std::uint32_t> gpu_ids;
  std::uint64_t memory_bytes = 0;
  bool exclusive = false;
  std::optional<base::Duration> time_limit;
  std::string on_time_limit;
  std::optional<base::Duration> limit_in;
  bool requeue = false;
  std::uint64_t attempt = 0;
  bool interactive = false;
  std::int64_t submitted_unix_ns = 0;
  std::int64_t begin_unix_ns = 0;  // it does not start before; 0: at once
  std::int64_t started_unix_ns = 0;
  std::int64_t ended_unix_ns = 0;
  std::string note;
  std::string command;                  // as a person types it; long ones are cut. Only for a viewer that may change it
  double gpu_seconds = 0;               // that its programs have had
  std::uint64_t peak_memory_bytes = 0;  // of one GPU
  // Only of one job, and for a viewer that may change it.
  std::vector<std::string> arguments;
  std::string directory;
  std::string setup_command;
  std::string error_output;  // the pattern of the file for its errors
  std::string log;
  std::string attach;
  std::int64_t pid = 0;
  std::vector<JobDependency> after;
  std::vector<std::string> environment;

  bool is_done() const { return state == "done"; }
  bool waits() const { return state == "queued" || state == "held"; }
};

struct JobPage {
  std::vector<Job> jobs;
  bool more = false;
};

enum class JobMoment { kStarted, kDone };

struct JobChange {
  std::uint64_t id = 0;
  bool changed = false;
  std::optional<base::Error> error;
};

// Of a user, or the default. Absent: no limit.
struct UserLimits {
  std::optional<std::uint64_t> running;
  std::optional<std::uint64_t> queued;
  std::optional<std::uint64_t> gpus;
  std::optional<std::int64_t> priority_cap;
};

struct QueueSettings {
  std::string order;
  base::Duration half_life{};
  double oversubscribe = 1;
  std::uint64_t default_memory_bytes = 0;
  base::Duration max_job_time{};  // 0: none
  bool preempt = false;
  std::string privacy;
  UserLimits limits;
};

// A job that has a GPU.
struct QueueGpuJob {
  std::uint64_t id = 0;
  std::string user;
  std::string name;  // empty: the viewer may not see it
};

struct QueueGpu {
  std::uint32_t index = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t promised_bytes = 0;
  std::uint64_t outside_jobs_bytes = 0;
  bool drained = false;
  bool sick = false;
  bool present = true;
  std::vector<QueueGpuJob> jobs;
};

struct Reservation {
  std::uint64_t job = 0;
  std::vector<std::uint32_t> gpus;
  std::optional<base::Duration> starts_in;
};

struct QueueUser {
  std::uint32_t uid = 0;
  std::string user;
  std::uint64_t running = 0;
  std::uint64_t queued = 0;
  std::uint64_t gpus = 0;
  base::Duration used_gpu{};
  std::optional<UserLimits> limits;  // of its own; none: those of all users
};

// GET /v1/queue
struct QueueState {
  QueueSettings settings;
  bool paused = false;
  std::string state;                          // "open", "no_room", "off", "failed"
  std::string unavailable;                    // why it is not open
  std::map<std::string, std::uint64_t> jobs;  // how many in each state
  std::vector<QueueGpu> gpus;
  std::optional<Reservation> reserved;
  std::vector<QueueUser> users;
};

base::Result<Submitted> parse_submitted(std::string_view json);
base::Result<Job> parse_job(std::string_view json);
base::Result<JobPage> parse_job_page(std::string_view json);
base::Result<std::vector<JobChange>> parse_job_changes(std::string_view json);
base::Result<QueueState> parse_queue(std::string_view json);

// kInvalid unless it is "17" or "17_3".
base::Status check_job_id(std::string_view id);
base::Status check_job_ids(const std::vector<std::string>& ids);

// Characters that may stand in a URL stay as they are; all others become %XX.
std::string url_encoded(std::string_view text);

}  // namespace gpumux::api_client
