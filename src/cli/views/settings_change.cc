// SPDX-License-Identifier: Apache-2.0
#include "cli/views/settings_change.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/ids.h"
#include "base/limits.h"
#include "base/standing.h"
#include "base/units.h"
#include "settings/settings.h"

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;
using base::Status;

std::string names_of(const std::vector<api_client::Gpu>& gpus) {
  std::string text;
  for (const auto& gpu : gpus) text += (text.empty() ? "" : ", ") + std::to_string(gpu.index) + " (" + gpu.uuid + ")";
  return text.empty() ? "none" : text;
}

}  // namespace

std::string settings_body(const std::vector<SettingValue>& values, bool save) {
  nlohmann::json body = nlohmann::json::object();
  for (const SettingValue& value : values) {
    const settings::Setting* const setting = settings::find(settings::kGpuSettings, value.name);
    if (setting != nullptr && setting->is_boolean()) {
      body[value.name] = value.value == "true";
    } else {
      body[value.name] = value.value;
    }
  }
  if (save) body["save"] = true;
  return body.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string describe_changes(const std::vector<SettingValue>& changes, const std::map<std::string, std::string>& before,
                             const std::map<std::string, std::string>& now) {
  const auto value = [](const std::map<std::string, std::string>& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string("?") : found->second;
  };
  std::string text;
  for (const SettingValue& change : changes) {
    std::string name = change.name;
    std::replace(name.begin(), name.end(), '_', ' ');
    const std::string was = value(before, change.name);
    const std::string is = value(now, change.name);
    text += (text.empty() ? "" : ", ") + name + " " + (was == is ? is + " (as before)" : was + " -> " + is);
  }
  return text;
}

Status check_standing(std::string_view name, std::string_view value) {
  if (value == "default") return {};
  Status checked;
  const auto check = [&](const auto& parsed) {
    if (!parsed) checked = tl::unexpected(parsed.error());
  };
  if (name == "priority") check(base::parse_priority(value));
  if (name == "share") check(base::parse_share(value));
  if (name == "max_share") check(base::parse_max_share(value));
  if (checked) return {};
  std::string option(name);
  std::replace(option.begin(), option.end(), '_', '-');
  return base::fail(Code::kInvalid, "--" + option + " cannot be '" + std::string(value.substr(0, 64)) +
                                        "': " + checked.error().what + ", or default: the value at its start");
}

Result<std::uint64_t> parse_tenant(std::string_view text) {
  const auto number = base::parse_integer(text, 1, std::numeric_limits<std::int64_t>::max());
  if (number) return *number;
  return base::fail(Code::kInvalid, "'" + std::string(text.substr(0, 64)) +
                                        "' names no program: give its process id, as `gpumux status` shows it");
}

Result<std::uint64_t> find_tenant(const std::vector<api_client::Gpu>& gpus, std::string_view text) {
  const auto number = parse_tenant(text);
  if (!number) return tl::unexpected(number.error());
  std::optional<std::uint64_t> found;
  for (const auto& gpu : gpus) {
    for (const auto& seat : gpu.seats) {
      if (seat.pid == static_cast<std::int64_t>(*number)) return seat.tenant;
      if (seat.tenant == *number) found = seat.tenant;
    }
  }
  if (found) return *found;
  return base::fail(Code::kNotFound, "no program with the process id " + std::string(text) +
                                         " uses a GPU under gpumux: see `gpumux status`");
}

Result<const api_client::Gpu*> find_gpu(const std::vector<api_client::Gpu>& gpus, std::string_view text) {
  if (const auto index = base::parse_integer(text, 0, base::kMaxGpus - 1)) {
    for (const auto& gpu : gpus) {
      if (gpu.index == *index) return &gpu;
    }
  }
  const api_client::Gpu* found = nullptr;
  for (const auto& gpu : gpus) {
    const std::string_view uuid = gpu.uuid;
    if (uuid == text || (uuid.size() > 4 && uuid.substr(4) == text)) return &gpu;
    if (text.size() <= 4 || !uuid.starts_with(text)) continue;
    if (found != nullptr) {
      return base::fail(Code::kInvalid, "'" + std::string(text) + "' could be " + found->uuid + " or " + gpu.uuid +
                                            ": write more characters");
    }
    found = &gpu;
  }
  if (found == nullptr) {
    return base::fail(Code::kNotFound,
                      "there is no GPU '" + std::string(text) + "'; the daemon serves: " + names_of(gpus));
  }
  return found;
}

}  // namespace gpumux::cli
