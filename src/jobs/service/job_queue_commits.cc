// SPDX-License-Identifier: Apache-2.0
// The line of batches between the job core and the store. The store takes a batch's changes; then the queue carries out
// the batch's commands. Batches leave the line in the order in which they came.
//
// A batch whose commit fails takes its new jobs back. The rows of its other jobs go to the store again with or before
// the next batch, as they are then.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <exception>

#include "jobs/service/job_queue.h"
#include "jobs/service/job_why.h"
#include "server/loop/log.h"

namespace gpumux::jobs {
namespace {

namespace asio = boost::asio;
using base::Duration;
using base::Result;
using base::Status;
using namespace std::chrono_literals;

// A guess: a full disk is seen to have room again this late at the latest, and each try is one commit. Every batch in
// between tries, too. A job that was to start tries again by itself (kStartRetry of the core).
constexpr Duration kStoreRetry = 1s;

}  // namespace

// Does to the job's row what a Record or RecordRequest says, with all else that is known by now.
void JobQueue::change_row(const Command& command, Batch& batch) {
  const auto* record = std::get_if<Record>(&command);
  const auto* asked = std::get_if<RecordRequest>(&command);
  if (record == nullptr && asked == nullptr) return;
  const JobId job = record != nullptr ? record->job : asked->job;
  const auto owner = owners_.find(job);
  if (owner == owners_.end()) return;
  store::Update& row = owner->second.row;
  Write& write = batch.rows[job];
  if (asked != nullptr) {
    row.request = asked->request;
    return;
  }
  tell_state(job, record->state);
  row.core = *record;
  const auto end = ends_.find(job);
  const bool is_of_this_attempt = end != ends_.end() && end->second.attempt == record->attempt;
  if (record->state == JobState::kDone) {
    if (record->outcome == Outcome::kDependencyFailed) row.note = broken_text(*this, *record);
    row.ended_at = is_of_this_attempt && end->second.end.ended_at != 0 ? end->second.end.ended_at : wall_now();
    if (is_of_this_attempt) {
      row.exit_status = end->second.end.exit_status;
      row.note = end->second.end.note;
    }
  } else if (is_of_this_attempt) {
    // It was lost, and runs again.
    notes_[job] = end->second.end.note;
  }
  if (is_of_this_attempt) {
    write.ended_attempts.push_back(record->attempt);
    ends_.erase(end);
  }
}

void JobQueue::hand_over(std::vector<Command> commands, std::vector<store::Insert> inserts,
                         std::function<void(Status)> after) {
  core_timer_.update();
  auto batch = std::make_shared<Batch>();
  for (const Command& command : commands) change_row(command, *batch);
  std::vector<store::Change> changes;
  changes.reserve(batch->rows.size());
  for (store::Insert& insert : inserts) {
    static_cast<store::Progress&>(insert.job) = owners_.at(insert.job.spec.id).row;
    batch->rows[insert.job.spec.id].is_insert = true;
    changes.emplace_back(std::move(insert));
  }
  // An unsaved row that has changed again goes with this batch alone: its newest facts are of this batch.
  for (auto& [job, write] : batch->rows) absorb_unsaved(job, write);
  hand_over_unsaved();
  if (batch->rows.empty() && commands.empty() && !after) return;
  batch->commands = std::move(commands);
  batch->after = std::move(after);
  hand_in(batch, std::move(changes));
}

void JobQueue::tell_state(JobId job, JobState state) {
  const auto found = owners_.find(job);
  if (found == owners_.end() || found->second.row.core.state == state) return;
  Owner& owner = found->second;
  const base::TimePoint now = clock_.now();
  node_->changed({.job = job,
                  .uid = owner.uid,
                  .name = owner.name,
                  .at = now,
                  .before = owner.row.core.state,
                  .lasted = now - owner.state_since,
                  .now = state});
  owner.row.core.state = state;
  owner.state_since = now;
}

// In parts of their own, which find room on a full disk.
void JobQueue::hand_over_unsaved() {
  while (!unsaved_.empty()) {
    auto batch = std::make_shared<Batch>();
    while (!unsaved_.empty() && batch->rows.size() < kChangedAtOnce)
      batch->rows.insert(unsaved_.extract(unsaved_.begin()));
    hand_in(batch, {});
  }
}

// The job's unsaved row, if there is one, is no newer than this one, and need not be written itself.
void JobQueue::absorb_unsaved(JobId job, Write& write) {
  const auto unsaved = unsaved_.extract(job);
  if (!unsaved) return;
  const auto& ended = unsaved.mapped().ended_attempts;
  write.ended_attempts.insert(write.ended_attempts.end(), ended.begin(), ended.end());
}

// `changes`: its Inserts.
void JobQueue::hand_in(const std::shared_ptr<Batch>& batch, std::vector<store::Change> changes) {
  for (auto& [job, write] : batch->rows) {
    const store::Update& row = owners_.at(job).row;
    write.is_end = row.core.state == JobState::kDone;
    if (!write.is_insert) changes.emplace_back(row);
  }
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
  if (!status) server::log_error("jobs could not be stored", {{"why", status.error().message()}});
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
  for (const auto& [job, write] : batch.rows)
    whatever_happens([&, job = job, &write = write] { finish_row(job, write, stored.has_value()); });
  if (!unsaved_.empty()) retry_timer_.arm_in(kStoreRetry);
  const auto is_taken_back = [&](JobId job) {
    const auto found = batch.rows.find(job);
    return !stored && found != batch.rows.end() && found->second.is_insert;
  };
  for (const Command& command : batch.commands) {
    const auto* start = std::get_if<Start>(&command);
    if (start == nullptr || !is_taken_back(start->job)) whatever_happens([&] { carry_out(command, stored); });
  }
  for (const auto& [job, write] : batch.rows) {
    if (!is_taken_back(job)) continue;
    whatever_happens([this, job = job] {
      tell_state(job, JobState::kDone);
      forget_job(job);
      apply(Withdrawn{job});
    });
  }
  if (batch.after) whatever_happens([&] { batch.after(stored); });
}

// Batches before it in the line have no newer row of the job, and are finished.
void JobQueue::finish_row(JobId job, Write write, bool is_stored) {
  const auto owner = owners_.find(job);
  const bool is_there = owner != owners_.end();  // otherwise it was taken back, or another batch has stored its end
  absorb_unsaved(job, write);
  if (is_there && !is_stored) {
    if (!write.is_insert) unsaved_[job] = write;
    return;
  }
  if (is_there && write.is_end) {
    ++outcomes_[owner->second.row.core.outcome];
    forget_job(job);
  }
  for (const std::uint32_t attempt : write.ended_attempts) runs_->forget(job, attempt);
}

}  // namespace gpumux::jobs
