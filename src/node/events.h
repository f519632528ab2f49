// SPDX-License-Identifier: Apache-2.0
// The whole interface of the machine (machine.h), as plain values: events, and the commands that follow.
//
// Most events are the lease core's own (sched/events.h). Events that concern memory as well are here.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sched/events.h"
#include "sched/memory/residency.h"
#include "settings/structs.gen.h"

namespace gpumux::node {

using base::GpuIndex;
using base::LeaseEpoch;
using base::SeatId;
using base::TenantId;
using base::TimePoint;

// ---- events -----------------------------------------------------------------------------------------------

// clang-format off
// `capacity`: bytes of its memory; 0: unknown, and memory is left to the driver.
struct GpuAdded { GpuIndex gpu; settings::GpuSettings settings; LeaseEpoch first_epoch; std::uint64_t capacity = 0; };
struct SettingsChanged { GpuIndex gpu; settings::GpuSettings settings; };
// Of the ways that memory and standing leave open (Machine::is_open), this one gives more.
struct WayChosen { GpuIndex gpu; sched::Way way = sched::Way::kAtOnce; };
// Host memory for evicted data, in bytes (Residency::set_host_budget).
struct HostBudget { std::uint64_t bytes = 0; std::uint64_t chunk = 0; std::uint64_t reserved = 0; };
// Tenants of an earlier daemon may come back until then (Residency::await_tenants).
struct TenantsAwaited { TimePoint until; };
// clang-format on
struct SeatOpened {
  sched::SeatOpened lease;
  sched::SeatOwner owner{};
  // It has no memory that it could tell of, and may be told at once what it may have. False: it may come back after a
  // restart.
  bool is_new = true;
  std::uint64_t left = 0;  // Residency::left_by of its process's seat before
};
// clang-format off
struct MemoryReported { SeatId seat; sched::MemoryReport report; };
// A thread of the seat waits for this much (Residency::wanted), in bytes. `again`: an earlier wish of the same call was
// refused; it is for people, and decides nothing.
struct RoomWanted {
  SeatId seat; std::uint32_t ticket = 0; std::uint64_t room = 0, commitment = 0, managed = 0; bool again = false;
};
// A look at the GPU, begun at `asked_at`: `used` bytes of it were in use. `other_programs`: it showed programs that are
// no tenants. One look may be too early for a program that is just connecting, so two in a row count.
struct GpuSampled { GpuIndex gpu; std::uint64_t used = 0; TimePoint asked_at; bool other_programs = false; };
// All that has come in at once has been told: memory is planned.
struct Rest {};
// clang-format on

using Event =
    std::variant<GpuAdded, SettingsChanged, WayChosen, HostBudget, TenantsAwaited, sched::GrantsHeld,
                 sched::GrantsAllowed, sched::TenantConnected, sched::TenantGone, sched::GangJoined, SeatOpened,
                 sched::StandingChanged, sched::SeatClaimed, sched::SeatClosed, sched::SeatsSuspended, sched::Requested,
                 sched::RevokeSeen, sched::GateClosed, sched::Drained, sched::CannotFreeze, sched::Idling,
                 MemoryReported, RoomWanted, GpuSampled, sched::TimePassed, Rest>;

// ---- commands ---------------------------------------------------------------------------------------------

// clang-format off
// Only to be shown: the GPU's mode is another one now.
struct ModeChanged { GpuIndex gpu; sched::Mode mode = sched::Mode::kSerial; };
// Only to be shown: its programs take turns because their memory does not fit together, or do so no longer.
struct TurnsForMemory { GpuIndex gpu; bool are_needed = false; };
// clang-format on

using Command = std::variant<sched::Command, sched::RoomBound, sched::ExpectEviction, ModeChanged, TurnsForMemory>;
using Commands = std::vector<Command>;

// One line each, for logs that are compared byte for byte.
std::string to_string(const Command& command);

}  // namespace gpumux::node
