// SPDX-License-Identifier: Apache-2.0
// Deadlines that may not be there. Compare no optional deadline with a time by `<` or `<=`: the standard library takes
// none for earlier than every time.
#pragma once

#include <algorithm>
#include <optional>

#include "base/clock.h"

namespace gpumux::base {

// None: neither is there.
inline std::optional<TimePoint> earliest(std::optional<TimePoint> one, std::optional<TimePoint> other) {
  return one && other ? std::min(one, other) : one ? one : other;
}

inline bool is_due(std::optional<TimePoint> deadline, TimePoint now) { return deadline && *deadline <= now; }

}  // namespace gpumux::base
