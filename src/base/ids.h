// SPDX-License-Identifier: Apache-2.0
// Strong types for the things that are counted and named everywhere. All are values; none owns anything.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace gpumux::base {

// An integer that cannot be mistaken for another kind of integer.
template <class Tag, class Integer>
struct Id {
  Integer value = 0;
  constexpr auto operator<=>(const Id&) const = default;
};

// One tenant (a process using GPUs through gpumux), numbered by the daemon from 1; never reused while the daemon runs.
using TenantId = Id<struct TenantIdTag, std::uint64_t>;

// One GPU of this machine, numbered by the daemon in PCI bus order from 0.
using GpuIndex = Id<struct GpuIndexTag, std::uint32_t>;

// Which grant of a lease this is. Epochs of one GPU only grow, across restarts of the daemon too. 0: no lease.
using LeaseEpoch = Id<struct LeaseEpochTag, std::uint64_t>;

// One tenant on one GPU.
struct SeatId {
  TenantId tenant;
  GpuIndex gpu;
  constexpr auto operator<=>(const SeatId&) const = default;
};

// A GPU's (or MIG instance's) UUID as cuDeviceGetUuid_v2 gives it.
struct GpuUuid {
  std::array<std::uint8_t, 16> bytes{};
  constexpr auto operator<=>(const GpuUuid&) const = default;

  // "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi prints it.
  std::string to_string() const;
  // Accepts that form, with "GPU-", "MIG-" or no prefix.
  static Result<GpuUuid> parse(std::string_view text);
};

}  // namespace gpumux::base

template <class Tag, class Integer>
struct std::hash<gpumux::base::Id<Tag, Integer>> {
  std::size_t operator()(const gpumux::base::Id<Tag, Integer>& id) const { return std::hash<Integer>()(id.value); }
};
