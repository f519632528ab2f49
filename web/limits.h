// SPDX-License-Identifier: Apache-2.0
// The bounds on a browser's cost and time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpumux::web {

// A browser opens six connections to a host. With one too many, the one that has been without a request for longest is
// closed.
inline constexpr std::size_t kMaxConnections = 64;

// Open pages. Beyond it a page is refused.
inline constexpr std::size_t kMaxViews = 64;

// Cookies of other ports of this host come along.
inline constexpr std::uint32_t kMaxHeaderBytes = 16 << 10;

// A change of a job has some 20 bytes.
inline constexpr std::size_t kMaxBodyBytes = 4 << 10;

// A view that reads more slowly than this much may wait is closed. Its page connects again, and asks for what it
// missed.
inline constexpr std::size_t kMaxUnsentBytes = 8 << 20;

// Between two requests.
inline constexpr std::chrono::seconds kIdleTimeout{60};

// For a request that has begun, for an answer, and for a ping's.
inline constexpr std::chrono::seconds kMoveTimeout{10};

}  // namespace gpumux::web
