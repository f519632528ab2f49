// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/lock_modes.h"

#include <algorithm>

namespace gpumux::shim {

void LockModes::entered(std::uint32_t slot, base::TimePoint now) {
  const base::Locked locked(mutex_);
  Lock& lock = locks_[slot];
  if (!lock.is_locked) lock = Lock{.is_locked = true, .since = now};
}

bool LockModes::wants_synchronisation(std::uint32_t slot, base::TimePoint now) {
  const base::Locked locked(mutex_);
  Lock& lock = locks_[slot];
  // Another thread has synchronised between this one's submission and now, and that has given the GPU up.
  if (!lock.is_locked) return false;
  ++lock.submissions;
  if (settings_->always) return true;
  if (settings_->held.count() != 0) return now - lock.since >= settings_->held;
  return lock.submissions >= std::max(settings_->submissions, 1u);
}

bool LockModes::synchronised(std::uint32_t slot, base::TimePoint now) {
  const base::Locked locked(mutex_);
  Lock& lock = locks_[slot];
  if (!lock.is_locked) return false;
  lock.submissions = 0;
  lock.since = now;
  if (lock.skipped++ < settings_->skips) return false;
  lock = Lock{};
  return true;
}

bool LockModes::is_locked(std::uint32_t slot) {
  const base::Locked locked(mutex_);
  return locks_[slot].is_locked;
}

}  // namespace gpumux::shim
