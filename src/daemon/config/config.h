// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration: a TOML file, its drop-ins, and the environment.
//
// Read in this order, later wins: built-in values; FILE; FILE's drop-in directory; aliases of older systems
// (NVSHARE_*); GPUMUX_*. The directory of "gpumux.toml" is "gpumux.d", and its *.toml are read in the order of their
// names. Flags come on top (options.h). A variable holds for every GPU, also over what a file says of one GPU.
//
// An unknown or impossible value is an error that names file, line, key and the allowed values. A daemon that guesses
// shares GPUs in a way that its administrator did not ask for.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "settings/structs.gen.h"

namespace gpumux::daemon {

inline constexpr char kSystemConfigFile[] = "/etc/gpumux/gpumux.toml";

// A file larger than this is no configuration.
inline constexpr std::size_t kMaxConfigBytes = 1 << 20;

using settings::GpuSettings;

struct Assignment {
  std::string key;
  std::string value;
};

// REQUIRES: settings::check has taken each of them.
void assign_all(GpuSettings& target, const std::vector<Assignment>& assignments);

struct Config : settings::DaemonSettings {
  settings::QueueSettings queue;  // [queue]

  // For all GPUs; per GPU ("0", "GPU-...") on top; the environment's on top of those.
  GpuSettings defaults;
  std::map<std::string, std::vector<Assignment>, std::less<>> gpus;
  std::vector<Assignment> overrides;

  std::vector<std::string> files;  // that were read

  // One GPU's settings. `uuid` as nvidia-smi prints it.
  GpuSettings settings_for(std::uint32_t index, const std::string& uuid) const;
  // The names of those in `gpus` ("9", "GPU-...") that a machine with these GPUs, in index order, does not have.
  std::vector<std::string> missing_gpus(const std::vector<std::string>& uuids) const;
};

using Environment = std::function<const char*(const char* name)>;

// Adds the settings of `text`. `name` is the file's, for errors.
base::Status read_config_text(Config& config, std::string_view text, const std::string& name);

// Reads `file` and its drop-ins. A missing file is an error only if `required`.
base::Status read_config_files(Config& config, const std::string& file, bool required);

base::Status read_environment(Config& config, const Environment& environment);

// All of the above.
base::Result<Config> load_config(const std::string& file, bool required, const Environment& environment);

// "/etc/gpumux/gpumux.toml" -> "/etc/gpumux/gpumux.d".
std::string drop_in_directory(const std::string& file);

// Writes `changes` of one GPU (or of "defaults") into the drop-in "saved.toml", keeping what it says already. Atomic.
base::Status save_settings(const std::string& config_file, const std::string& section,
                           const std::vector<Assignment>& changes);

}  // namespace gpumux::daemon
