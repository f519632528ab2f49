// SPDX-License-Identifier: Apache-2.0
// Streams: queues of operations, each executed in order by a thread of its own.
//
// An operation's waits beyond its own queue (events, the legacy default stream) are a list of Completions that is fixed
// when it is submitted. All of these were submitted before, so waiting for them cannot go in a circle.
//
// A stream's thread is started by its first operation, not before, and ends when the stream was closed and its queue is
// empty. It is detached and owns a reference to its stream.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/completion.h"
#include "sim/cuda/worker.h"

namespace gpumux::sim {

class Context;
struct Capture;
struct GraphNode;

// Operations that a stream holds; a launch into a full one waits, as with the real driver.
inline constexpr std::size_t kQueueDepth = 1024;

struct Operation {
  std::vector<std::shared_ptr<Completion>> after;
  std::function<cuda::CUresult(Worker&)> run;  // may be empty
  // Called when the context is broken instead of `run`; for messages that must be given in any case. May be empty.
  std::function<void(Worker&)> run_broken;
  std::shared_ptr<Completion> done;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, unsigned flags, int priority, bool blocking);

  const std::shared_ptr<Context>& context() const { return context_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  bool blocking() const { return blocking_; }  // takes part in the legacy stream's synchronisation
  std::uint64_t id() const { return id_; }

  // The last operation's completion; null or done: nothing is under way.
  std::shared_ptr<Completion> tail() const;
  // Takes the operation unless the queue is full (false). The context serialises submissions to all its streams.
  bool push(Operation& operation);
  // Waits until the queue has room.
  void wait_for_room();
  // No more operations come; the thread ends when all are done.
  void close();
  // Closed, and all done.
  bool over() const;

  // Capture state; guarded by the capture lock (capture.h).
  std::shared_ptr<Capture> capture;
  std::vector<GraphNode*> capture_tail;

 private:
  void run();
  void execute(Operation& operation, Worker& worker);

  const std::shared_ptr<Context> context_;
  const unsigned flags_;
  const int priority_;
  const bool blocking_;
  const std::uint64_t id_;

  mutable std::mutex mutex_;
  std::condition_variable wakes_worker_;
  std::condition_variable has_room_;
  std::deque<Operation> queue_;  // the front one is being executed
  std::shared_ptr<Completion> tail_;
  bool started_ = false;
  bool closed_ = false;
};

// Starts a detached thread that takes none of the program's signals and sleeps precisely.
void start_thread(const char* name, std::function<void()> body);

}  // namespace gpumux::sim
