// SPDX-License-Identifier: Apache-2.0
// The line of batches between the job core and the store. The store takes a batch's changes; then the queue carries out
// the batch's commands. Batches leave the line in the order in which they came.
//
// A batch whose commit fails takes its new jobs back. Its other changes are kept, and go to the store again before the
// next batch.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>
#include <span>
#include <tuple>

#include "jobs/service/job_queue.h"
#include "jobs/service/job_why.h"
#include "server/loop/log.h"

namespace gpumux::jobs {
namespace {

namespace asio = boost::asio;
namespace core = jobs;
using base::Duration;
using base::Result;
using base::Status;
using core::JobId;
using core::JobState;
using namespace std::chrono_literals;

// A guess: a full disk is seen to have room again this late, and each try is one commit.
constexpr Duration kStoreRetry = 1s;

// The fields that an update may set.
constexpr auto kFields =
    std::tuple(&store::Update::core, &store::Update::started_at, &store::Update::ended_at, &store::Update::exit_status,
               &store::Update::note, &store::Update::request, &store::Update::gpu_order);

template <class Each>
void for_each_field(Each each) {
  std::apply([&](const auto... field) { (each(field), ...); }, kFields);
}

// The later of two updates of one job says what holds.
void merge(store::Update& target, const store::Update& later) {
  for_each_field([&](auto field) {
    if (later.*field) target.*field = later.*field;
  });
}

// Drops the fields that a later update of the same job sets, so that the earlier values do not return.
void leave_to(store::Update& target, const store::Update& later) {
  for_each_field([&](auto field) {
    if (later.*field) (target.*field).reset();
  });
}

bool says_nothing(const store::Update& update) {
  bool is_empty = true;
  for_each_field([&](auto field) { is_empty = is_empty && !(update.*field); });
  return is_empty;
}

}  // namespace

store::Update JobQueue::update_of(const core::Record& record, Batch& batch) {
  store::Update update;
  update.job = record.job;
  update.core = record;
  const auto end = ends_.find(record.job);
  const bool is_of_this_attempt = end != ends_.end() && end->second.attempt == record.attempt;
  if (const auto started = started_at_.extract(record.job)) update.started_at = started.mapped();
  if (record.state == JobState::kDone) {
    if (const auto owner = owners_.find(record.job); owner != owners_.end()) owner->second.outcome = record.outcome;
    if (record.outcome == core::Outcome::kDependencyFailed) update.note = broken_text(*this, record);
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
  core_timer_.update();
  // Updates that an earlier commit could not store go first: this one may be about the same jobs.
  hand_over_unsaved();
  auto batch = std::make_shared<Batch>();
  if (after) batch->after.push_back(std::move(after));
  std::vector<store::Change> changes;
  std::map<JobId, store::Insert*> is_new;
  for (store::Insert& insert : inserts) is_new[insert.job.spec.id] = &insert;
  for (const core::Command& command : commands) {
    if (const auto* asked = std::get_if<core::RecordRequest>(&command)) {
      store::Update update;
      update.job = asked->job;
      update.request = asked->request;
      if (const auto order = gpu_orders_.extract(asked->job)) update.gpu_order = order.mapped();
      batch->updates.push_back(update);
      changes.push_back(std::move(update));
    }
    const auto* record = std::get_if<core::Record>(&command);
    if (record == nullptr) continue;
    tell_state(record->job, record->state);
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

void JobQueue::tell_state(JobId job, JobState state) {
  const auto found = owners_.find(job);
  if (found == owners_.end() || found->second.state == state) return;
  Owner& owner = found->second;
  const base::TimePoint now = clock_.now();
  node_->changed({.job = job,
                  .uid = owner.uid,
                  .name = owner.name,
                  .before = owner.state,
                  .lasted = now - owner.state_since,
                  .now = state});
  owner.state = state;
  owner.state_since = now;
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
    asio::post(io_, [this, alive, batch, status = applied.map([](const auto&) {})]() mutable {
      if (*alive) stored(batch, std::move(status));
    });
  });
}

void JobQueue::stored(const std::shared_ptr<Batch>& batch, Status status) {
  if (!status) {
    server::log_error("jobs could not be stored", {{"why", status.error().message()}});
    keep_unsaved(*batch);
  }
  batch->stored = std::move(status);
  finish_batches();
}

// In order: a later batch may undo an earlier one.
void JobQueue::finish_batches() {
  if (is_settling_) return;  // the commands hand over more batches: the loop below gets to them
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
  // An act that fails (out of memory, say) does not keep the others from their turn. Nothing between acts can fail.
  const auto whatever_happens = [](const auto& act) {
    try {
      act();
    } catch (const std::exception& e) {
      server::log_error("something of the job queue failed", {{"why", e.what()}});
    }
  };
  if (stored) {
    for (const store::Update& update : batch.updates) {
      if (!update.core || update.core->state != JobState::kDone) continue;
      ++outcomes_[update.core->outcome];
      whatever_happens([&] { forget_job(update.job); });
    }
    for (const auto& over : batch.to_forget) whatever_happens([&] { runs_->forget(over.first, over.second); });
  }
  const std::span<const JobId> taken_back(batch.inserted.data(), stored ? 0 : batch.inserted.size());
  for (const core::Command& command : batch.commands) {
    const auto* start = std::get_if<core::Start>(&command);
    if (start != nullptr && std::find(taken_back.begin(), taken_back.end(), start->job) != taken_back.end()) continue;
    whatever_happens([&] { carry_out(command, stored); });
  }
  for (const JobId job : taken_back) {
    whatever_happens([&] {
      tell_state(job, JobState::kDone);
      disown(job);
      apply(core::Withdrawn{job});
    });
  }
  for (const auto& after : batch.after) whatever_happens([&] { after(stored); });
}

// Batches behind it in the line are later, and may be stored already, or have failed before it.
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
  if (!unsaved_.empty()) retry_timer_.arm_in(kStoreRetry);
}

}  // namespace gpumux::jobs
