// SPDX-License-Identifier: Apache-2.0
#include "shim/process/seats.h"

#include <cstring>

namespace gpumux::shim {

std::optional<std::uint32_t> Seats::open(cuda::CUdevice device, bool& opened) {
  opened = false;
  if (device < 0 || static_cast<std::size_t>(device) >= kMaxDevices) return std::nullopt;
  const auto index = static_cast<std::size_t>(device);
  {
    const Locked locked(*this);
    if (slot_of_device_[index] >= 0) return static_cast<std::uint32_t>(slot_of_device_[index]);
  }
  // Not under the lock: the driver may wait for another GPU's frozen work, and what thaws it needs the lock.
  cuda::CUuuid uuid{};
  const auto get_uuid = driver_.cuDeviceGetUuid_v2 != nullptr ? driver_.cuDeviceGetUuid_v2 : driver_.cuDeviceGetUuid;
  const bool is_known = get_uuid != nullptr && get_uuid(&uuid, device) == cuda::CUDA_SUCCESS;
  const Locked locked(*this);
  if (slot_of_device_[index] >= 0) return static_cast<std::uint32_t>(slot_of_device_[index]);
  const std::uint32_t slot = count_.load(std::memory_order_relaxed);
  if (!is_known || slot >= base::kMaxSeatsPerTenant) return std::nullopt;
  auto* seat = new Seat(driver_);  // for the life of the process
  seat->device = device;
  static_assert(sizeof uuid == sizeof seat->uuid.bytes);
  std::memcpy(seat->uuid.bytes.data(), &uuid, sizeof uuid);
  seats_[slot] = seat;
  slot_of_device_[index] = static_cast<int>(slot);
  count_.store(slot + 1, std::memory_order_release);  // pairs with count(): a thread that sees the slot sees the seat
  opened = true;
  return slot;
}

}  // namespace gpumux::shim
