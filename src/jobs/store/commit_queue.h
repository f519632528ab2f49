// SPDX-License-Identifier: Apache-2.0
// Group commit: everything that is handed in while the disk is busy becomes the next commit.
//
// A durable write costs the disk's time, some milliseconds, however little it writes. So one thread writes, and the
// event loop never waits. It hands in changes with a callback for when they are durable, and goes on. Handed in by one
// client after the other, eight submissions cost one wait for the disk, not eight. Nothing is delayed to make batches
// larger: a change that finds the disk idle is written at once.
//
// Changes become durable in the order in which they are handed in. Changes that are handed in together are committed
// together. If a commit fails, each of its parts is tried by itself, in order. So a part that is too large, or a name
// that is taken, fails alone. On a full disk all of them fail, each with its reason.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "jobs/store/job_store.h"

namespace gpumux::jobs::store {

// Changes of one commit at most: keeps the time that the first of a long line waits for the last within some tens of
// milliseconds.
inline constexpr std::size_t kMaxCommitChanges = 2048;

class CommitQueue {
 public:
  // Called on the queue's thread: to be passed on to the loop, and quick. Not called for dropped changes.
  using Done = std::function<void(Result<std::vector<Applied>>)>;

  // `store` outlives it.
  explicit CommitQueue(JobStore& store);
  // Commits all changes that were handed in, then ends.
  ~CommitQueue();
  CommitQueue(const CommitQueue&) = delete;
  CommitQueue& operator=(const CommitQueue&) = delete;

  // From any thread. `done` may be empty.
  void hand_in(std::vector<Change> changes, Done done);

  // Waits until everything that was handed in before is durable or has failed. Not on the queue's thread.
  void drain();

 private:
  struct Part {
    std::vector<Change> changes;
    Done done;
  };
  void run();
  void write(std::deque<Part>& parts);

  JobStore& store_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<Part> waiting_;
  std::uint64_t in_work_ = 0;  // parts that are being written
  bool ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gpumux::jobs::store
