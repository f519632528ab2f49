// SPDX-License-Identifier: Apache-2.0
// How long the GPU runs this process's work before it turns to another process's that waits: its time slice.
//
// Two processes' work runs at once where one's last submissions drain while the other starts, and where all may run at
// once. Then the GPU gives each a time slice in turn, and the driver gives all the same one. A kernel that takes
// milliseconds so halves the speed of whoever is more important for as long as it runs; with 0.2 ms of each 10 it
// leaves him nineteen twentieths: most of the rest goes into changing contexts, which takes 0.2 ms.
//
// libcuda sets the slice of each channel group that it makes by a control call to the kernel module, about itself and
// without privilege. We see that call pass (replace_import: libcuda's ioctl goes through us, nobody else's does) and
// make the same one again with another number, or with libcuda's number to undo it. Nothing else of that interface is
// used or relied on: where libcuda makes no such call, or it is refused, slices stay as the driver has them, and all
// that depends on them is how fast things are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/lock.h"
#include "cuda/driver.h"

namespace gpumux::shim {

class TimeSlices {
 public:
  using Ioctl = int (*)(int descriptor, unsigned long request, void* argument);

  // `call` makes the control calls.
  explicit constexpr TimeSlices(Ioctl call) : call_(call) {}
  TimeSlices(const TimeSlices&) = delete;
  TimeSlices& operator=(const TimeSlices&) = delete;

  // libcuda has made that call, with that result.
  void seen(int descriptor, unsigned long request, const void* argument, int result);

  // The slice of all of this process's work, what is yet to come included; zero: what libcuda chose. Not on a thread
  // that must not wait: the kernel module may be busy with another call. Returns of how many channel groups it has been
  // changed.
  std::size_t set(base::Duration slice);

  // Whether libcuda has made any such call. False where a context has been made: it makes none, or past us.
  bool have_been_seen();

  // In a forked child: what the parent has is not its own.
  void forget();

 private:
  struct Group {
    int descriptor = -1;
    std::uint32_t client = 0;
    std::uint32_t object = 0;
    std::uint64_t chosen_us = 0;  // by libcuda
    std::uint64_t now_us = 0;
  };
  // One for each context, as a rule. More than these at a time keep the driver's slice.
  static constexpr std::size_t kMostGroups = 64;

  bool change(Group& group, std::uint64_t slice_us) const;
  template <class Predicate>
  void remove_if(const Predicate& is_gone);

  const Ioctl call_;
  base::Mutex mutex_;
  std::uint64_t wanted_us_ = 0;
  std::array<Group, kMostGroups> groups_{};
  std::size_t count_ = 0;
  bool have_been_seen_ = false;
};

// This process's.
TimeSlices& time_slices();

// Once, before a context is made: from now on that driver's control calls are seen.
void watch_time_slices(const cuda::Driver& driver);

}  // namespace gpumux::shim
