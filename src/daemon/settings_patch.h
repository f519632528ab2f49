// SPDX-License-Identifier: Apache-2.0
// The body of PATCH /v1/gpus/...: a stranger's JSON, read into checked settings.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/config.h"

namespace gpumux::daemon {

struct SettingsPatch {
  std::vector<Assignment> changes;  // each can be set: set_setting takes it
  bool save = false;
};

// Any bytes are safe to pass. Errors are kInvalid and say what is allowed.
base::Result<SettingsPatch> parse_settings_patch(std::string_view body);

}  // namespace gpumux::daemon
