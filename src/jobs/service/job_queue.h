// SPDX-License-Identifier: Apache-2.0
// The job queue of a daemon: the job core, the store and the runners joined (docs/jobs.md, Durability, has the rule).
//
// An event goes to the core. The records among its commands change rows of jobs. The queue hands these rows, as they
// are then, to the store as one part of a commit. When the commit has returned, the queue carries out the other
// commands, in their order. So batches of commands form a line, and each waits for its commit. If a commit fails, its
// submissions are taken back, and its jobs are not started. The rows of its other jobs are handed in again, as they are
// then, until they can be stored.
//
// Owned by the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "jobs/core/job_core.h"
#include "jobs/service/job_runs.h"
#include "jobs/service/node.h"
#include "jobs/service/queue_config.h"
#include "jobs/service/submission.h"
#include "jobs/store/commit_queue.h"
#include "jobs/store/job_store.h"
#include "os/file_descriptor.h"
#include "server/loop/loop_timer.h"
#include "server/loop/wait_histogram.h"
#include "server/loop/worker_pool.h"

namespace gpumux::jobs {

// How the store keeps a user's limit that is unlimited.
inline constexpr std::uint32_t kNoCount = UINT32_MAX;
inline constexpr std::int32_t kNoCap = INT32_MAX;

// The state directory of a daemon that is to have no queue.
inline constexpr std::string_view kNoStateDir = "none";

// A dependency counts this in max_bytes: about the bytes that it takes in the core's memory and in the store.
inline constexpr std::uint64_t kDependencyBytes = 64;

// The most jobs that change in one turn of the loop, which takes a millisecond, and in one commit on a full disk
// (store::kReserveBytes).
inline constexpr std::size_t kChangedAtOnce = 128;

// A program that uses a GPU and is of no job.
struct ForeignProgram {
  std::optional<std::uint32_t> uid;  // none: its user is not known
  std::string name;
  std::uint64_t bytes = 0;
};

class JobQueue {
 public:
  struct Options {
    std::string state_dir;    // the files that outlive everything; made if missing. kNoStateDir: no queue
    std::string runtime_dir;  // of the daemon's sockets
    bool is_private = false;
  };
  struct GpuOf {
    std::string uuid;  // drained ones are remembered by it
    std::uint64_t capacity = 0;
    bool is_served = false;
    std::vector<ForeignProgram> programs{};  // without a job, those that use most first
  };

  JobQueue(boost::asio::io_context& io, const base::Clock& clock);
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // Opens the store, and finds the earlier jobs again. Once, before the loop runs; takes as long as reading all jobs
  // that are not done. A daemon without a queue goes on without one: unavailable() says why. `node` outlives this.
  void open(const Options& options, std::vector<GpuOf> gpus, const settings::QueueSettings& config, Node& node);
  enum class State {
    kFailed,  // it is not open, or could not be opened
    kOff,     // kNoStateDir
    kOpen,
  };
  State state() const { return state_; }
  // Why it is not open; empty if it is.
  const std::string& unavailable() const { return unavailable_; }
  // For the terminals of interactive jobs; again if the runtime directory was emptied.
  base::Status make_runtime_folder() const;
  // Stores all that is not stored yet. Jobs go on.
  void close();

  void set_config(const settings::QueueSettings& config);
  const settings::QueueSettings& config() const { return config_; }
  const QueueSettings& core_settings() const { return core_settings_; }
  void set_served(base::GpuIndex gpu, bool is_served);
  // Memory there that belongs to no job that runs.
  void set_foreign_use(base::GpuIndex gpu, std::uint64_t bytes);
  // The programs that use it.
  void set_foreign_programs(base::GpuIndex gpu, std::vector<ForeignProgram> programs);
  // It is known what other programs use of the GPUs. No job starts before that: a daemon that has just started would
  // start it on a full GPU.
  void set_looked_at();
  bool is_looked_at() const { return is_looked_at_; }
  void set_sick(base::GpuIndex gpu, bool is_sick);
  void programs_changed();

  // ---- users' requests. Replies come once, from the loop, when their content is durable.

  struct Submitted {
    JobId id;
    std::uint32_t count = 1;
    bool was_known = false;                 // its token was: this is the earlier submission
    std::optional<std::int32_t> capped_at;  // its priority counts as this against others' jobs
  };
  void submit(std::shared_ptr<const Submission> submission, std::function<void(base::Result<Submitted>)> reply);

