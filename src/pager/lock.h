// SPDX-License-Identifier: Apache-2.0
// A mutex and a condition for code that must not throw, end its host or need more than the C library.
#pragma once

#include <pthread.h>

namespace gpumux::pager {

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

  // Sleeps until somebody calls wake_all; the mutex is free meanwhile. Wakes for no reason, too.
  void wait() { pthread_cond_wait(&condition_, &mutex_); }
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

class Locked {
 public:
  explicit Locked(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Locked() { mutex_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  Mutex& mutex_;
};

// Lets go of a held mutex for a while.
class Unlocked {
 public:
  explicit Unlocked(Mutex& mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~Unlocked() { mutex_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace gpumux::pager
