// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_queue.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "daemon/loop/log.h"
#include "daemon/loop/message_log.h"

namespace gpumux::daemon {
namespace {

namespace asio = boost::asio;
namespace core = jobs;
using base::Code;
using base::Duration;
using base::Result;
using base::Status;
using core::JobId;
using core::JobState;
using namespace std::chrono_literals;

constexpr Duration kStoreRetry = 1s;
constexpr Duration kHousekeeping = 60s;
// In one turn of the loop: a millisecond. And in one commit on a full disk (store::kReserveBytes).
constexpr std::size_t kChangedAtOnce = 128;

store::WallTime wall_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::chrono::steady_clock::time_point to_steady(base::TimePoint time) {
  return std::chrono::steady_clock::time_point(time.time_since_epoch());
}

// The later of two updates of one job says what holds.
void merge(store::Update& target, const store::Update& later) {
  if (later.core) target.core = later.core;
  if (later.started_at) target.started_at = later.started_at;
  if (later.ended_at) target.ended_at = later.ended_at;
  if (later.exit_status) target.exit_status = later.exit_status;
  if (later.note) target.note = later.note;
}

// What a later update of the same job says is not said again after it.
void leave_to(store::Update& target, const store::Update& later) {
  if (later.core) target.core.reset();
  if (later.started_at) target.started_at.reset();
  if (later.ended_at) target.ended_at.reset();
  if (later.exit_status) target.exit_status.reset();
  if (later.note) target.note.reset();
}

bool says_nothing(const store::Update& update) {
  return !update.core && !update.started_at && !update.ended_at && !update.exit_status && !update.note;
}

}  // namespace

store::Query query_of_array(JobId array) {
  store::Query query;
  query.array = array;
  query.at_most = kMaxArrayElements;
  return query;
}

JobQueue::JobQueue(asio::io_context& io, const base::Clock& clock)
    : io_(io),
      clock_(clock),
      core_timer_(io),
      retry_timer_(io),
      housekeeping_(io, LoopTimer::every(kHousekeeping), [this](base::TimePoint) { keep_house(); }) {}

JobQueue::~JobQueue() {
  *alive_ = false;
  // What is under way there uses what goes now.
  pool_.join();
  commits_.reset();
}

void JobQueue::close() {
  if (!is_open_) return;
  save_usage();
  if (!unsaved_.empty()) hand_over({}, {}, nullptr);
  commits_->drain();
}

// ---- settings, GPUs ----------------------------------------------------------------------------------------

void JobQueue::set_config(const settings::QueueSettings& config) {
  config_ = config;
  const core::QueueSettings before = std::exchange(core_settings_, daemon::core_settings(config));
  if (!is_open_) return;
  runs_->set_patience(config.suspend_patience);
  runs_->set_default_memory(core_settings_.default_memory);
  if (!(core_settings_ == before)) apply(core::SettingsChanged{core_settings_});
}

void JobQueue::set_served(base::GpuIndex gpu, bool is_served) {
  if (gpu.value >= gpus_.size() || gpus_[gpu.value].is_served == is_served) return;
  gpus_[gpu.value].is_served = is_served;
  if (!is_open_) return;
  if (is_served) {
    apply(core::GpuAdded{gpu, gpus_[gpu.value].capacity});
  } else {
    apply(core::GpuRemoved{gpu});
  }
}

void JobQueue::set_foreign_use(base::GpuIndex gpu, std::uint64_t bytes) {
  if (!is_open_) return;
  const auto room = core_.room(gpu);
  if (room && room->present && room->foreign != bytes) apply(core::ForeignUse{gpu, bytes});
}

void JobQueue::programs_changed() {
  if (is_open_) runs_->programs_changed();
}

// ---- the core and the store --------------------------------------------------------------------------------

void JobQueue::apply_now(const core::Event& event, std::vector<core::Command>& commands) {
  core_.apply(clock_.now(), event, commands);
  debug_text("event of the jobs", event);
  for (const core::Command& command : commands) debug_text("decision of the jobs", command);
}

void JobQueue::apply(const core::Event& event) {
  std::vector<core::Command> commands;
  apply_now(event, commands);
  hand_over(std::move(commands), {}, nullptr);
}

store::Update JobQueue::update_of(const core::Record& record, Batch& batch) {
  store::Update update;
  update.job = record.job;
  update.core = record;
  const auto end = ends_.find(record.job);
  const bool is_of_this_attempt = end != ends_.end() && end->second.attempt == record.attempt;
  if (const auto started = started_at_.extract(record.job)) update.started_at = started.mapped();
  if (record.state == JobState::kDone) {
    update.ended_at = is_of_this_attempt && end->second.end.ended_at != 0 ? end->second.end.ended_at : wall_now();
    if (is_of_this_attempt) {
      update.exit_status = end->second.end.exit_status;
      update.note = end->second.end.note;
    }
  } else if (is_of_this_attempt) {
    // It was lost, and runs again.
    notes_[record.job] = end->second.end.note;
  }
  if (is_of_this_attempt) {
    batch.to_forget.emplace_back(record.job, record.attempt);
    ends_.erase(end);
  }
  return update;
}

void JobQueue::hand_over(std::vector<core::Command> commands, std::vector<store::Insert> inserts,
                         std::function<void(Status)> after) {
  arm_core_timer();
  // What an earlier commit could not store goes first: this one may be about the same jobs.
  hand_over_unsaved();
  auto batch = std::make_shared<Batch>();
  if (after) batch->after.push_back(std::move(after));
  std::vector<store::Change> changes;
  std::map<JobId, store::Insert*> is_new;
  for (store::Insert& insert : inserts) is_new[insert.job.spec.id] = &insert;
  for (const core::Command& command : commands) {
    const auto* record = std::get_if<core::Record>(&command);
    if (record == nullptr) continue;
    if (const auto found = is_new.find(record->job); found != is_new.end()) {
      batch->inserted.push_back(record->job);
      found->second->job.core = *record;
      changes.push_back(std::move(*found->second));
      is_new.erase(found);
      continue;
    }
    store::Update update = update_of(*record, *batch);
    batch->updates.push_back(update);
    changes.push_back(std::move(update));
  }
  if (changes.empty() && commands.empty() && batch->after.empty() && batch->to_forget.empty()) return;
  batch->commands = std::move(commands);
  hand_in(batch, std::move(changes));
}

// In parts of their own, which find room on a full disk.
void JobQueue::hand_over_unsaved() {
  auto updates = std::exchange(unsaved_, {});
  auto forgets = std::exchange(unsaved_forgets_, {});
  while (!updates.empty() || !forgets.empty()) {
    auto batch = std::make_shared<Batch>();
    std::vector<store::Change> changes;
    while (!updates.empty() && changes.size() < kChangedAtOnce) {
      batch->updates.push_back(updates.begin()->second);
      changes.push_back(updates.extract(updates.begin()).mapped());
    }
    // A runner is forgotten when its end is stored, and not before.
    const auto is_later = [&](const auto& forget) { return updates.contains(forget.first); };
    const auto later = std::partition(forgets.begin(), forgets.end(), is_later);
    batch->to_forget.assign(later, forgets.end());
    forgets.erase(later, forgets.end());
    hand_in(batch, std::move(changes));
  }
}

void JobQueue::hand_in(const std::shared_ptr<Batch>& batch, std::vector<store::Change> changes) {
  batches_.push_back(batch);
  if (changes.empty()) {
    batch->stored = Status();
    return finish_batches();
  }
  commits_->hand_in(std::move(changes), [this, alive = alive_, batch](Result<std::vector<store::Applied>> applied) {
    Status status = applied ? Status() : Status(tl::unexpected(applied.error()));
    asio::post(io_, [this, alive, batch, status = std::move(status)]() mutable {
      if (*alive) stored(batch, std::move(status));
    });
  });
}

void JobQueue::stored(const std::shared_ptr<Batch>& batch, Status status) {
  if (!status) {
    log_error("jobs could not be stored", {{"why", status.error().message()}});
    keep_unsaved(*batch);
  }
  batch->stored = std::move(status);
  finish_batches();
}

// In order: who comes later may undo what was before.
void JobQueue::finish_batches() {
  if (is_settling_) return;  // what is carried out hands over more: the loop below gets there
  is_settling_ = true;
  while (!batches_.empty() && batches_.front()->stored) {
    const auto batch = std::move(batches_.front());
    batches_.pop_front();
    finish(*batch);
  }
  is_settling_ = false;
}

void JobQueue::finish(const Batch& batch) {
  const Status stored = *batch.stored;
  // One that fails (out of memory, say) must not keep the others from their turn, now or ever.
  const auto whatever_happens = [](const auto& act) {
    try {
      act();
    } catch (const std::exception& e) {
      log_error("something of the job queue failed", {{"why", e.what()}});
    }
  };
  if (stored) {
    for (const store::Update& update : batch.updates) {
      if (update.core && update.core->state == JobState::kDone) whatever_happens([&] { forget_job(update.job); });
    }
    for (const auto& over : batch.to_forget) whatever_happens([&] { runs_->forget(over.first, over.second); });
  }
  const std::set<JobId> taken_back(stored ? batch.inserted.end() : batch.inserted.begin(), batch.inserted.end());
  for (const core::Command& command : batch.commands) {
    const auto* start = std::get_if<core::Start>(&command);
    if (start != nullptr && taken_back.contains(start->job)) continue;
    whatever_happens([&] { carry_out(command, stored); });
  }
  for (const JobId job : taken_back) {
    whatever_happens([&] {
      disown(job);
      apply(core::Withdrawn{job});
    });
  }
  for (const auto& after : batch.after) whatever_happens([&] { after(stored); });
}

// Those behind it in the line are later, and may be stored already, or have failed before it.
void JobQueue::keep_unsaved(Batch& batch) {
  std::map<JobId, store::Update> newer;
  auto at = std::find_if(batches_.begin(), batches_.end(), [&](const auto& other) { return other.get() == &batch; });
  while (at != batches_.end() && ++at != batches_.end()) {
    for (const store::Update& update : (*at)->updates) merge(newer[update.job], update);
  }
  for (store::Update update : batch.updates) {
    if (const auto later = newer.find(update.job); later != newer.end()) leave_to(update, later->second);
    if (says_nothing(update)) continue;
    const auto [kept, is_first] = unsaved_.try_emplace(update.job, update);
    if (!is_first) merge(kept->second, update);
  }
  unsaved_forgets_.insert(unsaved_forgets_.end(), batch.to_forget.begin(), batch.to_forget.end());
  if (unsaved_.empty()) return;
  retry_timer_.expires_after(kStoreRetry);
  retry_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !unsaved_.empty()) hand_over({}, {}, nullptr);
  });
}

