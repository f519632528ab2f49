// SPDX-License-Identifier: Apache-2.0
// A seat's bounds: what it may have on the GPU (its room), and what its program may have allocated in all (its
// commitment). Also what it has of both.
//
// A thread takes room before it takes physical memory. So what the driver has given never exceeds the bound that was in
// force when it was asked. A thread that lowers a bound and then reads what is used knows the most that there is. So it
// is a lock and not two atomics. It is a leaf: nothing is called under it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "base/lock.h"

namespace gpumux::pager {

class Bounds {
 public:
  static constexpr std::uint64_t kNone = UINT64_MAX;

  // A seat may use more than a new bound. It keeps that, and gets no more.
  void set(std::uint64_t room, std::uint64_t commitment) {
    const base::Locked locked(mutex_);
    room_ = room;
    commitment_ = commitment;
  }

  bool take(std::uint64_t bytes) {
    const base::Locked locked(mutex_);
    if (used_ > room_ || bytes > room_ - used_) return false;
    used_ += bytes;
    return true;
  }
  void give(std::uint64_t bytes) {
    const base::Locked locked(mutex_);
    used_ -= std::min(bytes, used_);
  }

  // Memory that counts as allocated, or will.
  enum class Part : std::uint8_t {
    kPaged,     // live allocations of the pager's, in whole blocks, on the GPU or not
    kBeside,    // other memory that never takes room (managed memory)
    kReserved,  // kept back for memory that another part makes, and that counts by itself when it is made
  };
  bool commit(std::uint64_t bytes, Part part = Part::kPaged) {
    const base::Locked locked(mutex_);
    const std::uint64_t all = std::accumulate(committed_.begin(), committed_.end(), std::uint64_t{0});
    if (all > commitment_ || bytes > commitment_ - all) return false;
    of(part) += bytes;
    return true;
  }
  void uncommit(std::uint64_t bytes, Part part = Part::kPaged) {
    const base::Locked locked(mutex_);
    of(part) -= std::min(bytes, of(part));
  }
  std::uint64_t committed(Part part = Part::kPaged) const {
    const base::Locked locked(mutex_);
    return committed_[static_cast<std::size_t>(part)];
  }

  // Physical memory that the driver has given.
  std::uint64_t used() const {
    const base::Locked locked(mutex_);
    return used_;
  }
  // Of that, how much is beyond the bound; and how much more may be taken.
  std::uint64_t excess() const {
    const base::Locked locked(mutex_);
    return used_ > room_ ? used_ - room_ : 0;
  }
  std::uint64_t left() const {
    const base::Locked locked(mutex_);
    return used_ < room_ ? room_ - used_ : 0;
  }

 private:
  std::uint64_t& of(Part part) GPUMUX_REQUIRES(mutex_) { return committed_[static_cast<std::size_t>(part)]; }

  mutable base::Mutex mutex_;
  std::uint64_t room_ GPUMUX_GUARDED_BY(mutex_) = kNone;
  std::uint64_t commitment_ GPUMUX_GUARDED_BY(mutex_) = kNone;
  std::uint64_t used_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, 3> committed_ GPUMUX_GUARDED_BY(mutex_){};
};

}  // namespace gpumux::pager
