// SPDX-License-Identifier: Apache-2.0
#include "shim/process/time_slices.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>

#include "cuda/resource_manager_abi.h"
#include "os/imported_function.h"

namespace gpumux::shim {
namespace {

int call_kernel(int descriptor, unsigned long request, void* argument) {
  return ::ioctl(descriptor, request, argument);
}

constinit TimeSlices g_time_slices(call_kernel);

// What libcuda calls for ioctl.
int drivers_ioctl(int descriptor, unsigned long request, void* argument) {
  const int result = ::ioctl(descriptor, request, argument);
  const int error = errno;
  g_time_slices.seen(descriptor, request, argument, result);
  errno = error;
  return result;
}

}  // namespace

TimeSlices& time_slices() { return g_time_slices; }

void watch_time_slices(const cuda::Driver& driver) {
  if (driver.cuInit == nullptr) return;
  const auto inside = reinterpret_cast<const void*>(driver.cuInit);
  static_cast<void>(os::replace_import(inside, "ioctl", reinterpret_cast<const void*>(drivers_ioctl)));
}

bool TimeSlices::change(Group& group, std::uint64_t slice_us) const {
  cuda::NVA06C_CTRL_TIMESLICE_PARAMS slice{slice_us};
  cuda::NVOS54_PARAMETERS control{.hClient = group.client,
                                  .hObject = group.object,
                                  .cmd = cuda::NVA06C_CTRL_CMD_SET_TIMESLICE,
                                  .flags = 0,
                                  .params = reinterpret_cast<std::uintptr_t>(&slice),
                                  .paramsSize = sizeof slice,
                                  .status = cuda::NV_OK};
  if (call_(group.descriptor, cuda::kRmControl, &control) != 0 || control.status != cuda::NV_OK) return false;
  group.now_us = slice_us;
  return true;
}

template <class Predicate>
void TimeSlices::remove_if(const Predicate& is_gone) {
  const auto end = std::remove_if(groups_.begin(), groups_.begin() + count_, is_gone);
  count_ = static_cast<std::size_t>(end - groups_.begin());
}

void TimeSlices::seen(int descriptor, unsigned long request, const void* argument, int result) {
  // The kernel takes 32 bits of it; a program that keeps it in an int has the others set.
  if (static_cast<std::uint32_t>(request) != cuda::kRmControl || result != 0 || argument == nullptr) return;
  const auto& control = *static_cast<const cuda::NVOS54_PARAMETERS*>(argument);
  if (control.cmd != cuda::NVA06C_CTRL_CMD_SET_TIMESLICE || control.status != cuda::NV_OK) return;
  if (control.params == 0 || control.paramsSize != sizeof(cuda::NVA06C_CTRL_TIMESLICE_PARAMS)) return;
  const auto chosen_us = reinterpret_cast<const cuda::NVA06C_CTRL_TIMESLICE_PARAMS*>(control.params)->timesliceUs;
  const base::Locked locked(mutex_);
  const auto is_it = [&](const Group& group) {
    return group.client == control.hClient && group.object == control.hObject;
  };
  // A number may be that of one that is gone.
  auto known = std::find_if(groups_.begin(), groups_.begin() + count_, is_it);
  if (known == groups_.end()) {
    // Who makes a context for each piece of work would otherwise leave no room by and by.
    remove_if([&](Group& group) { return !change(group, group.now_us); });
    known = groups_.begin() + count_;
  }
  if (known == groups_.end()) return;
  const auto end = groups_.begin() + count_;
  if (known == end) ++count_;
  have_been_seen_ = true;
  *known = {.descriptor = descriptor,
            .client = control.hClient,
            .object = control.hObject,
            .chosen_us = chosen_us,
            .now_us = chosen_us};
  if (wanted_us_ != 0) change(*known, wanted_us_);
}

std::size_t TimeSlices::set(base::Duration slice) {
  const auto wanted_us = static_cast<std::uint64_t>(
      std::max<std::int64_t>(std::chrono::ceil<std::chrono::microseconds>(slice).count(), 0));
  const base::Locked locked(mutex_);
  wanted_us_ = wanted_us;
  std::size_t changed = 0;
  remove_if([&](Group& group) {
    const std::uint64_t target = wanted_us != 0 ? wanted_us : group.chosen_us;
    if (group.now_us == target) return false;
    if (!change(group, target)) return true;  // gone with its context, or not allowed
    ++changed;
    return false;
  });
  return changed;
}

bool TimeSlices::have_been_seen() {
  const base::Locked locked(mutex_);
  return have_been_seen_;
}

void TimeSlices::forget() {
  mutex_.reset_after_fork();
  count_ = 0;
  have_been_seen_ = false;
  wanted_us_ = 0;
}

}  // namespace gpumux::shim
