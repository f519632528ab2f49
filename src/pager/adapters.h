// SPDX-License-Identifier: Apache-2.0
// Network adapters that read and write GPU memory by themselves (GPUDirect RDMA).
//
// Memory that is given to one by cuMemGetHandleForAddressRange is seen, and pinned. The legacy way is not: a kernel
// module (nvidia-peermem) answers the adapter's driver, and the CUDA driver reports it nowhere. It is open to a process
// that has an adapter's device open, and to no other.
#pragma once

#include <string>

namespace gpumux::pager {

// Whether an adapter may have been given memory of this process in the legacy way. Reads /proc/self/fd where that
// module is loaded: tens of microseconds. Any thread.
bool adapters_may_use_memory();

// The same with these folders for /sys/module and /proc/self/fd.
bool adapters_may_use_memory(const std::string& modules, const std::string& descriptors);

}  // namespace gpumux::pager
