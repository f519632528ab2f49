// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/stream.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <atomic>
#include <thread>
#include <utility>

#include "sim/cuda/context.h"

namespace gpumux::sim {
namespace {

std::atomic<std::uint64_t> next_stream_id{1};

}  // namespace

void start_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([name, body = std::move(body)] {
    ::pthread_setname_np(::pthread_self(), name);
    constexpr unsigned long kSlackNanoseconds = 1000;
    ::prctl(PR_SET_TIMERSLACK, kSlackNanoseconds, 0, 0, 0);
    body();
  });
  thread.detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Stream::Stream(std::shared_ptr<Context> context, unsigned flags, int priority, bool blocking)
    : context_(std::move(context)),
      flags_(flags),
      priority_(priority),
      blocking_(blocking),
      id_(next_stream_id.fetch_add(1)) {}

std::shared_ptr<Completion> Stream::tail() const {
  const std::lock_guard lock(mutex_);
  return tail_;
}

bool Stream::push(Operation& operation) {
  const std::lock_guard lock(mutex_);
  if (queue_.size() >= kQueueDepth) return false;
  const bool idle = queue_.empty() && (tail_ == nullptr || tail_->done());
  tail_ = operation.done;
  // Recording an event or waiting for one needs no thread when nothing is under way.
  if (idle && !operation.run && !operation.run_broken) {
    bool waits = false;
    for (const auto& before : operation.after) waits = waits || !before->done();
    if (!waits) {
      operation.done->finish(now());
      return true;
    }
  }
  queue_.push_back(std::move(operation));
  if (!started_) {
    started_ = true;
    start_thread("sim stream", [self = shared_from_this()] { self->run(); });
  }
  wakes_worker_.notify_one();
  return true;
}

void Stream::wait_for_room() {
  std::unique_lock lock(mutex_);
  has_room_.wait(lock, [this] { return queue_.size() < kQueueDepth; });
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  wakes_worker_.notify_one();
}

bool Stream::over() const {
  const std::lock_guard lock(mutex_);
  return closed_ && (tail_ == nullptr || tail_->done());
}

void Stream::execute(Operation& operation, Worker& worker) {
  for (const auto& before : operation.after) {
    if (before->done()) continue;
    worker.let_go();
    before->wait();
  }
  worker.begin();
  if (context_->error() != cuda::CUDA_SUCCESS) {
    if (operation.run_broken) operation.run_broken(worker);
  } else if (operation.run) {
    const cuda::CUresult result = operation.run(worker);
    if (result != cuda::CUDA_SUCCESS) context_->fail(result);
  }
}

void Stream::run() {
  Worker worker;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty() && !closed_) {
      lock.unlock();
      worker.let_go();
      lock.lock();
      wakes_worker_.wait(lock, [this] { return !queue_.empty() || closed_; });
    }
    if (queue_.empty()) return;
    Operation& operation = queue_.front();  // a deque keeps its elements in place while others are added
    lock.unlock();
    execute(operation, worker);
    const std::shared_ptr<Completion> done = std::move(operation.done);
    // The operation lets go of what it holds (memory, functions) before any thread hears that it is over.
    operation = Operation();
    lock.lock();
    queue_.pop_front();
    has_room_.notify_all();
    if (queue_.empty()) {
      lock.unlock();
      worker.let_go();
      lock.lock();
    }
    done->finish(worker.time());
  }
}

}  // namespace gpumux::sim
