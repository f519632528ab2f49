// SPDX-License-Identifier: Apache-2.0
#include "daemon/config.h"

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>

#include "base/limits.h"
#include "base/units.h"
#include "daemon/files.h"
#include "daemon/settings.h"

namespace gpumux::daemon {
namespace {

constexpr char kSavedName[] = "saved.toml";
constexpr char kTopKeys[] =
    "log_level, on_daemon_loss, allow_users, allow_groups, admin_group, socket_mode, [defaults], [gpu.N]";

// Where a value stands, and how its errors begin: "/etc/gpumux/gpumux.toml:12: ".
struct Place {
  const std::string& file;
  toml::source_region region;
  std::string prefix() const { return file + ":" + std::to_string(region.begin.line) + ": "; }
};

base::Status wrong(const Place& place, const std::string& what) {
  return base::fail(base::Code::kInvalid, place.prefix() + what);
}

// A setting's value as text: strings as they are, true and false as words. Numbers have no units, so they are not
// taken.
std::optional<std::string> value_text(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* boolean = node.as_boolean()) return std::string(boolean->get() ? "true" : "false");
  return std::nullopt;
}

base::Result<std::vector<Assignment>> read_settings(const toml::table& table, const std::string& file,
                                                    const std::string& section) {
  std::vector<Assignment> assignments;
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const Place place{file, node.source()};
    const SettingKey* setting = find_setting(name);
    if (setting == nullptr) {
      return tl::unexpected(
          wrong(place, "there is no setting '" + name + "' in [" + section + "] (there are " + known_settings() + ")")
              .error());
    }
    const auto text = value_text(node);
    if (!text) {
      return tl::unexpected(wrong(place, name + " must be " + std::string(setting->allowed) +
                                             (setting->boolean ? "" : ", written in quotes"))
                                .error());
    }
    sched::GpuSettings scratch;
    if (const auto set = set_setting(scratch, name, *text); !set) {
      return tl::unexpected(wrong(place, set.error().message()).error());
    }
    assignments.push_back({name, *text});
  }
  return assignments;
}

void assign_all(sched::GpuSettings& settings, const std::vector<Assignment>& assignments) {
  // They were all checked where they were read.
  for (const Assignment& a : assignments) static_cast<void>(set_setting(settings, a.key, a.value));
}

base::Status read_names(std::vector<std::string>& target, const toml::node& node, const Place& place,
                        const std::string& key) {
  const auto* array = node.as_array();
  if (array == nullptr) return wrong(place, key + " must be a list of names: " + key + " = [\"eva\", \"1001\"]");
  target.clear();
  for (const auto& element : *array) {
    const auto* name = element.as_string();
    if (name == nullptr || name->get().empty()) return wrong(place, key + " must hold names in quotes");
    target.push_back(name->get());
  }
  return {};
}

base::Status read_gpu_sections(Config& config, const toml::node& node, const std::string& file) {
  const auto* sections = node.as_table();
  if (sections == nullptr) return wrong({file, node.source()}, "gpu must be sections: [gpu.0] or [gpu.\"GPU-...\"]");
  for (const auto& [key, section] : *sections) {
    const std::string name(key.str());
    const Place place{file, section.source()};
    const bool is_index = base::parse_integer(name, 0, base::kMaxGpus - 1).has_value();
    const bool is_uuid =
        (name.starts_with("GPU-") || name.starts_with("MIG-")) && base::GpuUuid::parse(name).has_value();
    if (!is_index && !is_uuid) {
      return wrong(place,
                   "[gpu." + name + "] names no GPU: use its index (0 is the first in PCI bus order) or its UUID");
    }
    const auto* table = section.as_table();
    if (table == nullptr) return wrong(place, "gpu." + name + " must be a section of settings");
    auto assignments = read_settings(*table, file, "gpu." + name);
    if (!assignments) return tl::unexpected(assignments.error());
    auto& target = config.gpus[name];
    target.insert(target.end(), assignments->begin(), assignments->end());
  }
  return {};
}

