// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_runs.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "server/loop/log.h"
#include "server/loop/pool_work.h"

namespace gpumux::jobs {
namespace {

namespace asio = boost::asio;
using base::Code;
using base::Duration;
using base::Result;
using namespace std::chrono_literals;

// A runner that has just claimed does not listen yet; one that ends still holds its claim for a moment.
constexpr Duration kLookAgain = 20ms;
// Processes that a lost job has left are gone at the second look, or hang in a driver for as long as that takes.
constexpr Duration kSlowestLook = 1s;
// The memory of a suspended job is looked at again even when no tenant has reported a change.
constexpr Duration kMemoryLook = 200ms;
// After a restart, for the first words of all runners together. They speak at once; a machine that has just started is
// slow. The daemon serves no program meanwhile.
constexpr Duration kFirstWordPatience = 2s;
// A guess: how long the daemon waits for each one after that. A runner that is not stopped speaks within milliseconds.
constexpr Duration kLeastFirstWordPatience = 100ms;
// Of kLookAgain: for two seconds. A runner that lives on after its end is known hangs, so a person is told of its
// directory. The next start of the daemon removes that.
constexpr int kForgetTries = 100;

constexpr char kKilledForMemory[] = "killed: out of memory (host)";

std::string words_of(const wire::RunnerEnd& end) {
  const std::string said(wire::text_of(end.text));
  switch (end.how) {
    case wire::EndHow::kExited: return said;
    case wire::EndHow::kSignaled: {
      const char* name = ::sigabbrev_np(static_cast<int>(end.code));
      std::string text =
          "ended by signal " + std::to_string(end.code) + (name == nullptr ? "" : std::string(" (SIG") + name + ")");
      if ((end.flags & wire::kOutOfMemory) != 0) return kKilledForMemory;
      if ((end.flags & wire::kDumpedCore) != 0) text += ", core dumped";
      return said.empty() ? text : text + "; " + said;
    }
    case wire::EndHow::kNotStarted: return said.empty() ? "its command could not be started" : said;
    case wire::EndHow::kSetupFailed:
      return "its set-up command failed with status " + std::to_string(end.code) + (said.empty() ? "" : ": " + said);
  }
  return said;
}

std::string ended_text(const wire::RunnerEnd& end) {
  const std::string how = words_of(end);
  std::string memory;
  if ((end.flags & wire::kOutOfMemory) != 0) memory = kKilledForMemory;
  if ((end.flags & wire::kPerhapsOutOfMemory) != 0)
    memory = "perhaps out of memory (host): the kernel has killed a process for that while the job ran";
  if (memory.empty() || how == memory) return how;
  return how.empty() ? memory : memory + "; " + how;
}

JobRuns::End end_of(const wire::RunnerEnd& end) {
  JobRuns::End result;
  const auto code = static_cast<int>(end.code);
  result.exit_status = end.how == wire::EndHow::kSignaled ? 128 + code : code;
  result.how = end.how == wire::EndHow::kExited && code == 0 ? jobs::End::kOk : jobs::End::kFailed;
  result.ended_at = static_cast<store::WallTime>(end.ended_wall_ns);
  result.note = ended_text(end);
  if (end.reason == wire::EndReason::kShutdown) {
    // However the job ended after that: it was not done.
    result.how = jobs::End::kLost;
    result.note = "its runner was told to stop, with the machine or its service" +
                  (result.note.empty() ? std::string() : ": " + result.note);
  }
  return result;
}

// Makes sure that no runner ever begins there, and removes the directory. False: one has begun, or the daemon could not
// write that none may.
bool give_up(const std::string& directory) {
  const auto is_abandoned = [&] {
    const auto now = runners::look_at_runner(directory);
    return now && now->standing == runners::RunnerStanding::kAbandoned;
  };
  if (!runners::abandon_runner(directory) && !is_abandoned()) return false;
  static_cast<void>(runners::forget_runner(directory));
  return true;
}

}  // namespace

struct JobRuns::Run {
  JobId job;
  std::uint32_t attempt = 0;
  std::uint32_t uid = 0;
  std::string directory;
  std::string run;  // GPUMUX_RUN_ID
  View view;
  std::unique_ptr<runners::RunnerLink> link;
  std::optional<wire::RunnerState> state;  // the last one
  bool confirmed = false;                  // StartConfirmed was told
  bool looking = false;
  Duration bury_again = kLookAgain;
  std::optional<std::pair<wire::EndReason, Duration>> termination;  // asked for

