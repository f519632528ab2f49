// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/host_thread.h"

#include <utility>

#include "sim/cuda/stream.h"

namespace gpumux::sim {

void HostThread::call(std::function<void()> function) {
  auto done = std::make_shared<Completion>();
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back({std::move(function), done});
    if (!started_) {
      started_ = true;
      start_thread("sim callbacks", [self = shared_from_this()] { self->run(); });
    }
    changed_.notify_one();
  }
  done->wait();
}

void HostThread::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_one();
}

void HostThread::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !calls_.empty() || closed_; });
    if (calls_.empty()) return;
    Call call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call.function();
    call.function = nullptr;
    call.done->finish(now());
    lock.lock();
  }
}

}  // namespace gpumux::sim
