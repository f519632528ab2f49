// SPDX-License-Identifier: Apache-2.0
// The job queue's start: its folders, its store, and everything that was there when the last daemon went.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/units.h"
#include "jobs/service/job_queue.h"
#include "jobs/store/sqlite_store.h"
#include "os/installation.h"
#include "os/preload_list.h"
#include "os/random.h"
#include "server/loop/log.h"

namespace gpumux::jobs {
namespace {

using base::Code;
using base::Duration;
using base::Result;
using base::Status;

constexpr std::string_view kDrained = "drained/";
constexpr std::string_view kLimits = "limits/";

// As `mkdir -p`, the last folder with this mode.
Status make_folder(const std::string& path, mode_t mode) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string parent = path.substr(0, slash);
    if (::mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST)
      return base::fail_errno(errno, "cannot create " + parent);
  }
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) return base::fail_errno(errno, "cannot create " + path);
  return {};
}

// A folder that is ours alone, or that others may pass through.
Status own_folder(const std::string& path, mode_t mode) {
  GPUMUX_TRY(make_folder(path, mode));
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return base::fail_errno(errno, "cannot look at " + path);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid()) {
    return base::fail(Code::kDenied, path + " is not a directory of user " + std::to_string(::geteuid()));
  }
  if ((status.st_mode & 07777) != mode && ::chmod(path.c_str(), mode) != 0)
    return base::fail_errno(errno, "cannot set the mode of " + path);
  return {};
}

// The rest of GPU time after so long (docs/jobs.md: GPU time that lies a half-life back counts half).
std::uint64_t decayed(std::uint64_t used, Duration passed, Duration half_life) {
  if (passed <= Duration(0)) return used;
  const double halves = static_cast<double>(passed.count()) / static_cast<double>(half_life.count());
  return static_cast<std::uint64_t>(static_cast<double>(used) * std::exp2(-halves));
}

}  // namespace

void JobQueue::open(const Options& options, std::vector<GpuOf> gpus, const settings::QueueSettings& config,
                    Node& node) {
  gpus_ = std::move(gpus);
  config_ = config;
  core_settings_ = jobs::core_settings(config);
  node_ = &node;
  const Status opened = open_or_fail(options);
  unavailable_ = opened ? "" : "this daemon has no job queue: " + opened.error().message();
  if (!opened) {
    state_ = options.state_dir == kNoStateDir ? State::kOff : State::kFailed;
    // A place that is not known or not wanted is no failure.
    const server::LogLevel level = state_ == State::kOff       ? server::LogLevel::kInfo
                                   : options.state_dir.empty() ? server::LogLevel::kWarning
                                                               : server::LogLevel::kError;
    server::log(level, "there is no job queue", {{"why", opened.error().message()}});
    return;
  }
  housekeeping_.update();
}

Status JobQueue::make_folders(const Options& options) {
  GPUMUX_TRY(own_folder(options.state_dir, 0700));
  const std::string path = options.state_dir + "/lock";
  lock_ = os::FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_) return base::fail_errno(errno, "cannot open " + path);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return base::fail(Code::kExists,
                      "another gpumuxd keeps its jobs in " + options.state_dir + " (--state-dir names another place)");
  }
  GPUMUX_TRY(own_folder(options.state_dir + "/jobs", 0700));
  return make_runtime_folder();
}

Status JobQueue::make_runtime_folder() const {
  if (options_.runtime_dir.empty()) return {};  // there is no queue
  // Users' programs connect to sockets in it that belong to them. A user that may not list it cannot see the owners of
  // the others.
  return own_folder(options_.runtime_dir + "/attach", options_.is_private ? 0700 : 0711);
}

