// SPDX-License-Identifier: Apache-2.0
// The bodies of PATCH: a stranger's JSON, read into checked settings.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/standing.h"
#include "daemon/config/config.h"

namespace gpumux::daemon {

struct SettingsPatch {
  std::vector<Assignment> changes;  // each can be set: settings::set takes it
  bool save = false;
};

// Any bytes are safe to pass. Errors are kInvalid and say what is allowed.
base::Result<SettingsPatch> parse_settings_patch(std::string_view body);
// How a tenant is to stand that stands as `now`, and came as `at_start` ("default" is that again).
base::Result<base::Standing> parse_standing_patch(std::string_view body, const base::Standing& now,
                                                  const base::Standing& at_start);

}  // namespace gpumux::daemon
