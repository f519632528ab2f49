// SPDX-License-Identifier: Apache-2.0
// A library to preload that takes the kernel module's part: it grants every channel group the time slice that it is
// told, and writes each, in microseconds, as a line into the file that KERNEL_MODULE_LOG names.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "cuda/resource_manager_abi.h"

namespace {

using gpumux::cuda::NVOS54_PARAMETERS;

void grant(NVOS54_PARAMETERS& control) {
  const char* const path = std::getenv("KERNEL_MODULE_LOG");
  const int file = path == nullptr ? -1 : ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file >= 0) {
    const auto slice = reinterpret_cast<const gpumux::cuda::NVA06C_CTRL_TIMESLICE_PARAMS*>(control.params);
    ::dprintf(file, "%llu\n", static_cast<unsigned long long>(slice->timesliceUs));
    ::close(file);
  }
  control.status = gpumux::cuda::NV_OK;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (request == gpumux::cuda::kRmControl) {
    auto& control = *static_cast<NVOS54_PARAMETERS*>(argument);
    if (control.cmd == gpumux::cuda::NVA06C_CTRL_CMD_SET_TIMESLICE) {
      grant(control);
      return 0;
    }
  }
  return static_cast<int>(::syscall(SYS_ioctl, descriptor, request, argument));
}
