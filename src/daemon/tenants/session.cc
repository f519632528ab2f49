// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

std::string printable(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return clean;
}

Slot* Session::slot(std::uint32_t number) {
  const auto found = slots_.find(number);
  return found == slots_.end() ? nullptr : &found->second;
}

Slot* Session::slot_on(base::GpuIndex gpu) {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [gpu](const auto& one) { return one.second.gpu == gpu; });
  return found == slots_.end() ? nullptr : &found->second;
}

Slot& Session::open_slot(std::uint32_t number, base::GpuIndex gpu) {
  Slot& slot = slots_[number];
  slot.number = number;
  slot.gpu = gpu;
  return slot;
}

}  // namespace gpumux::daemon
