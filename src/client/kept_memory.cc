// SPDX-License-Identifier: Apache-2.0
#include "client/kept_memory.h"

#include <fcntl.h>

#include <utility>

#include "base/no_fork.h"

namespace gpumux::client {

std::optional<std::uint64_t> KeptMemory::keep(os::FileDescriptor memory) {
  if (!memory) return std::nullopt;
  os::KeptDescriptor kept = os::KeptDescriptor::above_the_limit(std::move(memory));
  if (!kept) {
    has_space_.store(false, std::memory_order_relaxed);
    return std::nullopt;
  }
  const base::Locked locked(mutex_);
  // The kernel gives a number that is free: the program has closed the one that had it. All memory of a driver may look
  // like the same file, so nothing else would tell.
  for (auto& [number, other] : kept_) {
    if (other.has_number(kept.get())) other.forget();
  }
  kept_.emplace(++last_, std::move(kept));
  return last_;
}

void KeptMemory::freed(std::uint64_t number) {
  const base::NoFork no_fork;
  const base::Locked locked(mutex_);
  kept_.erase(number);
  has_space_.store(true, std::memory_order_relaxed);
}

int KeptMemory::descriptor(std::uint64_t number) {
  const base::Locked locked(mutex_);
  const auto found = kept_.find(number);
  const int kept = found == kept_.end() ? -1 : found->second.get();
  return kept < 0 ? -1 : ::fcntl(kept, F_DUPFD_CLOEXEC, 0);
}

std::size_t KeptMemory::count() {
  const base::Locked locked(mutex_);
  return kept_.size();
}

void KeptMemory::close_after_fork() GPUMUX_NO_THREAD_SAFETY_ANALYSIS {
  for (auto& [number, kept] : kept_) kept.reset();
}

}  // namespace gpumux::client
