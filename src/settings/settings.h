// SPDX-License-Identifier: Apache-2.0
// Setting and showing whole structs of settings by name. The structs and the table of their fields are generated from
// settings.table; a new setting is one line there, and its use.
#pragma once

#include <string_view>

#include "settings/settings.gen.h"

namespace gpumux::settings {

// Sets the field `name` to what `text` says. kInvalid names the setting, the value and what is allowed.
base::Status set(GpuSettings& settings, std::string_view name, std::string_view text);
base::Status set(QueueSettings& settings, std::string_view name, std::string_view text);
// The lists of names are no texts: they are set by the reader of the file or of the options.
base::Status set(DaemonSettings& settings, std::string_view name, std::string_view text);
base::Status set(KubeletSettings& settings, std::string_view name, std::string_view text);

// Calls show(setting, text) for every setting of a GPU.
template <class Show>
void show(const GpuSettings& settings, const Show& show) {
  visit_gpu(settings,
            [&](const Setting& setting, const auto& field) { show(setting, format_field(setting.type, field)); });
}

}  // namespace gpumux::settings
