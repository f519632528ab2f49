// SPDX-License-Identifier: Apache-2.0
// Jobs that have been started and are not done: their runners, from the start to the end that is told.
//
// JobRuns carries out the job core's commands, and tells it the results as the core's events. A runner that cannot be
// reached is looked for in its directory (runners/runners.h), so nothing here has to survive a restart.
//
// To suspend a job (docs/jobs.md), its programs are held off the GPUs until all of their memory that can be elsewhere
// is. Then all of its processes are frozen. Resuming is the same backwards.
//
//             Suspend            memory has left        frozen
//   kNone  ------------> kLeaves ---------------> kFreezes -------> kFrozen
//     ^                     | stuck, or too long     | cannot          | Resume
//     +---------------------+------------------------+--- kThaws <-----+
//
// Owned by the loop's thread. Files and processes are dealt with on `pool`.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "jobs/core/events.h"
#include "jobs/service/launch.h"
#include "jobs/service/node.h"
#include "jobs/store/job_store.h"
#include "runners/runner_link.h"
#include "runners/runners.h"
#include "server/loop/loop_timer.h"

namespace gpumux::jobs {

class JobRuns {
 public:
  struct End {
    jobs::End how = jobs::End::kFailed;
    int exit_status = store::kNoExitStatus;
    store::WallTime ended_at = 0;
    std::string note;  // why, for people; empty: nothing remarkable
  };
  struct Callbacks {
    // StartConfirmed, StartFailed, Suspended, SuspendRefused, Resumed.
    std::function<void(const Event&)> event;
    // `started_at`: when its main process was.
    std::function<void(JobId, store::WallTime started_at)> started;
    // Why something did not work, for people.
    std::function<void(JobId, std::string note)> noted;
    // Once for each that was started, restored ones too.
    std::function<void(JobId, std::uint32_t attempt, const End&)> ended;
  };
  // For people.
  struct View {
    std::uint32_t main_pid = 0;
    std::string log_path;
    std::string attach_path;  // empty: not interactive, or not there yet
  };

  // `store` is read on `pool`. All references outlive this object, and the pool is joined before it goes.
  JobRuns(boost::asio::io_context& io, boost::asio::thread_pool& pool, const base::Clock& clock,
          const store::JobStore& store, runners::RunnerPlaces places, LaunchSettings launch, Node& node,
          Callbacks callbacks);
  ~JobRuns();
  JobRuns(const JobRuns&) = delete;
  JobRuns& operator=(const JobRuns&) = delete;

  // `default_memory`: the quota of a job that does not say how much memory it needs; 0: none.
  void start(const Start& command, std::uint32_t uid, std::uint64_t default_memory);
  // Refused unless its memory has left the GPUs by then.
  void suspend(const Suspend& command, base::Duration patience);
  void resume(const Resume& command);
  // Of its programs, on the GPU. Nothing if it has none.
  void set_priority(JobId job, std::int32_t priority);
  void cancel(JobId job, std::uint32_t attempt, wire::EndReason reason, base::Duration grace);
  // To all of its processes. False: its runner cannot be told at this moment.
  bool signal(JobId job, int number);
  // Its end is stored: its directory is not needed any more.
  void forget(JobId job, std::uint32_t attempt);

  // After a restart: the fate of an attempt that was started. Waits for its runner's word, some milliseconds; for
  // before the loop runs. Unless it is kNone, it is a run like those that were started here, and `ended` comes for one
  // that is done.
  enum class Found { kNone /* nothing of it ran, nor will */, kStarting, kRunning, kSuspended, kEnded };
  struct Restored {
    Found found = Found::kNone;
    base::Duration ran{};  // in all, suspended time not counted
    bool was_suspended = false;
    store::WallTime started_at = 0;  // when its main process was; 0: not known
  };
  Restored restore(JobId job, std::uint32_t attempt, std::uint32_t uid);
  // Directories of attempts that are no longer wanted, after all were restored.
  void sweep(const std::function<bool(JobId, std::uint32_t attempt)>& is_wanted);

  // Something of a suspended run has changed.
  void programs_changed();

  std::optional<View> view(JobId job) const;
  std::size_t size() const { return runs_.size(); }
  const LaunchSettings& launch() const { return launch_; }
  // Every run there is: whose, and its GPUMUX_RUN_ID.
  void for_each_run(const std::function<void(JobId job, uid_t uid, const std::string& run)>& visit) const;

 private:
  enum class Step { kNone, kLeaves, kFreezes, kFrozen, kThaws };
  struct Run;
  struct Launched;
  using Runs = std::map<JobId, std::unique_ptr<Run>>;

  Run* find(JobId job, std::uint32_t attempt) const;
  Run& add(JobId job, std::uint32_t attempt, std::uint32_t uid);
  Launched launch_on_pool(const Start& command, std::uint64_t default_memory) const;
  void launched(JobId job, std::uint32_t attempt, Launched result);
  void connect(Run& run, os::FileDescriptor connection);
  void on_message(Run& run, const wire::RunnerState& state);
  void on_message(Run& run, const wire::RunnerEnded& end);
  void on_message(Run& run, const wire::RunnerRefused& refused);
  void take_step(Run& run, const wire::RunnerState& state);
  void not_started(JobId job, std::uint32_t attempt, const std::string& why);
  // `work` on the pool, then `then` on the loop, if this is still there.
  template <class Work, class Then>
  void on_pool(Work work, Then then);
  // Calls on the loop after the pause, if this is still there.
  void later(base::Duration pause, std::function<void()> act);
  void look_soon(Run& run, base::Duration pause);
  bool await_first_word(int connection);
  void looked(JobId job, std::uint32_t attempt, base::Result<runners::FoundRunner> found,
              base::Result<os::FileDescriptor> connection);
  void bury(JobId job, std::uint32_t attempt);
  void follow_memory(Run& run);
  void refuse_suspension(Run& run, std::string why);
  void finish(Run& run, End end);
  std::optional<base::TimePoint> next_memory_look() const;
  void tell_again(Run& run);
  void forget_later(std::string directory, int tries);

  boost::asio::io_context& io_;
  boost::asio::thread_pool& pool_;
  const base::Clock& clock_;
  const store::JobStore& store_;
  const runners::RunnerPlaces places_;
  const LaunchSettings launch_;
  Node& node_;
  const Callbacks callbacks_;
  server::LoopTimer memory_timer_;  // for jobs whose memory leaves
  Runs runs_;
  base::Duration awaited_{};  // for runners' first words after a restart
  // Of attempts that have ended, until that is stored.
  std::map<std::pair<JobId, std::uint32_t>, std::unique_ptr<runners::RunnerLink>> told_;
  // Work that is under way on the pool may come back after this object has gone.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpumux::jobs
