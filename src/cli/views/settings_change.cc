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

Result<std::uint64_t> find_tenant(const std::vector<api_client::Gpu>& gpus, std::string_view text) {
  const auto number = base::parse_integer(text, 1, std::numeric_limits<std::int64_t>::max());
  const std::string shown(text.substr(0, 64));
  std::optional<std::uint64_t> by_number;
  std::map<std::uint64_t, std::int64_t> by_name;  // a tenant may have seats on several GPUs
  for (const auto& gpu : gpus) {
    for (const auto& seat : gpu.seats) {
      if (number && seat.pid == static_cast<std::int64_t>(*number)) return seat.tenant;
      if (number && seat.tenant == *number) by_number = seat.tenant;
      if (!number && !text.empty() && seat.program == text) by_name[seat.tenant] = seat.pid;
    }
  }
  if (by_number) return *by_number;
  if (by_name.size() == 1) return by_name.begin()->first;
  if (number)
    return base::fail(Code::kNotFound,
                      "no program with the process id " + shown + " uses a GPU under gpumux: see `gpumux status`");
  if (by_name.empty())
    return base::fail(Code::kNotFound, "no program with the name '" + shown +
                                           "' uses a GPU under gpumux: `gpumux status` shows names and process ids");
  std::string pids;
  for (const auto& [tenant, pid] : by_name) pids += (pids.empty() ? "" : ", ") + std::to_string(pid);
  return base::fail(Code::kInvalid,
                    "several processes have the name '" + shown + "': give their process ids, of " + pids);
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
