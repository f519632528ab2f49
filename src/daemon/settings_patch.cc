// SPDX-License-Identifier: Apache-2.0
#include "daemon/settings_patch.h"

#include <nlohmann/json.hpp>

#include "daemon/settings.h"

namespace gpumux::daemon {
namespace {

// The format has two levels. The parser is recursive where values are destroyed, so depth is limited before it builds
// any.
constexpr int kMaxDepth = 8;

}  // namespace

base::Result<SettingsPatch> parse_settings_patch(std::string_view body) {
  using Json = nlohmann::json;
  bool too_deep = false;
  const auto limit = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  const Json json = Json::parse(body, limit, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return base::fail(base::Code::kInvalid,
                      "the body must be a JSON object of settings, such as {\"quantum\": \"50ms\"}");
  }
  SettingsPatch patch;
  for (const auto& [name, value] : json.items()) {
    if (name == "save") {
      if (!value.is_boolean()) return base::fail(base::Code::kInvalid, "save must be true or false");
      patch.save = value.get<bool>();
      continue;
    }
    const SettingKey* key = find_setting(name);
    std::string text;
    if (value.is_string()) {
      text = value.get<std::string>();
    } else if (value.is_boolean() && (key == nullptr || key->boolean)) {
      text = value.get<bool>() ? "true" : "false";
    } else if (key != nullptr) {
      return base::fail(base::Code::kInvalid,
                        name.substr(0, 64) + " must be " + std::string(key->allowed) + ", as a string");
    }
    GpuSettings scratch;
    GPUMUX_TRY(set_setting(scratch, name, text));
    patch.changes.push_back({name, text});
  }
  return patch;
}

}  // namespace gpumux::daemon
