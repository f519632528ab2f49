// SPDX-License-Identifier: Apache-2.0
// Stops one kind of a context's work, its kernels or its copies, in the middle, and lets it go on.
//
// A stream's thread says when it runs such work: it enters, and it leaves at least every few 100 us. While the work is
// frozen no thread enters. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gpumux::sim {

class Freezer {
 public:
  bool is_frozen() const { return frozen_.load(std::memory_order_acquire); }  // pairs with freeze and thaw

  // False while frozen. Otherwise the caller runs until it leaves; it may enter several times.
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (is_frozen()) return false;
    ++running_;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--running_ == 0 && is_frozen()) changed_.notify_all();
  }
  // REQUIRES: the caller has not entered; a freeze would wait for it for ever.
  void wait_for_thaw() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !is_frozen(); });
  }

  void freeze() {
    const std::lock_guard lock(mutex_);
    frozen_.store(true, std::memory_order_release);  // pairs with is_frozen
  }
  // After a freeze: until no thread runs the work.
  void wait_until_still() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
  }
  void thaw() {
    const std::lock_guard lock(mutex_);
    frozen_.store(false, std::memory_order_release);  // pairs with is_frozen
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> frozen_{false};
  std::uint32_t running_ = 0;
};

}  // namespace gpumux::sim
