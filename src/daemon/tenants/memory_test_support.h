// SPDX-License-Identifier: Apache-2.0
// For tests of memory through the daemon's socket: tenants that report their memory by hand, and small GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "daemon/test_support.h"
#include "wire/messages.h"

namespace gpumux::daemon::testing {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
inline constexpr std::uint64_t kReserve = kGiB;

class Tenant : public TestTenant {
 public:
  using TestTenant::TestTenant;

  // Takes bounds, and says so, until one is as wanted. A revocation is answered as one answers with nothing queued.
  bool settle(const std::function<bool(const wire::Room&)>& is_wanted, Tenant* other = nullptr) {
    return eventually([&] {
      if (other != nullptr) other->step();
      return (room.sequence != 0 && is_wanted(room)) || (step(), false);
    });
  }
  // Takes one message, if there is one.
  bool step() {
    const auto message = receive(1ms);
    if (!message) return false;
    if (const auto* next = std::get_if<wire::Room>(&*message)) {
      room = *next;
      say();
    } else if (const auto* revoke = std::get_if<wire::Revoke>(&*message)) {
      send(wire::RevokeSeen{.slot = 0, .epoch = revoke->epoch});
      send(wire::GateClosed{.slot = 0, .epoch = revoke->epoch});
      send(wire::Drained{.slot = 0, .epoch = revoke->epoch});
    }
    return true;
  }
  bool say() {
    memory.room_sequence = room.sequence;
    memory.allocated = memory.resident + memory.evicted;
    return send(memory);
  }
  bool has(std::uint64_t resident, std::uint64_t evicted = 0) {
    memory.resident = resident * kGiB;
    memory.evicted = evicted * kGiB;
    return say();
  }
  wire::Memory memory{};
  wire::Room room{};
};

class SmallGpu final : public Inventory {
 public:
  static constexpr std::uint64_t kBytes = 16 << 20;
  explicit SmallGpu(std::size_t gpus = 1, std::uint64_t bytes = kBytes)
      : fake_(fake_inventory(gpus)), gpus_(fake_->gpus()) {
    for (GpuInfo& gpu : gpus_) gpu.memory_total = bytes;
  }
  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  const DriverInfo& driver() const override { return fake_->driver(); }
  std::vector<GpuUse> read_use() override { return fake_->read_use(); }
  std::vector<GpuLoad> read_load() override { return fake_->read_load(); }

 private:
  std::unique_ptr<Inventory> fake_;
  std::vector<GpuInfo> gpus_;
};

inline bool has_any(const wire::Room& room) { return room.room > 0; }

}  // namespace gpumux::daemon::testing
