// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_queue.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "jobs/service/job_why.h"
#include "os/wall_clock.h"
#include "server/loop/log.h"

namespace gpumux::jobs {
namespace {

namespace asio = boost::asio;
using base::Code;
using base::Duration;
using base::Result;
using base::Status;
using namespace std::chrono_literals;

// A guess: a daemon that is killed forgets up to this much of users' use of GPUs, and each time is one commit.
constexpr Duration kHousekeeping = 60s;

}  // namespace

store::WallTime wall_now() { return os::wall_clock_ns(); }

base::TimePoint moment_of(store::WallTime wall, base::TimePoint now) {
  if (wall == 0) return {};
  const Duration left(wall - wall_now());
  return left > base::TimePoint::max() - now ? base::TimePoint::max() : now + left;
}

store::Query query_of_array(JobId array) {
  store::Query query;
  query.array = array;
  query.at_most = kMaxArrayElements;
  return query;
}

JobQueue::JobQueue(asio::io_context& io, const base::Clock& clock)
    : io_(io),
      clock_(clock),
      core_timer_(
          io, [this] { return core_.next_deadline(); }, [this](base::TimePoint) { apply(TimePassed{}); }),
      retry_timer_(io, server::LoopTimer::never(), [this](base::TimePoint) { hand_over({}, {}, nullptr); }),
      housekeeping_(io, server::LoopTimer::every(kHousekeeping), [this](base::TimePoint) { keep_house(); }) {}

JobQueue::~JobQueue() {
  *alive_ = false;
  // Work that is under way on the pool uses members that go now.
  pool_.join();
  commits_.reset();
}

void JobQueue::close() {
  if (state_ != State::kOpen) return;
  save_usage();
  if (!unsaved_.empty()) hand_over({}, {}, nullptr);
  commits_->drain();
}

// ---- settings, GPUs ----------------------------------------------------------------------------------------

void JobQueue::set_config(const settings::QueueSettings& config) {
  config_ = config;
  const QueueSettings before = std::exchange(core_settings_, jobs::core_settings(config));
  if (state_ != State::kOpen) return;
  if (!(core_settings_ == before)) apply(SettingsChanged{core_settings_});
}

void JobQueue::set_served(base::GpuIndex gpu, bool is_served) {
  if (gpu.value >= gpus_.size() || gpus_[gpu.value].is_served == is_served) return;
  gpus_[gpu.value].is_served = is_served;
  if (state_ != State::kOpen) return;
  if (is_served) {
    apply(GpuAdded{gpu, gpus_[gpu.value].capacity});
  } else {
    apply(GpuRemoved{gpu});
  }
}

void JobQueue::set_foreign_use(base::GpuIndex gpu, std::uint64_t bytes) {
  if (state_ != State::kOpen) return;
  const auto room = core_.room(gpu);
  if (room && room->present && room->foreign != bytes) apply(ForeignUse{gpu, bytes});
}

void JobQueue::set_looked_at() {
  if (state_ != State::kOpen || std::exchange(is_looked_at_, true)) return;
  update_held();
}

void JobQueue::update_held() { apply(SchedulingHeld{is_paused_ || !is_looked_at_}); }

void JobQueue::set_foreign_programs(base::GpuIndex gpu, std::vector<ForeignProgram> programs) {
  if (gpu.value >= gpus_.size()) return;
  std::stable_sort(programs.begin(), programs.end(),
                   [](const ForeignProgram& a, const ForeignProgram& b) { return a.bytes > b.bytes; });
  gpus_[gpu.value].programs = std::move(programs);
}

void JobQueue::set_sick(base::GpuIndex gpu, bool is_sick) {
  if (state_ != State::kOpen) return;
  const auto room = core_.room(gpu);
  if (room && room->sick != is_sick) apply(GpuHealth{gpu, is_sick});
}

void JobQueue::programs_changed() {
  if (state_ == State::kOpen) runs_->programs_changed();
}

// ---- the core and the store --------------------------------------------------------------------------------

void JobQueue::apply_now(const Event& event, std::vector<Command>& commands) {
  core_.apply(clock_.now(), event, commands);
  server::debug_text("event of the jobs", event);
  for (const Command& command : commands) server::debug_text("decision of the jobs", command);
}

void JobQueue::apply(const Event& event) {
  std::vector<Command> commands;
  apply_now(event, commands);
  hand_over(std::move(commands), {}, nullptr);
}

void JobQueue::carry_out(const Command& command, const Status& stored) {
  if (const auto* start = std::get_if<Start>(&command)) {
    const auto owner = owners_.find(start->job);
    if (!stored || owner == owners_.end()) {
      if (owner != owners_.end())
        notes_[start->job] = "it could not be stored that it starts: " + stored.error().message();
      return apply(StartFailed{start->job, start->attempt});
    }
    notes_.erase(start->job);
    runs_->start(*start, owner->second.uid, core_settings_.default_memory);
  } else if (const auto* suspend = std::get_if<Suspend>(&command)) {
    runs_->suspend(*suspend, config_.suspend_patience);
  } else if (const auto* resume = std::get_if<Resume>(&command)) {
    notes_.erase(resume->job);
    runs_->resume(*resume);
  } else if (const auto* cancel = std::get_if<Cancel>(&command)) {
    const bool is_limit = cancel->reason == CancelReason::kTimeLimit;
    runs_->cancel(cancel->job, cancel->attempt, is_limit ? wire::EndReason::kTimeLimit : wire::EndReason::kCancelled,
                  config_.cancel_grace);
  }
}

// Its StartConfirmed follows.
void JobQueue::started(JobId job, store::WallTime at) {
  const auto owner = owners_.find(job);
  if (owner == owners_.end()) return;
  store::WallTime& started_at = owner->second.row.started_at;
  if (started_at == 0) {
    started_at = at != 0 ? at : wall_now();
    waits_.add(base::Duration(std::max<store::WallTime>(started_at - owner->second.submitted_at, 0)));
  }
  wake(job, false);
}

void JobQueue::ended(JobId job, std::uint32_t attempt, const JobRuns::End& end) {
  ends_[job] = {attempt, end};
  apply(Ended{job, attempt, end.how});
  // Still there: the core did not take it. The job was withdrawn, say.
  ends_.erase(job);
}

// Forgets everything about the job that is not in the store.
void JobQueue::forget_job(JobId job) {
  disown(job);
  notes_.erase(job);
  wake(job, true);
}

// ---- other wishes ------------------------------------------------------------------------------------------

struct JobQueue::Changing {
  std::vector<JobId> jobs;
  Change change;
  std::function<void(Result<Changed>)> reply;
  Changed changed;
  std::size_t next = 0;
  Status status;
};

void JobQueue::change(std::vector<JobId> jobs, const Change& change, std::function<void(Result<Changed>)> reply) {
  if (state_ != State::kOpen) return reply(base::fail(Code::kUnavailable, unavailable_));
  change_some(std::make_shared<Changing>(
      Changing{.jobs = std::move(jobs), .change = change, .reply = std::move(reply), .changed = {}, .status = {}}));
}

void JobQueue::change_some(std::shared_ptr<Changing> work) {
  std::vector<Command> commands;
  const std::size_t end = std::min(work->jobs.size(), work->next + kChangedAtOnce);
  for (; work->next < end; ++work->next) {
    const JobId job = work->jobs[work->next];
    const auto changed = change_now(job, work->change, commands);
    if (!changed) {
      work->changed.refused.emplace(job, changed.error());
    } else if (*changed) {
      work->changed.jobs.push_back(job);
    }
  }
  const bool is_last = end == work->jobs.size();
  hand_over(std::move(commands), {}, [work, is_last](const Status& status) {
    if (!status) work->status = status;
    if (!is_last) return;
    if (!work->status) return work->reply(tl::unexpected(work->status.error()));
    work->reply(std::move(work->changed));
  });
  if (is_last) return;
  asio::post(io_, [this, alive = alive_, work = std::move(work)] {
    if (*alive) change_some(work);
  });
}

// Whether something is different now.
Result<bool> JobQueue::change_now(JobId job, const Change& change, std::vector<Command>& all) {
  if (!owners_.contains(job)) return false;
  std::vector<Command> commands;
  switch (change.kind) {
    case Change::Kind::kCancel: apply_now(CancelAsked{job}, commands); break;
    case Change::Kind::kHold: apply_now(HoldAsked{job}, commands); break;
    case Change::Kind::kRelease: apply_now(ReleaseAsked{job}, commands); break;
    case Change::Kind::kSuspend: apply_now(SuspendAsked{job}, commands); break;
    case Change::Kind::kResume:
      // A job that has not started is released, not resumed.
      if (const auto at = standing(job); at && at->state != JobState::kHeld) apply_now(ReleaseAsked{job}, commands);
      break;
    case Change::Kind::kRunAgain: apply_now(RequeueAsked{job}, commands); break;
    case Change::Kind::kSignal: GPUMUX_TRY(signal(job, change.signal)); return true;
    case Change::Kind::kWishes: GPUMUX_TRY(ask(job, change.wishes, change.by_admin, commands)); break;
  }
  const bool changed = std::any_of(commands.begin(), commands.end(), [job](const Command& command) {
    return std::visit([job]<class C>(const C& c) { return c.job == job; }, command);
  });
  all.insert(all.end(), commands.begin(), commands.end());
  if (changed && change.wishes.priority) {
    if (const auto at = standing(job)) runs_->set_priority(job, at->capped);
  }
  return changed;
}

Status JobQueue::signal(JobId job, int number) const {
  const auto at = standing(job);
  const std::string name = "job " + std::to_string(job.value);
  if (!at || at->state != JobState::kRunning)
    return base::fail(Code::kInvalid, name + " does not run" +
                                          (at ? " (it is " + std::string(to_string(at->state)) + ")" : std::string()) +
                                          ": only a running job gets signals");
  if (runs_->signal(job, number)) return {};
  return base::fail(Code::kUnavailable, name + " cannot be reached at this moment: try again");
}

// All of the wishes, or none.
Status JobQueue::ask(JobId job, const Wishes& wishes, bool by_admin, std::vector<Command>& commands) {
  const auto has = core_.request(job);
  if (!has || core_.standing(job)->state == JobState::kEnding) return {};
  Request wanted = *has;
  if (wishes.time_limit) wanted.time_limit = *wishes.time_limit;
  if (wishes.memory) wanted.memory = *wishes.memory;
  if (wishes.gpus) {
    wanted.gpus = {};
    for (const std::uint32_t gpu : wishes.gpus->order) wanted.gpus.insert(base::GpuIndex{gpu});
    wanted.gpu_count = wishes.gpus->count;
  }
  const RequestAsked asked{job, wanted, by_admin};
  if (const auto refusal = core_.refusal(asked)) {
    JobSpec spec;
    const Owner& owner = owners_.at(job);
    spec.id = job;
    spec.array = owner.array;
    spec.array_index = owner.array_index;
    spec.ask(wanted);
    return tl::unexpected(describe(*refusal, spec, limits_of(owner.uid), core_));
  }
  // An order of GPUs is nothing to the core.
  if (wishes.gpus) owners_.at(job).row.gpu_order = wishes.gpus->order;
  if (wishes.gpus && wanted == *has) commands.emplace_back(RecordRequest{job, wanted});
  apply_now(asked, commands);
  if (wishes.priority) apply_now(PriorityAsked{job, *wishes.priority, by_admin}, commands);
  return {};
}

// A job that was lost and waits to run again is not started.
bool JobQueue::is_started(JobId job) const {
  const auto at = standing(job);
  return at && has_started(at->state) && at->state != JobState::kStarting;
}

void JobQueue::wait(JobId job, bool until_started, Duration patience, std::function<void()> callback) {
  const auto owner = owners_.find(job);
  if (owner == owners_.end() || (until_started && is_started(job))) {
    asio::post(io_, std::move(callback));
    return;
  }
  // It calls back when it ends; wake() ends it early.
  auto timer = std::make_shared<asio::steady_timer>(io_, patience);
  waiters_.emplace(job, Waiter{until_started, timer});
  timer->async_wait([this, alive = alive_, job, timer, callback = std::move(callback)](const auto&) {
    if (!*alive) return;
    const auto [first, last] = waiters_.equal_range(job);
    const auto own = std::find_if(first, last, [&](const auto& entry) { return entry.second.timer == timer; });
    if (own != last) waiters_.erase(own);
    callback();
  });
}

void JobQueue::wake(JobId job, bool is_done) {
  const auto [first, last] = waiters_.equal_range(job);
  for (auto waiter = first; waiter != last; ++waiter) {
    if (is_done || waiter->second.until_started) waiter->second.timer->cancel();
  }
}

void JobQueue::keep(std::vector<store::Change> changes,
                    std::function<void(Result<std::vector<store::Applied>>)> reply) {
  if (state_ != State::kOpen) {
    if (reply) reply(base::fail(Code::kUnavailable, unavailable_));
    return;
  }
  commits_->hand_in(std::move(changes),
                    [this, alive = alive_, reply = std::move(reply)](Result<std::vector<store::Applied>> applied) {
                      asio::post(io_, [alive, reply, applied = std::move(applied)]() mutable {
                        if (*alive && reply) reply(std::move(applied));
                      });
                    });
}

void JobQueue::put_value(std::string key, std::string value, std::function<void(Status)> reply) {
  keep({store::PutValue{std::move(key), std::move(value)}},
       [reply = std::move(reply)](const Result<std::vector<store::Applied>>& applied) {
         reply(applied.map([](const auto&) {}));
       });
}

const UserLimits& JobQueue::limits_of(std::uint32_t uid) const {
  const auto own = limits_.find(uid);
  return own != limits_.end() ? own->second : core_settings_.limits;
}

std::int32_t JobQueue::granted_priority(uid_t uid, const std::string& run) const {
  if (limits_of(uid).priority_cap.is_unlimited()) return 0;
  const auto job = job_of(uid, run);
  const auto at = job ? standing(*job) : std::nullopt;
  return at ? at->capped : 0;
}

std::optional<JobId> JobQueue::job_of(uid_t uid, const std::string& run) const {
  std::optional<JobId> found;
  if (runs_ == nullptr || run.empty()) return found;
  runs_->for_each_run([&](JobId job, uid_t owner, const std::string& name) {
    if (owner == uid && name == run) found = job;
  });
  return found;
}

void JobQueue::set_paused(bool is_paused, std::function<void(Status)> reply) {
  put_value("paused", is_paused ? "1" : "", [this, is_paused, reply = std::move(reply)](const Status& status) {
    if (status) {
      is_paused_ = is_paused;
      update_held();
    }
    reply(status);
  });
}

void JobQueue::set_drained(base::GpuIndex gpu, bool is_drained, std::function<void(Status)> reply) {
  if (gpu.value >= gpus_.size()) return reply(base::fail(Code::kNotFound, "there is no such GPU"));
  put_value("drained/" + gpus_[gpu.value].uuid, is_drained ? "1" : "",
            [this, gpu, is_drained, reply = std::move(reply)](const Status& status) {
              if (status) apply(GpuDrained{gpu, is_drained});
              reply(status);
            });
}

void JobQueue::set_limits(std::uint32_t uid, std::optional<UserLimits> limits, std::function<void(Status)> reply) {
  std::string text;
  if (limits)
    text = nlohmann::json{limits->running.at_most(kNoCount), limits->queued.at_most(kNoCount),
                          limits->gpus.at_most(kNoCount), limits->priority_cap.at_most(kNoCap)}
               .dump();
  put_value("limits/" + std::to_string(uid), std::move(text),
            [this, uid, limits, reply = std::move(reply)](const Status& status) {
              if (status) {
                limits_.erase(uid);
                if (limits) limits_[uid] = *limits;
                apply(UserLimitsChanged{uid, limits});
              }
              reply(status);
            });
}

// ---- what there is -----------------------------------------------------------------------------------------

const JobQueue::Owner* JobQueue::find(JobId job) const {
  const auto found = owners_.find(job);
  return found == owners_.end() ? nullptr : &found->second;
}

std::vector<JobId> JobQueue::unfinished(std::optional<std::uint32_t> uid) const {
  std::vector<JobId> jobs;
  for (const auto& [job, owner] : owners_) {
    if (!uid || owner.uid == *uid) jobs.push_back(job);
  }
  return jobs;
}

// They were numbered in one go.
std::vector<JobId> JobQueue::elements(JobId array) const {
  std::vector<JobId> jobs;
  for (auto at = owners_.lower_bound(array); at != owners_.end() && at->second.array == array; ++at)
    jobs.push_back(at->first);
  return jobs;
}

std::optional<JobRuns::View> JobQueue::view(JobId job) const { return runs_ ? runs_->view(job) : std::nullopt; }

std::string JobQueue::note(JobId job) const {
  const auto found = notes_.find(job);
  return found == notes_.end() ? std::string() : found->second;
}

// ---- now and then ------------------------------------------------------------------------------------------

void JobQueue::keep_house() {
  save_usage();
  prune();
  prune_users();
}

void JobQueue::save_usage() {
  std::vector<store::Change> changes;
  const store::WallTime now = wall_now();
  for (const UserUsage& usage : core_.usage(clock_.now())) {
    std::uint64_t& saved = saved_usage_[usage.uid];
    if (saved == usage.gpu_microseconds) continue;
    saved = usage.gpu_microseconds;
    changes.push_back(store::PutUsage{usage.uid, usage.gpu_microseconds, now});
  }
  if (!changes.empty()) commits_->hand_in(std::move(changes), nullptr);
}

void JobQueue::prune() {
  const store::Prune wanted{.ended_before = wall_now() - config_.history.count()};
  commits_->hand_in({wanted},
                    [this, alive = alive_, most = wanted.at_most](const Result<std::vector<store::Applied>>& applied) {
                      // As many as allowed: there may be more.
                      if (!applied || applied->empty() || applied->front().pruned < most) return;
                      asio::post(io_, [this, alive] {
                        if (*alive) prune();
                      });
                    });
}

// No more than this many stay of each user. Otherwise one user could fill the disk with jobs that are cancelled at
// once.
void JobQueue::prune_users() {
  if (config_.max_history.is_unlimited()) return;
  asio::post(pool_, [this, most = config_.max_history.value()] {
    const auto crowded = store_->with_more_done_than(most);
    if (!crowded) return;
    for (const auto& [uid, more] : *crowded) {
      store::Prune prune{.ended_before = std::numeric_limits<store::WallTime>::max(), .uid = uid};
      for (std::uint64_t left = more; left > 0; left -= prune.at_most) {
        prune.at_most = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, store::Prune{}.at_most));
        commits_->hand_in({prune}, nullptr);
      }
    }
  });
}

}  // namespace gpumux::jobs
