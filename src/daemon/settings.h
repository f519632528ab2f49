// SPDX-License-Identifier: Apache-2.0
// One GPU's settings as people write them: one table for the configuration file, the environment, PATCH and the
// documents.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "daemon/gpu_settings.h"

namespace gpumux::daemon {

struct SettingKey {
  std::string_view name;         // "max_runtime": in the file, in PATCH, as --max-runtime
  std::string_view environment;  // "GPUMUX_MAX_RUNTIME"
  std::string_view alias;        // an older system's variable, or empty
  std::string_view allowed;      // "a time from 100ms to 24h, or unlimited"
  std::string_view meaning;      // one sentence, for the documents
  bool boolean = false;          // written true or false in TOML and JSON, everything else as a string
  base::Status (*parse)(GpuSettings& settings, std::string_view text) = nullptr;
  std::string (*format)(const GpuSettings& settings) = nullptr;
};

// In the order in which documents and status show them.
std::span<const SettingKey> setting_keys();

// Null: there is no such setting.
const SettingKey* find_setting(std::string_view name);

// Sets `name` to what `text` says. The error names the setting, the value and what is allowed.
base::Status set_setting(GpuSettings& settings, std::string_view name, std::string_view text);

// Sets by an alias and in its units ("NVSHARE_MAX_RUNTIME_SEC": seconds, at least 10).
base::Status set_by_alias(GpuSettings& settings, const SettingKey& key, std::string_view text);

// "mode, policy, quantum, ...": for errors.
std::string known_settings();

}  // namespace gpumux::daemon
