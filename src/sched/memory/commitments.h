// SPDX-License-Identifier: Apache-2.0
// How much seats may have allocated in all, on the GPU and in host memory together: their commitments, which are
// promises.
//
// A seat counts for what it is promised. So all promises together fit on the GPUs and in host memory, even if tenants
// lie. No seat takes what another one was promised.
//
// Pure: asks the accounts, and changes nothing. plan.h shares commitments out.
#pragma once

#include <cstdint>

#include "sched/memory/accounts.h"

namespace gpumux::sched {

class Commitments {
 public:
  explicit Commitments(const Accounts& accounts) : accounts_(accounts) {}

  // Which accounts' seats may be promised it.
  enum class For { kAll, kThoseThatBegin };
  // Memory that seats have allocated, or may have allocated by now.
  enum class Needs { kAllocated, kCharged };

  // How much all seats of this GPU together may have allocated: what fits on it (`on_gpu`), and what there is of host
  // memory.
  std::uint64_t capacity(const GpuAccount& gpu, std::uint64_t on_gpu, Needs needs, For whom = For::kAll) const;
  // The part of `capacity` that no seat of the GPU is promised.
  std::uint64_t left_of(std::uint64_t capacity, const GpuAccount& gpu) const;
  // The accounts whose reserve the seat may use for this commitment. Its account begins if all of its seats together,
  // this one with `commitment`, are promised no more than is reserved.
  For begins_with(const SeatAccount& seat, std::uint64_t commitment, Needs needs) const;
  // The part of what the seat reports beyond its promise that is promised to it, too, of `left` bytes.
  std::uint64_t believed(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t capacity,
                         std::uint64_t left) const;

  // The most that the seat can ever have of `on_gpu` while the others keep what they cannot give up. `kept`:
  // GpuAccount::kept, reckoned once.
  static std::uint64_t most_room(std::uint64_t on_gpu, const GpuAccount& gpu, const SeatAccount& seat,
                                 std::uint64_t kept);
  // The same with what its quota's other seats leave, and with its managed memory, which may exceed the GPU.
  static std::uint64_t most(std::uint64_t on_gpu, const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t kept);
  // The part of its quota that the quota's other seats leave.
  static std::uint64_t left_of_quota(const GpuAccount& gpu, const SeatAccount& seat);

 private:
  std::uint64_t usable_host(For whom) const;
  std::uint64_t in_host_memory(const GpuAccount& gpu, Needs needs, For whom) const;

  const Accounts& accounts_;
};

}  // namespace gpumux::sched