base::Status set_on_loss(Config& config, std::string_view text) {
  if (text != "wait" && text != "ungated") {
    return base::fail(base::Code::kInvalid,
                      "on_daemon_loss cannot be '" + std::string(text) + "': it must be wait or ungated");
  }
  config.on_daemon_loss = text == "wait" ? OnLoss::kWait : OnLoss::kUngated;
  return {};
}

base::Status set_socket_mode(Config& config, std::string_view text) {
  unsigned mode = 0;
  bool valid = text.size() >= 3 && text.size() <= 4;
  for (const char c : text) {
    valid = valid && c >= '0' && c <= '7';
    mode = mode * 8 + static_cast<unsigned>(c - '0');
  }
  if (!valid || mode > 0777) {
    return base::fail(base::Code::kInvalid, "socket_mode cannot be '" + std::string(text) +
                                                "': it must be octal permissions such as \"0660\"");
  }
  config.socket_mode = mode;
  return {};
}

base::Status set_log_level_text(Config& config, std::string_view text) {
  const auto level = parse_log_level(text);
  if (!level) return base::fail(base::Code::kInvalid, "log_level: " + level.error().message());
  config.log_level = *level;
  return {};
}

base::Status read_top_key(Config& config, const std::string& key, const toml::node& node, const std::string& file) {
  const Place place{file, node.source()};
  if (key == "defaults") {
    const auto* table = node.as_table();
    if (table == nullptr) return wrong(place, "defaults must be a section: [defaults]");
    const auto assignments = read_settings(*table, file, "defaults");
    if (!assignments) return tl::unexpected(assignments.error());
    assign_all(config.defaults, *assignments);
    return {};
  }
  if (key == "gpu") return read_gpu_sections(config, node, file);
  if (key == "allow_users") return read_names(config.allow_users, node, place, key);
  if (key == "allow_groups") return read_names(config.allow_groups, node, place, key);
  base::Status (*set)(Config&, std::string_view) = nullptr;
  if (key == "log_level") set = set_log_level_text;
  if (key == "on_daemon_loss") set = set_on_loss;
  if (key == "socket_mode") set = set_socket_mode;
  if (key == "admin_group") {
    set = [](Config& c, std::string_view text) {
      c.admin_group = text;
      return base::Status();
    };
  }
  if (set == nullptr) return wrong(place, "there is no key '" + key + "' (there are " + kTopKeys + ")");
  const auto* text = node.as_string();
  if (text == nullptr) return wrong(place, key + " must be written in quotes");
  if (const auto done = set(config, text->get()); !done) return wrong(place, done.error().message());
  return {};
}

}  // namespace

sched::GpuSettings Config::settings_for(std::uint32_t index, const std::string& uuid) const {
  sched::GpuSettings settings = defaults;
  if (const auto by_index = gpus.find(std::to_string(index)); by_index != gpus.end())
    assign_all(settings, by_index->second);
  if (const auto by_uuid = gpus.find(uuid); by_uuid != gpus.end()) assign_all(settings, by_uuid->second);
  assign_all(settings, overrides);
  return settings;
}

base::Status read_config_text(Config& config, std::string_view text, const std::string& name) {
  const toml::parse_result parsed = toml::parse(text, name);
  if (!parsed) {
    return base::fail(base::Code::kInvalid, name + ":" + std::to_string(parsed.error().source().begin.line) + ": " +
                                                std::string(parsed.error().description()));
  }
  for (const auto& [key, node] : parsed.table()) {
    GPUMUX_TRY(read_top_key(config, std::string(key.str()), node, name));
  }
  return {};
}

std::string drop_in_directory(const std::string& file) {
  const std::filesystem::path path(file);
  return (path.parent_path() / (path.stem().string() + ".d")).string();
}

base::Status read_config_files(Config& config, const std::string& file, bool required) {
  auto text = read_file(file, kMaxConfigBytes);
  if (!text && (required || text.error().code != base::Code::kNotFound)) return tl::unexpected(text.error());
  if (text) {
    GPUMUX_TRY(read_config_text(config, *text, file));
    config.files.push_back(file);
  }
  std::vector<std::string> drop_ins;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(drop_in_directory(file), error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".toml") drop_ins.push_back(entry->path().string());
  }
  std::sort(drop_ins.begin(), drop_ins.end());
  for (const std::string& drop_in : drop_ins) {
    text = read_file(drop_in, kMaxConfigBytes);
    if (!text) return tl::unexpected(text.error());
    GPUMUX_TRY(read_config_text(config, *text, drop_in));
    config.files.push_back(drop_in);
  }
  return {};
}

