// SPDX-License-Identifier: Apache-2.0
// The streams that a program has begun to capture, in all contexts. Nearly always there are none, and a submission asks
// only that. A capture lasts until the driver says that its stream captures no more, or until stream or context are
// gone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/lock.h"
#include "cuda/abi.h"
#include "gate/stream_name.h"

namespace gpumux::shim {

class Captures {
 public:
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

  // The contexts that captures began in.
  std::vector<cuda::CUcontext> contexts() {
    const base::Locked locked(mutex_);
    std::vector<cuda::CUcontext> found;
    for (const gate::StreamName& origin : origins_) found.push_back(origin.context);
    return found;
  }

  // Before the call that begins one in that stream. A call that fails is followed by end.
  void begin(const gate::StreamName& origin) {
    const base::Locked locked(mutex_);
    origins_.push_back(origin);
    count_.store(origins_.size(), std::memory_order_relaxed);
  }
  // Nothing happens if no capture was begun there.
  void end(const gate::StreamName& origin) {
    const base::Locked locked(mutex_);
    const auto found = std::find(origins_.begin(), origins_.end(), origin);
    if (found == origins_.end()) return;
    origins_.erase(found);
    count_.store(origins_.size(), std::memory_order_relaxed);
  }
  void stream_gone(cuda::CUstream stream) {
    erase([stream](const gate::StreamName& origin) { return origin.stream == stream; });
  }
  void context_gone(cuda::CUcontext context) {
    erase([context](const gate::StreamName& origin) { return origin.context == context; });
  }

 private:
  template <class Is>
  void erase(Is is) {
    const base::Locked locked(mutex_);
    std::erase_if(origins_, is);
    count_.store(origins_.size(), std::memory_order_relaxed);
  }

  base::Mutex mutex_;
  std::vector<gate::StreamName> origins_ GPUMUX_GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};
};

}  // namespace gpumux::shim
