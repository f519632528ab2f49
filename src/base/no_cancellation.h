// SPDX-License-Identifier: Apache-2.0
// A part of a call that pthread_cancel does not end. A thread that were cancelled there would leave locks locked and
// counts counted, because nothing of ours is unwound, and every other thread of the process would wait for it.
#pragma once

#include <pthread.h>

namespace gpumux::base {

// While one exists the calling thread is not cancelled, neither at a cancellation point nor asynchronously. A request
// waits until then. After that it acts at once if the thread's type is asynchronous, and otherwise at the thread's next
// cancellation point. Nests.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace gpumux::base
