// SPDX-License-Identifier: Apache-2.0
#include "settings/settings.h"

namespace gpumux::settings {
namespace {

// Calls walk(visit) with what sets the field named `name`.
template <class Walk>
base::Status set_field(std::span<const Setting> table, std::string_view name, std::string_view text, const Walk& walk) {
  const Setting* const setting = find(table, name);
  if (setting == nullptr) return base::fail(base::Code::kInvalid, no_such(table, name));
  const auto value = parse(setting->type, name, text);
  if (!value) return tl::unexpected(value.error());
  walk([&](const Setting& each, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (!std::is_same_v<Field, std::vector<std::string>>) {
      if (&each == setting) field = field_of<Field>(*value, text);
    }
  });
  return {};
}

}  // namespace

base::Status set(GpuSettings& settings, std::string_view name, std::string_view text) {
  return set_field(kGpuSettings, name, text, [&](const auto& visit) { visit_gpu(settings, visit); });
}

base::Status set(QueueSettings& settings, std::string_view name, std::string_view text) {
  return set_field(kQueueSettings, name, text, [&](const auto& visit) { visit_queue(settings, visit); });
}

base::Status set(DaemonSettings& settings, std::string_view name, std::string_view text) {
  return set_field(kDaemonSettings, name, text, [&](const auto& visit) { visit_daemon(settings, visit); });
}

base::Status set(KubeletSettings& settings, std::string_view name, std::string_view text) {
  return set_field(kKubeletSettings, name, text, [&](const auto& visit) { visit_kubelet(settings, visit); });
}

}  // namespace gpumux::settings