void JobQueue::carry_out(const core::Command& command, const Status& stored) {
  if (const auto* start = std::get_if<core::Start>(&command)) {
    const auto owner = owners_.find(start->job);
    if (!stored || owner == owners_.end()) {
      notes_[start->job] = stored ? "" : "it could not be stored that it starts: " + stored.error().message();
      return apply(core::StartFailed{start->job, start->attempt, true});
    }
    notes_.erase(start->job);
    runs_->start(*start, owner->second.uid);
  } else if (const auto* suspend = std::get_if<core::Suspend>(&command)) {
    runs_->suspend(*suspend);
  } else if (const auto* resume = std::get_if<core::Resume>(&command)) {
    notes_.erase(resume->job);
    runs_->resume(*resume);
  } else if (const auto* cancel = std::get_if<core::Cancel>(&command)) {
    const bool is_limit = cancel->reason == core::CancelReason::kTimeLimit;
    runs_->cancel(cancel->job, cancel->attempt, is_limit ? wire::EndReason::kTimeLimit : wire::EndReason::kCancelled,
                  config_.cancel_grace);
  }
}

// Its StartConfirmed follows.
void JobQueue::started(JobId job, store::WallTime at) {
  const auto owner = owners_.find(job);
  if (owner == owners_.end()) return;
  if (!std::exchange(owner->second.ever_started, true)) started_at_[job] = at != 0 ? at : wall_now();
  wake(job, false);
}

