// SPDX-License-Identifier: Apache-2.0
// The descriptors of GPU memory that came from the node's mover, and that chunks of this seat are made of. The seat
// needs them: the mover saves a chunk by its descriptor, and this process cannot make another one.
//
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "base/lock.h"
#include "os/file_descriptor.h"
#include "os/kept_descriptor.h"
#include "pager/frame_keeper.h"

namespace gpumux::client {

class KeptMemory final : public pager::FrameKeeper {
 public:
  // Its number. None: this process can keep no more. Called inside base::NoFork.
  std::optional<std::uint64_t> keep(os::FileDescriptor memory);
  void freed(std::uint64_t number) override;
  int descriptor(std::uint64_t number) override;
  // False after `keep` has failed, until something is freed.
  bool has_space() const { return has_space_.load(std::memory_order_relaxed); }
  std::size_t count();
  // In a forked child: the parent's memory is not to live as long as the child.
  void close_after_fork();

 private:
  base::Mutex mutex_;
  // A forked child reads it without the mutex. So it changes only inside base::NoFork.
  std::map<std::uint64_t, os::KeptDescriptor> kept_ GPUMUX_GUARDED_BY(mutex_);
  std::uint64_t last_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> has_space_{true};
};

}  // namespace gpumux::client
