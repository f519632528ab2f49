// SPDX-License-Identifier: Apache-2.0
// The thread on which a context calls the program's host functions, one after the other. A function that waits for ever
// holds up this context's later ones, as with the real driver, but no stream that has none.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "sim/cuda/completion.h"

namespace gpumux::sim {

class HostThread : public std::enable_shared_from_this<HostThread> {
 public:
  // Calls `function` on the thread and returns when it has returned.
  void call(std::function<void()> function);
  // The thread ends when nothing is left to call.
  void close();

 private:
  void run();

  struct Call {
    std::function<void()> function;
    std::shared_ptr<Completion> done;
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  bool started_ = false;
  bool closed_ = false;
};

}  // namespace gpumux::sim
