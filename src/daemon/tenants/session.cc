// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

Slot& Session::open_slot(std::uint32_t number, base::GpuIndex gpu) {
  slots_[number].emplace().gpu = gpu;
  return *slots_[number];
}

std::optional<std::uint32_t> Session::slot_of(base::GpuIndex gpu) const {
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] && slots_[i]->gpu == gpu) return i;
  }
  return std::nullopt;
}

std::size_t Session::open_slots() const {
  std::size_t count = 0;
  for (const auto& slot : slots_) count += slot ? 1u : 0u;
  return count;
}

}  // namespace gpumux::daemon