Status JobQueue::open_or_fail(const Options& options) {
  if (options.state_dir.empty())
    return base::fail(Code::kNotFound,
                      "there is no place for it: neither HOME nor XDG_STATE_HOME says where (--state-dir)");
  if (options.state_dir == kNoStateDir) return base::fail(Code::kUnsupported, "it is off (--state-dir none)");
  options_ = options;
  GPUMUX_TRY(make_folders(options));
  const auto executables = os::executable_dir();
  if (!executables) return tl::unexpected(executables.error());
  auto places = runners::runner_places(options.state_dir + "/jobs", options.is_private);
  if (!places) return tl::unexpected(places.error());
  std::optional<store::Damage> damage;
  auto store = store::open_sqlite_store({.path = options.state_dir + "/jobs.db", .vfs = ""}, &damage);
  if (damage) {
    server::log_error("the job queue's file was damaged: it was put aside, and a new one has all that could be read",
                      {{"found", damage->why},
                       {"lost", damage->lost},
                       {"jobs_kept", damage->jobs_kept},
                       {"damaged_file", damage->moved_to}});
  }
  if (!store) return tl::unexpected(store.error());
  store_ = std::move(*store);
  const auto next = store_->next_id();
  if (!next) return tl::unexpected(next.error());
  next_id_ = *next;
  const auto id = store_id();
  if (!id) return tl::unexpected(id.error());
  commits_ = std::make_unique<store::CommitQueue>(*store_);

  LaunchSettings launch{.runtime_dir = options.runtime_dir,
                        .library = "",
                        .attach_dir = options.runtime_dir + "/attach",
                        .store_id = *id};
  if (os::is_preloaded_everywhere()) {
    server::log_info("jobs have the library from /etc/ld.so.preload", {});
  } else if (const auto library = os::find_library(*executables)) {
    launch.library = *library;
  } else {
    server::log_warning("jobs run without gpumux", {{"why", library.error().message()}});
  }
  runs_ = std::make_unique<JobRuns>(
      io_, pool_, clock_, *store_, std::move(*places), std::move(launch), *node_,
      JobRuns::Callbacks{
          .event = [this](const Event& event) { apply(event); },
          .started = [this](JobId job, store::WallTime at) { started(job, at); },
          .noted = [this](JobId job, std::string note) { notes_[job] = std::move(note); },
          .ended = [this](JobId job, std::uint32_t attempt, const JobRuns::End& end) { ended(job, attempt, end); }});
  state_ = State::kOpen;

  apply(SettingsChanged{core_settings_});
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    const base::GpuIndex gpu{static_cast<std::uint32_t>(i)};
    apply(GpuAdded{gpu, gpus_[i].capacity});
    if (!gpus_[i].is_served) apply(GpuRemoved{gpu});
  }
  GPUMUX_TRY(restore_values());
  GPUMUX_TRY(restore_jobs());
  // Nothing starts yet: set_looked_at.
  return {};
}

// Other daemons number their jobs from 1, too: a job's processes are told apart by this.
Result<std::string> JobQueue::store_id() {
  const auto values = store_->values();
  if (!values) return tl::unexpected(values.error());
  if (const auto known = values->find("store_id"); known != values->end()) return known->second;
  auto id = os::random_hex(4);
  if (!id) return id;
  const auto stored = store_->commit({store::PutValue{"store_id", *id}});
  if (!stored) return tl::unexpected(stored.error());
  return id;
}

Status JobQueue::restore_values() {
  const auto values = store_->values();
  if (!values) return tl::unexpected(values.error());
  for (const auto& [key, value] : *values) {
    if (key == "paused") is_paused_ = true;
    if (key.starts_with(kDrained)) {
      for (std::size_t i = 0; i < gpus_.size(); ++i) {
        if (gpus_[i].uuid == key.substr(kDrained.size()))
          apply(GpuDrained{base::GpuIndex{static_cast<std::uint32_t>(i)}});
      }
    }
    if (key.starts_with(kLimits)) {
      const auto uid = base::parse_integer(key.substr(kLimits.size()), 0, UINT32_MAX);
      const auto json = nlohmann::json::parse(value, nullptr, false);
      if (!uid || !json.is_array() || json.size() != 4) continue;
      if (!std::all_of(json.begin(), json.end(), [](const auto& one) { return one.is_number_integer(); })) continue;
      const auto count = [&](std::size_t at) {
        const auto number = json[at].get<std::uint32_t>();
        return number == kNoCount ? settings::Limit<std::uint32_t>() : number;
      };
      const auto cap = json[3].get<std::int32_t>();
      const UserLimits limits{count(0), count(1), count(2), cap == kNoCap ? settings::Limit<std::int32_t>() : cap};
      limits_[static_cast<std::uint32_t>(*uid)] = limits;
      apply(UserLimitsChanged{static_cast<std::uint32_t>(*uid), limits});
    }
  }
  const auto usage = store_->usage();
  if (!usage) return tl::unexpected(usage.error());
  for (const store::Usage& used : *usage) {
    apply(UsageRestored{used.uid, decayed(used.gpu_microseconds, Duration(wall_now() - used.at), config_.half_life)});
  }
  return {};
}

