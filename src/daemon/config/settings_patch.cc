// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/settings_patch.h"

#include <nlohmann/json.hpp>

#include "server/api/strict_json.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

// The format has two levels. The parser is recursive where values are destroyed, so depth is limited before it builds
// any.
constexpr int kMaxDepth = 8;

using SortedJson = nlohmann::json;

base::Result<SortedJson> parse_object(std::string_view body, const char* example) {
  auto json = server::parse_strict_json<SortedJson>(body, {.depth = kMaxDepth});
  if (!json || json->is_object()) return json;
  return base::fail(base::Code::kInvalid,
                    std::string("the body must be a JSON object of settings, such as ") + example);
}

}  // namespace

base::Result<SettingsPatch> parse_settings_patch(std::string_view body) {
  const auto json = parse_object(body, R"({"quantum": "50ms"})");
  if (!json) return tl::unexpected(json.error());
  SettingsPatch patch;
  for (const auto& [name, value] : json->items()) {
    if (name == "save") {
      if (!value.is_boolean()) return base::fail(base::Code::kInvalid, "save must be true or false");
      patch.save = value.get<bool>();
      continue;
    }
    const settings::Setting* const setting = settings::find(settings::kGpuSettings, name);
    if (setting == nullptr) return base::fail(base::Code::kInvalid, settings::no_such(settings::kGpuSettings, name));
    std::string text;
    if (value.is_string()) {
      text = value.get<std::string>();
    } else if (value.is_boolean() && setting->is_boolean()) {
      text = value.get<bool>() ? "true" : "false";
    } else {
      return base::fail(base::Code::kInvalid,
                        name + " must be " + std::string(setting->type.allowed) + ", as a string");
    }
    GPUMUX_TRY(settings::check(*setting, name, text));
    patch.changes.push_back({name, text});
  }
  return patch;
}

base::Result<base::Standing> parse_standing_patch(std::string_view body, const base::Standing& now,
                                                  const base::Standing& at_start) {
  const auto json = parse_object(body, R"({"priority": "5"})");
  if (!json) return tl::unexpected(json.error());
  base::Standing standing = now;
  for (const auto& [name, value] : json->items()) {
    const auto read = [&text = value](auto parse, auto& into, auto fallback) -> base::Status {
      const std::string given = text.is_string()           ? text.template get<std::string>()
                                : text.is_number_integer() ? text.dump()
                                                           : std::string();
      if (given == "default") {
        into = fallback;
        return {};
      }
      const auto parsed = parse(given);
      if (!parsed) return tl::unexpected(parsed.error());
      into = *parsed;
      return {};
    };
    base::Status done;
    if (name == "priority") {
      done = read(base::parse_priority, standing.priority, at_start.priority);
    } else if (name == "share") {
      done = read(base::parse_share, standing.share, at_start.share);
    } else if (name == "max_share") {
      done = read(base::parse_max_share, standing.max_share, at_start.max_share);
    } else {
      return base::fail(base::Code::kInvalid, "there is no setting '" + name.substr(0, 64) +
                                                  "' of a tenant: it has priority, share and max_share");
    }
    if (!done) {
      return base::fail(base::Code::kInvalid,
                        "cannot set " + name + ": " + done.error().what + ", or default: the value at its start");
    }
  }
  return standing;
}

}  // namespace gpumux::daemon
