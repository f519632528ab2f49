// SPDX-License-Identifier: Apache-2.0
// This process's seats: which GPU is which slot, and where each revocation stands.
//
// Written by the agent (what the daemon says), the drainer (what has come of it) and threads that open seats, under one
// lock. A slot once opened stays open for the life of the process: GPUs do not come and go.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/lock.h"
#include "cuda/abi.h"
#include "gate/in_flight.h"
#include "gate/stream_set.h"

namespace gpumux::shim {

// A set of seats as a word: the bit of one.
constexpr std::uint64_t slot_bit(std::uint32_t slot) { return std::uint64_t{1} << slot; }

// The closing of a seat's gate. It lasts from a revocation until the lease page has another epoch. The lease word alone
// says whether threads may submit.
struct Closing {
  enum class Phase : std::uint8_t {
    kClosing,   // revoked: waiting until no thread is inside
    kDraining,  // told the daemon "gate closed": waiting until the GPU is done
    kDrained,
    kFrozen,  // the work stands still, and the daemon has been told (interrupter.h)
  };

  std::uint64_t number;  // of this closing; what was seen before it says nothing of it
  std::uint64_t epoch;   // of the lease that ends
  base::TimePoint since;
  std::optional<base::Duration> freeze_after;  // what has not drained then is frozen; none: it drains
  Phase phase = Phase::kClosing;
};

// As an idle hold: the seat keeps its lease however long it is idle.
inline constexpr base::Duration kHoldsWhileIdle = base::Duration::max();

struct Seat {
  explicit Seat(const cuda::Driver& driver) : streams(driver), in_flight(driver) {}

  void begin_closing(std::uint64_t epoch, base::TimePoint now, std::optional<base::Duration> freeze_after = {}) {
    closing = Closing{.number = ++closings, .epoch = epoch, .since = now, .freeze_after = freeze_after};
  }
  // The closing that `seen` is a copy of, if it is in this phase; otherwise null.
  Closing* still(const Closing& seen, Closing::Phase phase) {
    return closing && closing->number == seen.number && closing->phase == phase ? &*closing : nullptr;
  }

  cuda::CUdevice device = 0;
  base::GpuUuid uuid;
  std::uint32_t gpu_id = 0;  // the kernel module's name of the GPU (channels.h)
  bool announced = false;    // on this connection
  std::optional<Closing> closing;
  std::uint64_t closings = 0;       // that have begun
  std::uint32_t awaiting_room = 0;  // threads that wait for the daemon to make room for an allocation
  base::Duration idle_hold = std::chrono::microseconds(200);  // a guess, until the daemon's first Contention says
  base::Duration in_flight_bound{0};                          // as the daemon says
  // The drainer's watch for idleness.
  std::uint64_t last_passages = 0;
  base::TimePoint idle_since{};
  bool idling_told = false;                     // the daemon was told of the idle hold that runs
  std::uint32_t false_alarms = 0;               // of the last times that it was told, in a row: nothing was released
  std::uint32_t idlings_to_skip = 0;            // this many are not told
  std::atomic<std::uint32_t> waits_to_skip{0};  // this many of the program's waits for its GPU are not looked at

  gate::StreamSet streams;
  gate::InFlight in_flight;
};

class Seats {
 public:
  explicit Seats(const cuda::Driver& driver) : driver_(driver) { slot_of_device_.fill(-1); }

  // The slot of a device; opened if it is new (`opened` is set). Nothing: too many, or the driver does not know the
  // device.
  std::optional<std::uint32_t> open(cuda::CUdevice device, bool& opened);

  // Any thread, no lock: slots below count() exist.
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }
  gate::StreamSet& streams(std::uint32_t slot) { return seats_[slot]->streams; }
  gate::InFlight& in_flight(std::uint32_t slot) { return seats_[slot]->in_flight; }
  std::atomic<std::uint32_t>& waits_to_skip(std::uint32_t slot) { return seats_[slot]->waits_to_skip; }

  class GPUMUX_SCOPED_CAPABILITY Locked {
   public:
    explicit Locked(Seats& seats) GPUMUX_ACQUIRE(seats.mutex_) : locked_(seats.mutex_), seats_(seats) {}
    ~Locked() GPUMUX_RELEASE() {}
    Seat& operator[](std::uint32_t slot) { return *seats_.seats_[slot]; }
    // Null for a slot that was never opened: the daemon's messages are checked as any peer's.
    Seat* find(std::uint32_t slot) { return slot < seats_.count() ? seats_.seats_[slot] : nullptr; }

   private:
    const base::Locked locked_;
    Seats& seats_;
  };

 private:
  // Device ordinals are small; a process sees at most this many. How many is a guess.
  static constexpr std::size_t kMaxDevices = 256;

  const cuda::Driver& driver_;
  base::Mutex mutex_;
  std::array<int, kMaxDevices> slot_of_device_ GPUMUX_GUARDED_BY(mutex_){};
  std::array<Seat*, base::kMaxSeatsPerTenant> seats_{};
  std::atomic<std::uint32_t> count_{0};
};

}  // namespace gpumux::shim