void JobQueue::ended(JobId job, std::uint32_t attempt, const JobRuns::End& end) {
  ends_[job] = {attempt, end};
  apply(core::Ended{job, attempt, end.how});
  // Of nobody's any more: it was withdrawn, say.
  ends_.erase(job);
}

// What is known of it besides the store.
void JobQueue::forget_job(JobId job) {
  disown(job);
  notes_.erase(job);
  started_at_.erase(job);
  wake(job, true);
}

void JobQueue::arm_core_timer() {
  const auto deadline = core_.next_deadline();
  if (deadline == core_deadline_) return;
  core_deadline_ = deadline;
  core_timer_.cancel();
  if (!deadline) return;
  core_timer_.expires_at(to_steady(*deadline));
  core_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    core_deadline_.reset();
    apply(core::TimePassed{});
  });
}

// ---- other wishes ------------------------------------------------------------------------------------------

struct JobQueue::Changing {
  std::vector<JobId> jobs;
  Change change;
  std::function<void(Result<std::vector<JobId>>)> reply;
  std::vector<JobId> changed;
  std::size_t next = 0;
  Status status;
};

void JobQueue::change(std::vector<JobId> jobs, const Change& change,
                      std::function<void(Result<std::vector<JobId>>)> reply) {
  if (!is_open_) return reply(base::fail(Code::kUnavailable, unavailable_));
  change_some(std::make_shared<Changing>(
      Changing{.jobs = std::move(jobs), .change = change, .reply = std::move(reply), .changed = {}, .status = {}}));
}