base::Status read_environment(Config& config, const Environment& environment) {
  const auto in_variable = [](const char* variable, const base::Status& status) -> base::Status {
    if (status) return {};
    return base::fail(base::Code::kInvalid,
                      "environment variable " + std::string(variable) + ": " + status.error().message());
  };
  // An empty value counts as unset.
  const auto get = [&](std::string_view name) -> const char* {
    const char* value = name.empty() ? nullptr : environment(std::string(name).c_str());
    return value != nullptr && value[0] != '\0' ? value : nullptr;
  };
  for (const SettingKey& key : setting_keys()) {
    sched::GpuSettings settings;
    const char* own = get(key.environment);
    const char* alias = own == nullptr ? get(key.alias) : nullptr;
    if (own == nullptr && alias == nullptr) continue;
    if (own != nullptr) {
      GPUMUX_TRY(in_variable(key.environment.data(), set_setting(settings, key.name, own)));
    } else {
      GPUMUX_TRY(in_variable(key.alias.data(), set_by_alias(settings, key, alias)));
    }
    // The text itself where it is in our words: format() keeps three digits only.
    config.overrides.push_back({std::string(key.name), own != nullptr ? own : key.format(settings)});
  }
  if (const char* text = get("GPUMUX_ON_DAEMON_LOSS")) {
    GPUMUX_TRY(in_variable("GPUMUX_ON_DAEMON_LOSS", set_on_loss(config, text)));
  }
  if (const char* text = get("GPUMUX_LOG_LEVEL")) {
    GPUMUX_TRY(in_variable("GPUMUX_LOG_LEVEL", set_log_level_text(config, text)));
  } else if (const char* debug = get("NVSHARE_DEBUG"); debug != nullptr && std::string_view(debug) != "0") {
    config.log_level = LogLevel::kDebug;
  }
  return {};
}

base::Result<Config> load_config(const std::string& file, bool required, const Environment& environment) {
  Config config;
  GPUMUX_TRY(read_config_files(config, file, required));
  GPUMUX_TRY(read_environment(config, environment));
  return config;
}

base::Status save_settings(const std::string& config_file, const std::string& section,
                           const std::vector<Assignment>& changes) {
  const std::string directory = drop_in_directory(config_file);
  const std::string path = directory + "/" + kSavedName;
  // Sections and keys as they will be written. What is there already goes through the same checks as a configuration.
  std::map<std::string, std::map<std::string, std::string>> sections;
  if (const auto text = read_file(path, kMaxConfigBytes)) {
    Config saved;
    GPUMUX_TRY(read_config_text(saved, *text, path));
    for (const auto& [gpu, assignments] : saved.gpus) {
      for (const Assignment& a : assignments) sections["gpu.\"" + gpu + "\""][a.key] = a.value;
    }
    const toml::parse_result parsed = toml::parse(*text, path);
    if (const auto* defaults = parsed.table()["defaults"].as_table()) {
      for (const auto& [key, node] : *defaults)
        sections["defaults"][std::string(key.str())] = value_text(node).value_or("");
    }
  } else if (text.error().code != base::Code::kNotFound) {
    return tl::unexpected(text.error());
  }
  const std::string header = section == "defaults" ? section : "gpu.\"" + section + "\"";
  for (const Assignment& a : changes) sections[header][a.key] = a.value;

  std::string text = "# Written by gpumuxd for `gpumux set --save`. It may be edited or removed.\n";
  for (const auto& [name, settings] : sections) {
    text += "\n[" + name + "]\n";
    for (const auto& [key, value] : settings) {
      const SettingKey* known = find_setting(key);
      const bool quoted = known == nullptr || !known->boolean;
      text += key + " = " + (quoted ? "\"" + value + "\"" : value) + "\n";
    }
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  return replace_file(path, text, 0644);
}

}  // namespace gpumux::daemon