  struct Change {
    enum class Kind { kCancel, kHold, kRelease, kSuspend, kResume, kRunAgain, kSignal, kWishes } kind = Kind::kCancel;
    Wishes wishes = {};  // of kWishes
    int signal = 0;      // of kSignal
    bool by_admin = false;
  };
  struct Changed {
    std::vector<JobId> jobs;  // of which something is different now, in the order in which they were named
    std::map<JobId, base::Error> refused;
  };
  // Of those that are not done.
  void change(std::vector<JobId> jobs, const Change& change, std::function<void(base::Result<Changed>)> reply);

  // Calls back when the job is done (or has started, if that is enough), or after `patience`.
  void wait(JobId job, bool until_started, base::Duration patience, std::function<void()> callback);

  // Stores changes that belong to no job. `reply` may be empty.
  void keep(std::vector<store::Change> changes, std::function<void(base::Result<std::vector<store::Applied>>)> reply);

  void set_paused(bool is_paused, std::function<void(base::Status)> reply);
  void set_drained(base::GpuIndex gpu, bool is_drained, std::function<void(base::Status)> reply);
  void set_limits(std::uint32_t uid, std::optional<UserLimits> limits, std::function<void(base::Status)> reply);

  // ---- the present state

  // A job that is not done.
  struct Owner {
    std::uint32_t uid = 0;
    std::uint32_t array_index = 0;
    JobId array = kNoJob;
    std::uint64_t bytes = 0;  // of its document and dependencies
    store::WallTime submitted_at = 0;
    std::string name;
    store::Update row;              // as it is now; kDone: its end is being stored
    base::TimePoint state_since{};  // or since this daemon knows it
  };
  const Owner* find(JobId job) const;
  std::vector<JobId> unfinished(std::optional<std::uint32_t> uid) const;  // ascending
  std::vector<JobId> elements(JobId array) const;                         // that are not done
  std::optional<JobStanding> standing(JobId job) const { return core_.standing(job); }
  // The lease priority that is granted to the programs of a user's run (GPUMUX_RUN_ID). It is its job's capped
  // priority. It is 0 if the user's priority_cap is unlimited, or if the run is no job's.
  std::int32_t granted_priority(uid_t uid, const std::string& run) const;
  std::optional<JobRuns::View> view(JobId job) const;
  // Why it did not start, or could not be suspended, lately.
  std::string note(JobId job) const;
  const JobRuns* runs() const { return runs_.get(); }
  // For any thread; null without a queue.
  const std::shared_ptr<store::JobStore>& store() const { return store_; }
  // For work that may take long and is about jobs.
  boost::asio::thread_pool& pool() { return pool_; }
  bool is_paused() const { return is_paused_; }
  const std::vector<GpuOf>& gpus() const { return gpus_; }
  const std::map<std::uint32_t, UserLimits>& limits() const { return limits_; }
  // The user's own, or those of all users.
  const UserLimits& limits_of(std::uint32_t uid) const;
  const JobCore& core() const { return core_; }
  base::TimePoint now() const { return clock_.now(); }
  std::size_t size() const { return owners_.size(); }
  // Since the daemon's start: how long jobs had waited when they began for the first time, and how jobs ended.
  const server::WaitHistogram& waits() const { return waits_; }
  const std::map<Outcome, std::uint64_t>& outcomes() const { return outcomes_; }
  // The job that a user's run (GPUMUX_RUN_ID) is of.
  std::optional<JobId> job_of(uid_t uid, const std::string& run) const;

 private:
  // A job's row on its way to the store.
  struct Write {
    bool is_insert = false;                     // the job is new with it
    bool is_end = false;                        // the job is done
    std::vector<std::uint32_t> ended_attempts;  // their runners are forgotten when the row is stored
  };
  struct Batch {
    std::vector<Command> commands;
    std::map<JobId, Write> rows;
    std::function<void(base::Status)> after;  // told when it is stored, or is not
    std::optional<base::Status> stored;       // none: not known yet
  };
  struct EndDetails {
    std::uint32_t attempt = 0;
    JobRuns::End end;
  };
  struct Changing;
  struct Waiter {
    bool until_started = false;
    std::shared_ptr<boost::asio::steady_timer> timer;
  };
  using Token = std::pair<std::uint32_t, std::string>;