void JobQueue::change_some(std::shared_ptr<Changing> work) {
  std::vector<core::Command> commands;
  const std::size_t end = std::min(work->jobs.size(), work->next + kChangedAtOnce);
  for (; work->next < end; ++work->next) {
    const JobId job = work->jobs[work->next];
    if (change_now(job, work->change, commands)) work->changed.push_back(job);
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

bool JobQueue::change_now(JobId job, const Change& change, std::vector<core::Command>& all) {
  if (!owners_.contains(job)) return false;
  std::vector<core::Command> commands;
  switch (change.kind) {
    case Change::Kind::kCancel: apply_now(core::CancelAsked{job}, commands); break;
    case Change::Kind::kHold: apply_now(core::HoldAsked{job}, commands); break;
    case Change::Kind::kRelease: apply_now(core::ReleaseAsked{job}, commands); break;
    case Change::Kind::kPriority:
      apply_now(core::PriorityAsked{job, change.priority, change.by_admin}, commands);
      break;
  }
  const bool changed = std::any_of(commands.begin(), commands.end(), [job](const core::Command& command) {
    return std::visit([job]<class C>(const C& c) { return c.job == job; }, command);
  });
  all.insert(all.end(), commands.begin(), commands.end());
  if (changed && change.kind == Change::Kind::kPriority) {
    if (const auto at = standing(job)) runs_->set_priority(job, at->capped);
  }
  return changed;
}

// One that was lost and waits to run again is not.
bool JobQueue::is_started(JobId job) const {
  const auto at = standing(job);
  return at && at->state != JobState::kHeld && at->state != JobState::kQueued && at->state != JobState::kStarting;
}

void JobQueue::wait(JobId job, bool until_started, Duration patience, std::function<void()> callback) {
  const auto owner = owners_.find(job);
  if (owner == owners_.end() || (until_started && is_started(job))) {
    asio::post(io_, std::move(callback));
    return;
  }
  auto waiter = std::make_shared<Waiter>(Waiter{job, until_started, std::move(callback)});
  waiters_.emplace(job, waiter);
  auto timer = std::make_shared<asio::steady_timer>(io_, patience);
  timer->async_wait(
      [this, alive = alive_, weak = std::weak_ptr(waiter), timer](const boost::system::error_code& error) {
        const auto late = weak.lock();
        if (error || !*alive || !late) return;
        const auto [first, last] = waiters_.equal_range(late->job);
        const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second == late; });
        if (found == last) return;
        waiters_.erase(found);
        late->callback();
      });
}

void JobQueue::wake(JobId job, bool is_done) {
  std::vector<std::shared_ptr<Waiter>> woken;
  for (auto [at, last] = waiters_.equal_range(job); at != last;) {
    if (is_done || at->second->until_started) {
      woken.push_back(std::move(at->second));
      at = waiters_.erase(at);
    } else {
      ++at;
    }
  }
  for (const auto& waiter : woken) asio::post(io_, waiter->callback);
}

