// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/nvml_health.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace gpumux::daemon {
namespace {

using namespace cuda;

// nvml_health.h says what each one is.
constexpr std::uint64_t kOfPrograms[] = {13, 31, 43, 45, 68, 109};

// Events of one look. A GPU that reports more is asked again a second later.
constexpr int kMaxEvents = 256;

bool is_lost(nvmlReturn_t result) { return result == NVML_ERROR_GPU_IS_LOST || result == NVML_ERROR_RESET_REQUIRED; }

std::string action_text(unsigned int action) {
  switch (action) {
    case NVML_GPU_RECOVERY_ACTION_NONE: return {};
    case NVML_GPU_RECOVERY_ACTION_GPU_RESET: return "the driver says that it needs a reset (nvidia-smi --gpu-reset)";
    case NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: return "the driver says that it needs a restart of the machine";
    case NVML_GPU_RECOVERY_ACTION_DRAIN_P2P:
      return "the driver says that programs that copy between GPUs must end on it";
    case NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
      return "the driver says that its programs must end, and that it then needs a reset (nvidia-smi --gpu-reset)";
  }
  return "the driver says that it needs action " + std::to_string(action) + " to recover; see nvidia-smi -q";
}

}  // namespace

bool is_of_a_program(std::uint64_t xid) {
  return std::find(std::begin(kOfPrograms), std::end(kOfPrograms), xid) != std::end(kOfPrograms);
}

NvmlHealth::~NvmlHealth() {
  if (events_ != nullptr) nvml_.nvmlEventSetFree(events_);
}

void NvmlHealth::watch(nvmlDevice_t gpu) {
  if (!last_xid_.emplace(gpu, 0).second) return;
  if (nvml_.nvmlEventSetCreate == nullptr || nvml_.nvmlEventSetFree == nullptr ||
      nvml_.nvmlDeviceRegisterEvents == nullptr || nvml_.nvmlEventSetWait_v2 == nullptr)
    return;
  if (events_ == nullptr && nvml_.nvmlEventSetCreate(&events_) != NVML_SUCCESS) events_ = nullptr;
  if (events_ != nullptr) nvml_.nvmlDeviceRegisterEvents(gpu, kNvmlEventXid, events_);
}

void NvmlHealth::look() {
  if (events_ == nullptr) return;
  for (int i = 0; i < kMaxEvents; ++i) {
    nvmlEventData_t event{};
    if (nvml_.nvmlEventSetWait_v2(events_, &event, 0) != NVML_SUCCESS) return;
    const auto gpu = last_xid_.find(event.device);
    if (gpu == last_xid_.end() || event.eventType != kNvmlEventXid || is_of_a_program(event.eventData)) continue;
    gpu->second = event.eventData;
  }
}

std::string NvmlHealth::why_sick(nvmlDevice_t gpu) const {
  if (nvml_.nvmlDeviceGetFieldValues != nullptr) {
    nvmlFieldValue_t field{};
    field.fieldId = kNvmlFieldRecoveryAction;
    const nvmlReturn_t result = nvml_.nvmlDeviceGetFieldValues(gpu, 1, &field);
    if (is_lost(result) || is_lost(field.nvmlReturn)) return "the driver has lost it; look at the kernel's log";
    if (result == NVML_SUCCESS && field.nvmlReturn == NVML_SUCCESS) return action_text(field.value.uiVal);
  }
  const auto found = last_xid_.find(gpu);
  if (found == last_xid_.end() || found->second == 0) return {};
  return "it has had Xid " + std::to_string(found->second) +
         ", and this driver does not say when it has recovered; restart gpumuxd then";
}

}  // namespace gpumux::daemon
