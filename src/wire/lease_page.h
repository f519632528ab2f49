// SPDX-License-Identifier: Apache-2.0
// The lease page: shared memory between the daemon and one tenant, through which leases are given without a system
// call.
//
// A tenant makes one memfd of kLeasePageBytes and seals it against growing, shrinking and further seals. It hands the
// page over in its Hello, and keeps it for its whole life, across restarts of the daemon. Slot i is the tenant's i-th
// seat:
//
// clang-format off
//   byte 128*i  word         lease word (below)                  daemon stores; the tenant clears kGranted, kImminent
//         +4    permits      0                                   libraries of earlier releases submit by it
//         +8    epoch        which grant `word` speaks of        daemon, before the word that grants it
//         +64   submissions  work submitted so far               tenant
//         +72   waiting_ns   time threads have slept here        tenant
//
// The lease word:
//
//   bit 0  kGranted     the seat may submit
//   bit 1  kExclusive   no other seat may
//   bit 2  kContended   another seat waits for this GPU
//   bit 3  kUngated     set by the tenant itself when it has no daemon and runs without one
//   bit 4  kReleased    set by the tenant's agent where it clears kGranted itself
//   bit 5  kImminent    a grant is about to come: waiting threads stay awake for a moment. Set by the daemon in a word
//                       that is not granted, cleared by the thread that takes the hint. Lost, late or forged it costs
//                       a little processor time, and nothing else hangs on it
//   8..31  sequence     one more at each store by the daemon, so that a sleeper notices every change
//
//   not granted --daemon: lease given-->  granted --daemon: revoked-------------------------------------> not granted
//                                         granted --agent, compare-and-exchange: released by itself-----> not granted
// clang-format on
//
// The epoch changes only while the word is not granted. If a grant follows a grant in place, the daemon stores a word
// without kGranted, then the epoch, then the word with it. So a tenant may release a granted word if it finds the same
// epoch before and after looking at it.
//
// A thread submits only while kGranted is set, and marks itself inside before it looks (gate/gate.h). Clearing the bit
// is the first half of closing a gate. The tenant's agent does the second (membarrier, wait until no thread is inside)
// and only then tells the daemon. So a daemon that dies in the middle leaves a word that still means something.
//
// Trust: the page is the tenant's, and may hold anything at any moment. The daemon writes words and never reads them.
// It reads only the statistics at +64, which are shown to people and decide nothing. A tenant that scribbles here hurts
// only itself: its own gate.
//
// Compatibility: lengths and offsets are fixed by kProtocolVersion (messages.h). Explicit-width types only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"

namespace gpumux::wire {

inline constexpr std::uint32_t kGranted = 1u << 0;
inline constexpr std::uint32_t kExclusive = 1u << 1;
inline constexpr std::uint32_t kContended = 1u << 2;
inline constexpr std::uint32_t kUngated = 1u << 3;
inline constexpr std::uint32_t kReleased = 1u << 4;
inline constexpr std::uint32_t kImminent = 1u << 5;
inline constexpr std::uint32_t kSequenceOne = 1u << 8;
inline constexpr std::uint32_t kSequenceMask = ~0u << 8;

struct LeaseSlot {
  std::atomic<std::uint32_t> word;
  std::atomic<std::uint32_t> permits;
  std::atomic<std::uint64_t> epoch;
  std::uint8_t reserved_daemon[48];
  // A cache line of the tenant's own, so that counting never slows down the threads that read the word.
  std::atomic<std::uint64_t> submissions;
  std::atomic<std::uint64_t> waiting_ns;
  std::uint8_t reserved_tenant[48];
};

static_assert(sizeof(LeaseSlot) == 128);
static_assert(offsetof(LeaseSlot, permits) == 4);
static_assert(offsetof(LeaseSlot, epoch) == 8);
static_assert(offsetof(LeaseSlot, submissions) == 64);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

struct LeasePage {
  LeaseSlot slots[base::kMaxSeatsPerTenant];
};

inline constexpr std::size_t kLeasePageBytes = sizeof(LeasePage);
static_assert(kLeasePageBytes == 8192);

}  // namespace gpumux::wire
