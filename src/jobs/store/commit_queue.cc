// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/commit_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpumux::jobs::store {

CommitQueue::CommitQueue(JobStore& store) : store_(store), thread_([this] { run(); }) {}

CommitQueue::~CommitQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CommitQueue::hand_in(std::vector<Change> changes, Done done) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(changes), std::move(done)});
  }
  wake_.notify_one();
}

void CommitQueue::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return waiting_.empty() && in_work_ == 0; });
}

void CommitQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    std::deque<Part> parts;
    std::size_t changes = 0;
    while (!waiting_.empty() && (parts.empty() || changes + waiting_.front().changes.size() <= kMaxCommitChanges)) {
      changes += waiting_.front().changes.size();
      parts.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    in_work_ = parts.size();
    lock.unlock();
    write(parts);
    lock.lock();
    in_work_ = 0;
    if (waiting_.empty()) idle_.notify_all();
  }
}

void CommitQueue::write(std::deque<Part>& parts) {
  if (parts.size() > 1) {
    // Moved there and back: documents are large.
    std::vector<Change> all;
    std::vector<std::size_t> sizes;
    for (Part& part : parts) {
      sizes.push_back(part.changes.size());
      std::move(part.changes.begin(), part.changes.end(), std::back_inserter(all));
    }
    if (Result<std::vector<Applied>> applied = store_.commit(all)) {
      auto next = applied->begin();
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto end = next + static_cast<std::ptrdiff_t>(sizes[i]);
        if (parts[i].done) parts[i].done(std::vector<Applied>(next, end));
        next = end;
      }
      return;
    }
    // Each part is tried by itself, which shows whose fault it is.
    auto from = all.begin();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto end = from + static_cast<std::ptrdiff_t>(sizes[i]);
      parts[i].changes.assign(std::move_iterator(from), std::move_iterator(end));
      from = end;
    }
  }
  for (Part& part : parts) {
    Result<std::vector<Applied>> applied = store_.commit(part.changes);
    if (part.done) part.done(std::move(applied));
  }
}

}  // namespace gpumux::jobs::store
