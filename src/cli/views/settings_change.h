// SPDX-License-Identifier: Apache-2.0
// The change that `gpumux set` asks for, and the GPUs and tenants that it names.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "api_client/types.h"
#include "base/result.h"

namespace gpumux::cli {

struct SettingValue {
  std::string name;
  std::string value;
};

// The body of a PATCH; each value was checked.
std::string settings_body(const std::vector<SettingValue>& values, bool save);

// The settings that were to be changed, old and new: "quantum auto -> 50ms, mode serial (as before)".
std::string describe_changes(const std::vector<SettingValue>& changes, const std::map<std::string, std::string>& before,
                             const std::map<std::string, std::string>& now);

// The same of a tenant: `name` is "priority", "share" or "max_share"; "default" is the value that it started with.
base::Status check_standing(std::string_view name, std::string_view value);

// The number of the tenant that `text` names: by its process id, or, where no process has that, by that number itself.
// Other text is the name of a program of which there is one process.
base::Result<std::uint64_t> find_tenant(const std::vector<api_client::Gpu>& gpus, std::string_view text);

// The GPU of `gpus` that `text` names: by index, or by UUID (which may be shortened as long as only one GPU begins so).
base::Result<const api_client::Gpu*> find_gpu(const std::vector<api_client::Gpu>& gpus, std::string_view text);

}  // namespace gpumux::cli