  // Opening (job_queue_open.cc).
  base::Status open_or_fail(const Options& options);
  base::Status make_folders(const Options& options);
  base::Result<std::string> store_id();
  base::Status restore_jobs();
  base::Status restore_values();
  void update_held();
  void restore_job(const store::StoredJob& job, std::vector<Event>& later);

  // Batches on their way to the store and back (job_queue_commits.cc).
  void hand_over(std::vector<Command> commands, std::vector<store::Insert> inserts,
                 std::function<void(base::Status)> after);
  void hand_over_unsaved();
  void hand_in(const std::shared_ptr<Batch>& batch, std::vector<store::Change> changes);
  void change_row(const Command& command, Batch& batch);
  void absorb_unsaved(JobId job, Write& write);
  void stored(const std::shared_ptr<Batch>& batch, base::Status status);
  void finish_batches();
  void finish(const Batch& batch);
  void finish_row(JobId job, Write write, bool is_stored);

  void apply(const Event& event);
  void apply_now(const Event& event, std::vector<Command>& commands);
  bool is_started(JobId job) const;
  void carry_out(const Command& command, const base::Status& stored);
  void tell_state(JobId job, JobState state);
  void put_value(std::string key, std::string value, std::function<void(base::Status)> reply);
  void change_some(std::shared_ptr<Changing> work);
  base::Result<bool> change_now(JobId job, const Change& change, std::vector<Command>& commands);
  base::Status signal(JobId job, int number) const;
  base::Status ask(JobId job, const Wishes& wishes, bool by_admin, std::vector<Command>& commands);
  base::Status resolve_dependencies(JobSpec& spec, bool by_admin, bool& is_too_early) const;
  base::Status check_after(const Dependency& dependency, std::optional<std::uint32_t> owner,
                           std::uint32_t submitter) const;
  base::Status check_bytes(std::uint32_t uid, std::uint64_t bytes) const;
  void own(JobId job, Owner owner);
  void disown(JobId job);
  base::Result<std::string> log_of(const Submission& submission, const JobSpec& spec) const;
  void submitted(const Token& token, const base::Result<Submitted>& result);
  void started(JobId job, store::WallTime at);
  void ended(JobId job, std::uint32_t attempt, const JobRuns::End& end);
  void forget_job(JobId job);
  void wake(JobId job, bool is_done);
  void keep_house();
  void save_usage();
  void prune();
  void prune_users();

  boost::asio::io_context& io_;
  const base::Clock& clock_;
  settings::QueueSettings config_;
  QueueSettings core_settings_;  // the core's form of them
  std::vector<GpuOf> gpus_;
  State state_ = State::kFailed;
  std::string unavailable_ = "the job queue is not open";
  Options options_;
  os::FileDescriptor lock_;  // of the state directory
  std::shared_ptr<store::JobStore> store_;
  std::unique_ptr<store::CommitQueue> commits_;
  JobCore core_;
  server::WorkerPool pool_{2};
  Node* node_ = nullptr;
  std::unique_ptr<JobRuns> runs_;

  JobId next_id_{1};
  server::WaitHistogram waits_;
  std::map<Outcome, std::uint64_t> outcomes_;
  std::map<JobId, Owner> owners_;
  std::map<std::uint32_t, std::uint64_t> document_bytes_;  // of each user's jobs in owners_
  std::map<JobId, std::string> notes_;
  std::map<JobId, EndDetails> ends_;                                                   // that the core is being told
  std::map<Token, std::vector<std::function<void(base::Result<Submitted>)>>> tokens_;  // that are being stored
  std::deque<std::shared_ptr<Batch>> batches_;
  std::map<JobId, Write> unsaved_;  // rows that could not be stored, and are not on their way again
  std::multimap<JobId, Waiter> waiters_;
  std::map<std::uint32_t, UserLimits> limits_;
  std::map<std::uint32_t, std::uint64_t> saved_usage_;
  bool is_paused_ = false;     // by an administrator
  bool is_looked_at_ = false;  // set_looked_at
  bool is_settling_ = false;

  server::LoopTimer core_timer_;
  server::LoopTimer retry_timer_;  // for changes that could not be stored
  server::LoopTimer housekeeping_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// CLOCK_REALTIME, as the store keeps times.
store::WallTime wall_now();

// The moment of the core's clock that is at this time of the day; that of the beginning for 0.
base::TimePoint moment_of(store::WallTime wall, base::TimePoint now);

// All elements of an array, done or not.
store::Query query_of_array(JobId array);

}  // namespace gpumux::jobs
