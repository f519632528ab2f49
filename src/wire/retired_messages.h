// SPDX-License-Identifier: Apache-2.0
// Messages of libraries and daemons from before the node's mover (docs/decisions/0039): programs borrowed host memory
// and handed physical memory on through the daemon. Both ends still read them, for the other end may be older, and do
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/message_types.h"

namespace gpumux::wire {

struct HostWanted {
  static constexpr Type kType = Type::kHostWanted;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;
};

struct HostReturned {
  static constexpr Type kType = Type::kHostReturned;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t id = 0;
  std::uint32_t kept = 0;
  std::uint32_t reserved = 0;
};

struct HostForgotten {
  static constexpr Type kType = Type::kHostForgotten;
  static constexpr std::size_t kMinimumBytes = 8;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
};

struct HostLent {
  static constexpr Type kType = Type::kHostLent;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
};

inline constexpr std::size_t kMostForgotten = 32;
struct HostForget {
  static constexpr Type kType = Type::kHostForget;
  static constexpr std::size_t kMinimumBytes = 8 + 8 * kMostForgotten;
  std::uint32_t slot = 0;
  std::uint32_t count = 0;
  std::uint64_t ids[kMostForgotten] = {};
};

struct HostSpare {
  static constexpr Type kType = Type::kHostSpare;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint64_t bytes = 0;
  std::uint64_t awaited = 0;
};

struct FrameGiven {
  static constexpr Type kType = Type::kFrameGiven;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
};

struct FrameFreed {
  static constexpr Type kType = Type::kFrameFreed;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;
};

struct FrameWanted {
  static constexpr Type kType = Type::kFrameWanted;
  static constexpr std::size_t kMinimumBytes = 16;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;
};

struct FrameLent {
  static constexpr Type kType = Type::kFrameLent;
  static constexpr std::size_t kMinimumBytes = 24;
  std::uint32_t slot = 0;
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;  // never 0; the daemon's, below kFrameNumbers
  std::uint64_t bytes = 0;
};

}  // namespace gpumux::wire