Status JobQueue::restore_jobs() {
  const auto jobs = store_->unfinished();
  if (!jobs) return tl::unexpected(jobs.error());
  std::vector<Event> later;
  for (const store::StoredJob& job : *jobs) restore_job(job, later);
  // Before what follows may start another attempt.
  runs_->sweep([this](JobId job, std::uint32_t attempt) {
    const auto standing = core_.standing(job);
    return standing && standing->attempt == attempt && has_started(standing->state);
  });
  for (const Event& event : later) apply(event);
  if (!jobs->empty()) server::log_info("jobs are back", {{"jobs", jobs->size()}, {"running", runs_->size()}});
  return {};
}

void JobQueue::restore_job(const store::StoredJob& job, std::vector<Event>& later) {
  const JobId id = job.spec.id;
  const std::uint32_t attempt = job.core.attempt;
  own(id, {.uid = job.spec.uid,
           .array_index = job.spec.array_index,
           .array = job.spec.array,
           .bytes = job.document_bytes + job.spec.after.size() * kDependencyBytes,
           .submitted_at = job.submitted_at,
           .name = job.name,
           .row = {job, job.spec.request()}});
  Restored event{.spec = job.spec,
                 .state = job.core.state,
                 .attempt = attempt,
                 .gpus = job.core.gpus,
                 .ran = job.core.ran,
                 .outcome = job.core.outcome};
  event.spec.begin = moment_of(job.begin_at, clock_.now());
  if (!has_started(event.state)) return apply(event);
  const JobRuns::Restored found = runs_->restore(id, attempt, job.spec.uid);
  switch (found.found) {
    case JobRuns::Found::kNone:
      if (event.state == JobState::kStarting) {
        // As if it had not been told to start: it has kept its place, and no pause is due.
        event.state = JobState::kQueued;
        event.gpus = {};
      } else {
        // It ran, and there is no trace of it.
        ends_[id] = {attempt, {.how = jobs::End::kLost, .note = "nothing is left of its runner"}};
        later.push_back(Ended{id, attempt, jobs::End::kLost});
      }
      break;
    case JobRuns::Found::kStarting: break;
    case JobRuns::Found::kEnded:  // told in a moment
      // A file system's clock is some milliseconds behind.
      if (found.started_at != 0) started(id, std::max(found.started_at, job.submitted_at));
      break;
    case JobRuns::Found::kRunning:
      if (event.state == JobState::kStarting) {
        started(id, found.started_at);
        later.push_back(StartConfirmed{id, attempt});
      }
      if (event.state == JobState::kSuspended || event.state == JobState::kSuspending ||
          event.state == JobState::kResuming)
        event.state = JobState::kRunning;
      if (!found.was_suspended && found.started_at != 0) event.ran = found.ran;
      break;
    case JobRuns::Found::kSuspended:
      if (event.state != JobState::kEnding) event.state = JobState::kSuspended;
      break;
  }
  Record& now = owners_.at(id).row.core;
  now.state = event.state;
  now.gpus = event.gpus;
  now.ran = event.ran;
  apply(event);
  if (event.state != JobState::kEnding || found.found == JobRuns::Found::kNone) return;
  const bool is_limit = event.outcome == Outcome::kTimedOut;
  runs_->cancel(id, attempt, is_limit ? wire::EndReason::kTimeLimit : wire::EndReason::kCancelled,
                config_.cancel_grace);
}

}  // namespace gpumux::jobs
