// SPDX-License-Identifier: Apache-2.0
// A thread of ours in a process that is not: all signals are blocked in it, for they are the program's.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "base/result.h"

namespace gpumux::os {

class Thread {
 public:
  // Calls `(owner->*kRun)()` on a new thread. `failure`: the text of the error.
  template <auto kRun, class Owner>
  base::Status start(Owner* owner, const char* failure) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const auto main = [](void* self) -> void* {
      (static_cast<Owner*>(self)->*kRun)();
      return nullptr;
    };
    const int result = pthread_create(&thread_, nullptr, main, owner);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (result != 0) return base::fail_errno(result, failure);
    is_started_ = true;
    return {};
  }
  bool is_started() const { return is_started_; }
  // REQUIRES: is_started.
  void join() {
    pthread_join(thread_, nullptr);
    is_started_ = false;
  }

 private:
  pthread_t thread_{};
  bool is_started_ = false;
};

}  // namespace gpumux::os
