// SPDX-License-Identifier: Apache-2.0
// The shared memory of a simulated machine, file `machine.state` in its directory.
//
//   Header      magic, version, settings, UUIDs      written once, before the file gets its name; then read-only
//   Arbiter[]   one per GPU: whose kernels advance   any process, by compare-and-swap on `owner`
//   Shared[]    physical memory known to several processes
//   Slot[]      one per process                      written by the process that holds the slot, and by no other
//
// The problem: any process may die at any instruction (kill -9) or stop (SIGSTOP), and neither may corrupt this state
// or hold up the others. The idea: there is no lock in here at all. Each process writes only its own slot. Machine-wide
// truth, such as a GPU's free memory, is a sum over the slots of living processes. Whether a process is alive is not
// written here either. The holder of slot n has a POSIX record lock on byte n of the file `processes`. The kernel drops
// it at the instant of the process's death. So a dead process's claims are void by definition and no process has to
// clean up after it.
//
// Why not robust mutexes: a holder that dies is handled by those, a holder that is stopped is not.
#pragma once

#include <atomic>
#include <cstdint>

#include "sim/cuda/settings.h"

namespace gpumux::sim {

inline constexpr std::uint64_t kMachineMagic = 0x31'6d'69'73'78'75'6d'67;  // "gmuxsim1"
inline constexpr std::uint32_t kMachineVersion = 3;

// Processes with a context at one time: every core of a large node. A slot is 6 KiB of a sparse file.
inline constexpr std::uint32_t kMaxProcesses = 512;

// Exported pieces of physical memory at one time.
inline constexpr std::uint32_t kMaxSharedBlocks = 4096;

// GPU business is remembered per 10 ms for 160 ms: NVML's utilization looks back 100 ms.
inline constexpr std::uint32_t kBusyBuckets = 16;
inline constexpr std::uint64_t kBusyBucketNanoseconds = 10'000'000;

inline constexpr std::uint32_t kHostToDevice = 0;
inline constexpr std::uint32_t kDeviceToHost = 1;

struct BusyBucket {
  std::atomic<std::uint64_t> number;  // which 10 ms since the clock's epoch
  std::atomic<std::uint64_t> nanoseconds;
};

// One process's use of one GPU.
struct SlotGpu {
  std::atomic<std::uint64_t> used;     // bytes
  std::atomic<std::uint64_t> pending;  // bytes that are being asked for, see Machine::reserve
  std::atomic<std::uint32_t> contexts;
  std::atomic<std::uint32_t> transfers[2];  // copies under way, by direction
  std::atomic<std::uint64_t> wait_ticket;   // place in the line for the GPU; 0: not waiting
  std::atomic<std::uint64_t> running;       // the tenure in which the process has the GPU; 0: it has not
  std::atomic<std::uint32_t> sharing;       // kernels that work at the GPU's speed
  // Of an MPS server: the error that broke its clients' contexts on the GPU. 16 bits of the generation, 16 of the
  // number of the fault, 32 of the error; error 0: none. Clients write it; the generation is there as in `died`.
  std::atomic<std::uint64_t> fault;
  BusyBucket busy[kBusyBuckets];
};

struct Slot {
  std::atomic<std::uint64_t> generation;  // grows with each process that takes the slot
  std::atomic<std::int64_t> pid;
  std::atomic<std::uint64_t> image;  // which program that process runs: random, new with each exec
  // Identity (Machine::identity) of the MPS server whose client the process is; its own identity: it is a server; 0:
  // neither.
  std::atomic<std::uint64_t> server;
  // When the death was first noticed: low 16 bits of the generation in the top bits, microseconds in the rest; 0: not
  // noticed. A word that others write; the generation keeps a late writer from marking the slot's next holder.
  std::atomic<std::uint64_t> died;
  SlotGpu gpu[kMaxGpus];
};

// One GPU's time slicing between parties; see time_slice.h.
struct Arbiter {
  std::atomic<std::uint64_t> owner;       // an owner word
  std::atomic<std::uint64_t> last_owner;  // the party that the GPU last worked for
  std::atomic<std::uint64_t> slice;       // when the owner's slice began: 16 bits of the tenure's grant, microseconds
  std::atomic<std::uint64_t> next_ticket;
  std::atomic<std::uint32_t> turn;  // futex word: changes when the owner or the line may have changed
};

// Physical memory that was exported, charged to its GPU as long as one of the processes that refer to it is alive.
struct SharedBlock {
  std::atomic<std::uint64_t> claim;  // the process that fills it in (slot and generation), 0: none
  std::atomic<std::uint64_t> inode;  // of the memory's file; 0: free
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint32_t> gpu;
  std::atomic<std::uint64_t> references[kMaxProcesses / 64];  // bit n: the process in slot n
};

struct MachineState {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t bytes_of_state;  // sizeof(MachineState), against mixed builds
  std::uint64_t machine_id;      // random
  Settings settings;
  std::uint8_t uuids[kMaxGpus][16];
  std::atomic<std::uint32_t> slots_used;   // slots beyond this were never taken
  std::atomic<std::uint32_t> blocks_used;  // the same for shared blocks
  Arbiter arbiters[kMaxGpus];
  SharedBlock blocks[kMaxSharedBlocks];
  Slot slots[kMaxProcesses];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace gpumux::sim