void JobQueue::put_value(std::string key, std::string value, std::function<void(Status)> reply) {
  if (!is_open_) return reply(base::fail(Code::kUnavailable, unavailable_));
  std::vector<store::Change> changes;
  changes.push_back(store::PutValue{std::move(key), std::move(value)});
  commits_->hand_in(std::move(changes),
                    [this, alive = alive_, reply = std::move(reply)](Result<std::vector<store::Applied>> applied) {
                      Status status = applied ? Status() : Status(tl::unexpected(applied.error()));
                      asio::post(io_, [alive, reply, status = std::move(status)] {
                        if (*alive) reply(status);
                      });
                    });
}

std::int32_t JobQueue::granted_priority(uid_t uid, const std::string& run) const {
  const auto own = limits_.find(uid);
  const core::UserLimits& limits = own != limits_.end() ? own->second : core_settings_.limits;
  if (runs_ == nullptr || run.empty() || limits.priority_cap.is_unlimited()) return 0;
  std::int32_t granted = 0;
  runs_->for_each_run([&](JobId job, uid_t owner, const std::string& name) {
    if (owner != uid || name != run) return;
    if (const auto at = standing(job)) granted = at->capped;
  });
  return granted;
}

void JobQueue::set_paused(bool is_paused, std::function<void(Status)> reply) {
  put_value("paused", is_paused ? "1" : "", [this, is_paused, reply = std::move(reply)](const Status& status) {
    if (status) {
      is_paused_ = is_paused;
      if (is_paused) {
        apply(core::SchedulingHeld{});
      } else {
        apply(core::SchedulingAllowed{});
      }
    }
    reply(status);
  });
}

void JobQueue::set_drained(base::GpuIndex gpu, bool is_drained, std::function<void(Status)> reply) {
  if (gpu.value >= gpus_.size()) return reply(base::fail(Code::kNotFound, "there is no such GPU"));
  put_value("drained/" + gpus_[gpu.value].uuid, is_drained ? "1" : "",
            [this, gpu, is_drained, reply = std::move(reply)](const Status& status) {
              if (status && is_drained) apply(core::GpuDrained{gpu});
              if (status && !is_drained) apply(core::GpuResumed{gpu});
              reply(status);
            });
}

void JobQueue::set_limits(std::uint32_t uid, std::optional<core::UserLimits> limits,
                          std::function<void(Status)> reply) {
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
                apply(core::UserLimitsChanged{uid, limits});
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
  for (const core::UserUsage& usage : core_.usage(clock_.now())) {
    std::uint64_t& saved = saved_usage_[usage.uid];
    if (saved == usage.gpu_microseconds) continue;
    saved = usage.gpu_microseconds;
    changes.push_back(store::PutUsage{usage.uid, usage.gpu_microseconds, now});
  }
  if (!changes.empty()) commits_->hand_in(std::move(changes), nullptr);
}

void JobQueue::prune() {
  const store::Prune wanted{.ended_before = wall_now() - config_.history.count()};
  std::vector<store::Change> changes;
  changes.push_back(wanted);
  commits_->hand_in(std::move(changes),
                    [this, alive = alive_, most = wanted.at_most](const Result<std::vector<store::Applied>>& applied) {
                      // As many as allowed: there may be more.
                      if (!applied || applied->empty() || applied->front().pruned < most) return;
                      asio::post(io_, [this, alive] {
                        if (*alive) prune();
                      });
                    });
}

// Of each user no more than so many stay: else one could fill the disk with jobs that are cancelled at once.
void JobQueue::prune_users() {
  if (config_.max_history.is_unlimited()) return;
  asio::post(pool_, [this, most = config_.max_history.value()] {
    const auto crowded = store_->with_more_done_than(most);
    if (!crowded) return;
    for (const auto& [uid, more] : *crowded) {
      store::Prune prune{.ended_before = std::numeric_limits<store::WallTime>::max(), .uid = uid};
      for (std::uint64_t left = more; left > 0; left -= prune.at_most) {
        prune.at_most = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, store::Prune{}.at_most));
        std::vector<store::Change> changes;
        changes.push_back(prune);
        commits_->hand_in(std::move(changes), nullptr);
      }
    }
  });
}

}  // namespace gpumux::daemon