  Step step = Step::kNone;
  std::uint64_t sequence = 0;  // of the last Suspend or Resume to the runner
  base::TimePoint step_ends{};
};

struct JobRuns::Launched {
  Result<os::FileDescriptor> connection = base::fail(Code::kInternal, "");
  bool is_jobs_fault = false;
  View view;
};

JobRuns::JobRuns(asio::io_context& io, asio::thread_pool& pool, const base::Clock& clock, const store::JobStore& store,
                 runners::RunnerPlaces places, LaunchSettings launch, Node& node, Callbacks callbacks)
    : io_(io),
      pool_(pool),
      clock_(clock),
      store_(store),
      places_(std::move(places)),
      launch_(std::move(launch)),
      node_(node),
      callbacks_(std::move(callbacks)),
      memory_timer_(
          io, [this] { return next_memory_look(); }, [this](base::TimePoint) { programs_changed(); }) {}

JobRuns::~JobRuns() { *alive_ = false; }

JobRuns::Run* JobRuns::find(JobId job, std::uint32_t attempt) const {
  const auto found = runs_.find(job);
  return found != runs_.end() && found->second->attempt == attempt ? found->second.get() : nullptr;
}

JobRuns::Run& JobRuns::add(JobId job, std::uint32_t attempt, std::uint32_t uid) {
  auto run = std::make_unique<Run>();
  run->job = job;
  run->attempt = attempt;
  run->uid = uid;
  run->directory = runners::runner_directory(places_, job.value, attempt);
  run->run = run_id(launch_, job, attempt);
  auto& place = runs_[job];
  place = std::move(run);
  return *place;
}

// ---- starting ----------------------------------------------------------------------------------------------

template <class Work, class Then>
void JobRuns::on_pool(Work work, Then then) {
  server::work_then(pool_.get_executor(), io_, std::move(work),
                    [alive = alive_, then = std::move(then)](auto result) mutable {
                      if (*alive) then(std::move(result));
                    });
}

void JobRuns::start(const Start& command, std::uint32_t uid, std::uint64_t default_memory) {
  add(command.job, command.attempt, uid);
  on_pool([this, command, default_memory] { return launch_on_pool(command, default_memory); },
          [this, command](Launched result) { launched(command.job, command.attempt, std::move(result)); });
}

// Reads and writes files only: everything of this object that it uses is constant.
JobRuns::Launched JobRuns::launch_on_pool(const Start& command, std::uint64_t default_memory) const {
  Launched result;
  const auto fail = [&](const base::Error& error, bool is_jobs_fault) {
    result.connection = tl::unexpected(error);
    result.is_jobs_fault = is_jobs_fault;
    return std::move(result);
  };
  const auto job = store_.find(command.job);
  if (!job) return fail(job.error(), false);
  const auto text = store_.document(command.job);
  if (!text) {
    if (text.error().code != Code::kNotFound) return fail(text.error(), false);
    constexpr const char* kLost = "its description is lost: the job queue's file was damaged. Submit it again";
    return fail(base::fail(Code::kNotFound, kLost).value(), true);
  }
  auto document = parse_document(*text);
  if (!document) return fail(document.error(), true);
  take_order(*document, *job);
  LaunchedJob launched{.id = command.job,
                       .attempt = command.attempt,
                       .array = job->spec.array,
                       .array_index = job->spec.array_index,
                       .name = job->name,
                       .gpus = command.gpus,
                       .memory = job->spec.memory != 0 ? job->spec.memory : default_memory,
                       .priority = job->spec.capped};
  const auto spec = make_runner_spec(*document, launched, launch_);
  if (!spec) return fail(spec.error(), true);
  result.view.log_path = spec->log_path;
  result.view.attach_path = spec->attach_path;
  if (const auto prepared = runners::prepare_runner(places_, *spec); !prepared) {
    return fail(prepared.error(), prepared.error().code == Code::kInvalid);
  }
  const std::string directory = runners::runner_directory(places_, command.job.value, command.attempt);
  result.connection = runners::start_runner(places_, directory);
  // However the start failed, no runner may begin here now.
  if (!result.connection) static_cast<void>(give_up(directory));
  return result;
}

void JobRuns::launched(JobId job, std::uint32_t attempt, Launched result) {
  Run* const run = find(job, attempt);
  if (run == nullptr) return;
  run->view = std::move(result.view);
  if (result.connection) {
    connect(*run, std::move(*result.connection));
    return tell_again(*run);
  }
  const std::string why = result.connection.error().message();
  server::log_warning("a job could not be started", {{"job", job.value}, {"why", why}});
  if (!result.is_jobs_fault) return not_started(job, attempt, why);
  runs_.erase(job);
  callbacks_.noted(job, why);
  // It gets an end of its own, with the status that `env` has for what it cannot execute.
  callbacks_.ended(job, attempt, {.exit_status = static_cast<int>(wire::kExitNotStarted), .note = why});
}

// Nothing of this attempt runs, nor will.
void JobRuns::not_started(JobId job, std::uint32_t attempt, const std::string& why) {
  runs_.erase(job);
  callbacks_.noted(job, why);
  callbacks_.event(StartFailed{job, attempt});
}

void JobRuns::connect(Run& run, os::FileDescriptor connection) {
  const JobId job = run.job;
  const std::uint32_t attempt = run.attempt;
  run.link = std::make_unique<runners::RunnerLink>(
      io_, std::move(connection),
      [this, job, attempt](const wire::FromRunner& message) {
        if (Run* const known = find(job, attempt)) std::visit([&](const auto& m) { on_message(*known, m); }, message);
      },
      [this, job, attempt] {
        if (Run* const known = find(job, attempt)) {
          known->link.reset();
          look_soon(*known, Duration(0));
        }
      });
}

// ---- what the runner says ----------------------------------------------------------------------------------

void JobRuns::on_message(Run& run, const wire::RunnerState& state) {
  run.state = state;
  run.view.main_pid = state.main_pid;
  if (!run.confirmed && state.main_pid != 0) {
    run.confirmed = true;
    const JobId job = run.job;
    const std::uint32_t attempt = run.attempt;
    callbacks_.started(job, static_cast<store::WallTime>(state.started_wall_ns));
    callbacks_.event(StartConfirmed{job, attempt});
    if (find(job, attempt) == nullptr) return;
  }
  if (run.step == Step::kNone && state.suspension != wire::Suspension::kNone && state.sequence >= run.sequence &&
      !run.termination && run.link) {
    // Since before this daemon, which it did not answer in time: here it runs.
    run.sequence = state.sequence + 1;
    run.link->resume(run.sequence);
    return;
  }
  take_step(run, state);
}

void JobRuns::on_message(Run& run, const wire::RunnerEnded& end) {
  if ((end.flags & wire::kEndNotDurable) != 0) {
    server::log_warning("a job's end could not be written by its runner; it is stored from its message",
                        {{"job", run.job.value}});
  }
  finish(run, end_of(end));
}

void JobRuns::on_message(Run& run, const wire::RunnerRefused& refused) {
  const std::string why(wire::text_of(refused.text));
  server::log_warning("a job's runner would not begin", {{"job", run.job.value}, {"why", why}});
  if (refused.claimed != 0) return;  // a process has begun: the look after this connection closes says which
  // This runner will never begin, so the attempt is over. On a full disk the daemon cannot write that down.
  run.looking = true;
  on_pool([directory = run.directory] { return give_up(directory); },
          [this, job = run.job, attempt = run.attempt, why](bool) {
            if (find(job, attempt) != nullptr) not_started(job, attempt, why);
          });
}

void JobRuns::finish(Run& run, End end) {
  const JobId job = run.job;
  const std::uint32_t attempt = run.attempt;
  if (run.step != Step::kNone) node_.resume(run.uid, run.run);
  // Kept open until the end is stored: a runner that could not write it down itself waits for that.
  if (run.link) told_.insert_or_assign({job, attempt}, std::move(run.link));
  runs_.erase(job);
  callbacks_.ended(job, attempt, end);
}

// ---- a runner that does not answer -------------------------------------------------------------------------

void JobRuns::later(Duration pause, std::function<void()> act) {
  auto timer = std::make_shared<asio::steady_timer>(io_, pause);
  timer->async_wait([alive = alive_, timer, act = std::move(act)](const boost::system::error_code& error) {
    if (!error && *alive) act();
  });
}

void JobRuns::look_soon(Run& run, Duration pause) {
  if (run.looking) return;
  run.looking = true;
  later(pause, [this, job = run.job, attempt = run.attempt, directory = run.directory] {
    const auto look = [directory] {
      auto found = runners::look_at_runner(directory);
      const bool is_alive = found && found->standing == runners::RunnerStanding::kAlive;
      return std::pair(std::move(found),
                       is_alive ? runners::connect_runner(directory) : base::fail(Code::kUnavailable, ""));
    };
    on_pool(look, [this, job, attempt](std::pair<Result<runners::FoundRunner>, Result<os::FileDescriptor>> seen) {
      looked(job, attempt, std::move(seen.first), std::move(seen.second));
    });
  });
}

void JobRuns::looked(JobId job, std::uint32_t attempt, Result<runners::FoundRunner> found,
                     Result<os::FileDescriptor> connection) {
  Run* const run = find(job, attempt);
  if (run == nullptr) return;
  run->looking = false;
  if (!found) {
    server::log_error("a job's directory cannot be read", {{"job", job.value}, {"why", found.error().message()}});
    if (found.error().code != Code::kNotFound) return look_soon(*run, 1s);
    return finish(*run, {.how = jobs::End::kLost, .note = "its runner's directory is gone"});
  }
  switch (found->standing) {
    case runners::RunnerStanding::kAlive:
      if (!connection) return look_soon(*run, kLookAgain);
      connect(*run, std::move(*connection));
      return tell_again(*run);
    case runners::RunnerStanding::kEnded: return finish(*run, end_of(*found->end));
    case runners::RunnerStanding::kLost: return bury(job, attempt);
    case runners::RunnerStanding::kUnclaimed:
    case runners::RunnerStanding::kAbandoned:
      // It has died before it began.
      run->looking = true;
      on_pool([directory = run->directory] { return give_up(directory); },
              [this, job, attempt](bool is_over) {
                Run* const again = find(job, attempt);
                if (again == nullptr) return;
                again->looking = false;
                if (!is_over) return look_soon(*again, kLookAgain);
                not_started(job, attempt, "its runner ended before it began");
              });
  }
}

// Its runner died without a word. The rest of the job is ended before the core is told: another attempt may follow.
void JobRuns::bury(JobId job, std::uint32_t attempt) {
  Run* const run = find(job, attempt);
  if (run == nullptr) return;
  run->looking = true;
  const auto kill = [directory = run->directory] {
    auto killed = runners::kill_strays(directory);
    return std::pair(std::move(killed), runners::look_at_runner(directory));
  };
  on_pool(kill, [this, job, attempt](const std::pair<Result<std::size_t>, Result<runners::FoundRunner>>& left) {
    Run* const lost = find(job, attempt);
    if (lost == nullptr) return;
    const auto& [killed, found] = left;
    if (!killed)
      server::log_error("what a lost job has left could not be ended",
                        {{"job", job.value}, {"why", killed.error().message()}});
    if (!killed || *killed == 0) {
      const bool rebooted = found && found->machine_rebooted;
      return finish(*lost, {.how = jobs::End::kLost,
                            .note = rebooted ? "the machine was started anew while it ran" : "its runner died"});
    }
    later(lost->bury_again, [this, job, attempt] { bury(job, attempt); });
    lost->bury_again = std::min(2 * lost->bury_again, kSlowestLook);
  });
}

void JobRuns::forget(JobId job, std::uint32_t attempt) {
  if (const auto told = told_.find({job, attempt}); told != told_.end()) {
    told->second->note_end();
    told_.erase(told);
  }
  forget_later(runners::runner_directory(places_, job.value, attempt), kForgetTries);
}

void JobRuns::forget_later(std::string directory, int tries) {
  on_pool([directory] { return runners::forget_runner(directory); },
          [this, directory, tries](const base::Status& forgotten) {
            if (forgotten) return;
            if (forgotten.error().code != Code::kUnavailable || tries == 0)
              return server::log_warning("a job's directory is left",
                                         {{"directory", directory}, {"why", forgotten.error().message()}});
            later(kLookAgain, [this, directory, tries] { forget_later(directory, tries - 1); });
          });
}

// ---- ending, suspending, resuming --------------------------------------------------------------------------

void JobRuns::cancel(JobId job, std::uint32_t attempt, wire::EndReason reason, Duration grace) {
  Run* const run = find(job, attempt);
  if (run == nullptr) return;
  run->termination = {reason, grace};
  // A job that is to clean up needs its GPUs.
  if (run->step != Step::kNone) node_.resume(run->uid, run->run);
  run->step = Step::kNone;
  tell_again(*run);
}

bool JobRuns::signal(JobId job, int number) {
  const auto run = runs_.find(job);
  return run != runs_.end() && run->second->link && run->second->link->signal(number);
}

// Repeats orders that may not have arrived over an earlier connection. The runner may get each twice.
void JobRuns::tell_again(Run& run) {
  if (!run.link) return;
  if (run.step == Step::kFreezes) run.link->suspend(run.sequence);
  if (run.step == Step::kThaws) run.link->resume(run.sequence);
  if (run.termination) run.link->terminate(run.termination->first, run.termination->second);
}

void JobRuns::suspend(const Suspend& command, Duration patience) {
  Run* const run = find(command.job, command.attempt);
  if (run == nullptr) return;
  run->step = Step::kLeaves;
  run->step_ends = clock_.now() + patience;
  node_.suspend(run->uid, run->run);
  // Programs may be off the GPUs already. The timer sees this at once, and not from within the call that has asked for
  // it.
  memory_timer_.arm_in(kMemoryLook / 100);
}

void JobRuns::programs_changed() {
  // Each may refuse, and then be suspended anew by what the core answers: only those that were there are looked at.
  std::vector<std::pair<JobId, std::uint32_t>> leaving;
  for (const auto& [job, run] : runs_) {
    if (run->step == Step::kLeaves) leaving.emplace_back(job, run->attempt);
  }
  for (const auto& [job, attempt] : leaving) {
    if (Run* const run = find(job, attempt); run != nullptr && run->step == Step::kLeaves) follow_memory(*run);
  }
}

std::optional<base::TimePoint> JobRuns::next_memory_look() const {
  const bool any =
      std::any_of(runs_.begin(), runs_.end(), [](const auto& entry) { return entry.second->step == Step::kLeaves; });
  return any ? std::optional(clock_.now() + kMemoryLook) : std::nullopt;
}

void JobRuns::follow_memory(Run& run) {
  const ProgramsState state = node_.state(run.uid, run.run);
  if (state.is_off) {
    // Without a link it is tried again when there is one.
    if (!run.link || !run.link->suspend(++run.sequence)) return;
    run.step = Step::kFreezes;
    return;
  }
  if (state.is_stuck || clock_.now() >= run.step_ends) refuse_suspension(run, state.why);
}

void JobRuns::refuse_suspension(Run& run, std::string why) {
  server::log_info("a job cannot be suspended and runs on", {{"job", run.job.value}, {"why", why}});
  node_.resume(run.uid, run.run);
  run.step = Step::kNone;
  callbacks_.noted(run.job, "could not be suspended: " + why);
  callbacks_.event(SuspendRefused{run.job, run.attempt});
}

void JobRuns::take_step(Run& run, const wire::RunnerState& state) {
  if (state.sequence != run.sequence) return;  // an older one's answer
  if (run.step == Step::kFreezes && state.suspension == wire::Suspension::kFrozen) {
    run.step = Step::kFrozen;
    return callbacks_.event(Suspended{run.job, run.attempt});
  }
  if (run.step == Step::kFreezes && state.suspension == wire::Suspension::kFailed) {
    if (run.link) run.link->resume(++run.sequence);
    return refuse_suspension(run, std::to_string(state.unstoppable) + " of its processes cannot be stopped");
  }
  if (run.step == Step::kThaws && state.suspension == wire::Suspension::kNone) {
    run.step = Step::kNone;
    return callbacks_.event(Resumed{run.job, run.attempt});
  }
}

void JobRuns::resume(const Resume& command) {
  Run* const run = find(command.job, command.attempt);
  if (run == nullptr) return;
  run->step = Step::kThaws;
  node_.resume(run->uid, run->run);
  if (run->link) run->link->resume(++run->sequence);
}

void JobRuns::set_priority(JobId job, std::int32_t priority) {
  const auto run = runs_.find(job);
  if (run != runs_.end()) node_.set_priority(run->second->uid, run->second->run, priority);
}

// ---- after a restart ---------------------------------------------------------------------------------------

bool JobRuns::await_first_word(int connection) {
  const base::TimePoint begin = clock_.now();
  const Duration patience = std::max(kLeastFirstWordPatience, kFirstWordPatience - awaited_);
  pollfd readable{.fd = connection, .events = POLLIN, .revents = 0};
  const bool has_spoken = ::poll(&readable, 1, static_cast<int>(patience / 1ms)) == 1;
  awaited_ += clock_.now() - begin;
  return has_spoken;
}

JobRuns::Restored JobRuns::restore(JobId job, std::uint32_t attempt, std::uint32_t uid) {
  Run& run = add(job, attempt, uid);
  const auto none = [&] {
    runs_.erase(job);
    return Restored{};
  };
  auto found = runners::look_at_runner(run.directory);
  if (!found && found.error().code == Code::kNotFound) return none();
  if (found && (found->standing == runners::RunnerStanding::kUnclaimed ||
                found->standing == runners::RunnerStanding::kAbandoned)) {
    if (give_up(run.directory)) return none();
    found = runners::look_at_runner(run.directory);  // it has begun in this moment
  }
  if (const auto stored = store_.find(job)) {
    run.view.log_path = stored->log;
    const auto text = store_.document(job);
    const auto document = text ? parse_document(*text) : Result<JobDocument>(tl::unexpected(text.error()));
    if (document && document->interactive) run.view.attach_path = attach_path(launch_, job, attempt);
  }
  Restored restored{.found = Found::kEnded};
  if (found && found->standing == runners::RunnerStanding::kAlive && !found->end) {
    auto connection = runners::await_runner(run.directory);
    if (connection && await_first_word(connection->get())) {
      const auto message = runners::receive_from_runner(connection->get());
      const auto* state = message ? std::get_if<wire::RunnerState>(&*message) : nullptr;
      if (state != nullptr) {
        run.state = *state;
        run.view.main_pid = state->main_pid;
        run.sequence = state->sequence;
        run.confirmed = state->main_pid != 0;
        restored.ran = Duration(static_cast<std::int64_t>(state->running_ns));
        restored.was_suspended = state->suspended_ns != 0;
        restored.started_at = static_cast<store::WallTime>(state->started_wall_ns);
        restored.found = !run.confirmed ? Found::kStarting : Found::kRunning;
        if (run.confirmed && state->suspension != wire::Suspension::kNone) {
          // A half frozen job counts as frozen: the next Resume thaws it.
          restored.found = Found::kSuspended;
          run.step = Step::kFrozen;
          node_.suspend(uid, run.run);
        }
        connect(run, std::move(*connection));
        return restored;
      }
    }
  }
  // Ended, lost, or not to be reached at this moment: the loop finds out, and tells.
  if (found && found->standing == runners::RunnerStanding::kAlive && !found->end) restored.found = Found::kRunning;
  if (found && found->end && found->end->how != wire::EndHow::kNotStarted) restored.started_at = found->claimed_wall_ns;
  run.confirmed = true;
  look_soon(run, Duration(0));
  return restored;
}

void JobRuns::sweep(const std::function<bool(JobId, std::uint32_t)>& is_wanted) {
  const auto directories = runners::list_runners(places_);
  if (!directories)
    return server::log_warning("old jobs' directories cannot be listed", {{"why", directories.error().message()}});
  for (const runners::RunnerDirectory& directory : *directories) {
    if (is_wanted(JobId{directory.job}, directory.attempt)) continue;
    // It was never told to begin, or its end is known.
    static_cast<void>(runners::abandon_runner(directory.path));
    forget_later(directory.path, 0);
  }
}

std::optional<JobRuns::View> JobRuns::view(JobId job) const {
  const auto found = runs_.find(job);
  if (found == runs_.end()) return std::nullopt;
  return found->second->view;
}

void JobRuns::for_each_run(const std::function<void(JobId, uid_t, const std::string&)>& visit) const {
  for (const auto& [job, run] : runs_) visit(job, run->uid, run->run);
}

}  // namespace gpumux::jobs
