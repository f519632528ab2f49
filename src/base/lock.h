// SPDX-License-Identifier: Apache-2.0
// A mutex and a condition for code that must not throw, end its host or need more than the C library. It is the one
// small lock of everything that runs in other people's processes.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>

#include "base/clock.h"
#include "base/thread_safety.h"

namespace gpumux::base {

class GPUMUX_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() GPUMUX_ACQUIRE() { pthread_mutex_lock(&mutex_); }
  void unlock() GPUMUX_RELEASE() { pthread_mutex_unlock(&mutex_); }

  // Sleeps until another thread calls wake_all; the mutex is free during the sleep. Wakes for no reason, too.
  void wait() GPUMUX_REQUIRES(this) { pthread_cond_wait(&condition_, &mutex_); }
  // The same, for about `duration` at most: by the wall clock, which may be set during the wait (the monotonic one came
  // with glibc 2.30). So it is for looking again every now and then, and not for measuring.
  void wait_for(Duration duration) GPUMUX_REQUIRES(this) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += duration.count() / kSecond;
    until.tv_nsec += duration.count() % kSecond;
    until.tv_sec += until.tv_nsec / kSecond;
    until.tv_nsec %= kSecond;
    pthread_cond_timedwait(&condition_, &mutex_, &until);
  }
  void wake_all() { pthread_cond_broadcast(&condition_); }

  // In a forked child, where the thread that held it does not exist.
  void reset_after_fork() {
    pthread_mutex_init(&mutex_, nullptr);
    pthread_cond_init(&condition_, nullptr);
  }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

class GPUMUX_SCOPED_CAPABILITY Locked {
 public:
  explicit Locked(Mutex& mutex) GPUMUX_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Locked() GPUMUX_RELEASE() { mutex_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  Mutex& mutex_;
};

// Lets go of a held mutex for a while.
class GPUMUX_SCOPED_CAPABILITY Unlocked {
 public:
  explicit Unlocked(Mutex& mutex) GPUMUX_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() GPUMUX_RELEASE() { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace gpumux::base
