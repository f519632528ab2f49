// SPDX-License-Identifier: Apache-2.0
// The status that was made last, for clients that take one that is not quite new: views of one daemon share it.
//
// Asked on the loop's thread, and kept on the one that renders.
#pragma once

#include <sys/types.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"

namespace gpumux::daemon {

class RecentStatus {
 public:
  // `names_of`: the only user whose programs have their names in it. Nothing: the last one is older than `since`, or
  // for other eyes.
  std::optional<std::string> find(std::optional<uid_t> names_of, base::TimePoint since) const {
    const std::lock_guard lock(mutex_);
    if (!last_ || last_->names_of != names_of || last_->taken < since) return std::nullopt;
    return last_->text;
  }

  void keep(std::optional<uid_t> names_of, base::TimePoint taken, std::string text) {
    const std::lock_guard lock(mutex_);
    last_ = Made{names_of, taken, std::move(text)};
  }

 private:
  struct Made {
    std::optional<uid_t> names_of;
    base::TimePoint taken;
    std::string text;
  };

  mutable std::mutex mutex_;
  std::optional<Made> last_;
};

}  // namespace gpumux::daemon
