// SPDX-License-Identifier: Apache-2.0
// In tests: NVIDIA's kernel module, as far as the interrupter needs it. The test chooses whether it freezes, refuses,
// or takes its time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "cuda/resource_manager_abi.h"
#include "os/system_clock.h"

namespace gpumux::shim {

// The kernel module with one GPU, as the process's only channel there sees it.
class TestKernelModule {
 public:
  static int ioctl(int, unsigned long, void* argument) {
    TestKernelModule& module = *the_module.load();
    auto& call = *static_cast<cuda::NVOS54_PARAMETERS*>(argument);
    call.status = cuda::NV_OK;
    if (call.cmd == cuda::NV2080_CTRL_CMD_GPU_GET_ID) {
      reinterpret_cast<cuda::NV2080_CTRL_GPU_GET_ID_PARAMS*>(call.params)->gpuId = module.gpu;
      return 0;
    }
    const auto& list = *reinterpret_cast<const cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS*>(call.params);
    const bool freezes = list.bDisable != 0;
    (freezes ? module.freezes : module.thaws).fetch_add(1);
    while (module.is_slow) std::this_thread::yield();
    if (freezes ? module.refuses_to_freeze : module.refuses_to_thaw) return call.status = cuda::NV_ERR_NOT_SUPPORTED, 0;
    module.frozen_at = os::now();
    module.is_frozen = freezes;
    return 0;
  }

  static inline std::atomic<TestKernelModule*> the_module{nullptr};
  std::uint32_t gpu = 0;
  std::atomic<int> freezes{0};  // calls
  std::atomic<int> thaws{0};
  std::atomic<bool> is_frozen{false};
  std::atomic<base::TimePoint> frozen_at{base::TimePoint()};
  std::atomic<bool> is_slow{false};  // calls last as long as this is set
  std::atomic<bool> refuses_to_freeze{false};
  std::atomic<bool> refuses_to_thaw{false};
};

}  // namespace gpumux::shim
