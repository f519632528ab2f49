// SPDX-License-Identifier: Apache-2.0
// Fuzzes the texts that the daemon reads. From strangers: PATCH bodies and jobs. From its owner: the configuration.
// From itself, perhaps of another version: the list of known tenants. Also times and byte counts. The first byte
// chooses; the rest is the text.
#include <cstdlib>
#include <string_view>

#include "daemon/config/config.h"
#include "daemon/config/settings_patch.h"
#include "daemon/peers/known_tenants.h"
#include "jobs/service/launch.h"
#include "jobs/service/submission.h"
#include "server/api/api_types.h"
#include "settings/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpumux::daemon;
  using namespace gpumux::jobs;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0: {
      const auto patch = parse_settings_patch(text);
      GpuSettings settings;
      // A patch that was accepted can be applied.
      for (std::size_t i = 0; patch && i < patch->changes.size(); ++i) {
        if (!gpumux::settings::set(settings, patch->changes[i].key, patch->changes[i].value)) std::abort();
      }
      break;
    }
    case 1: {
      Config config;
      if (read_config_text(config, text, "fuzz.toml")) static_cast<void>(config.settings_for(0, "GPU-0"));
      break;
    }
    case 2: {
      const auto tenants = parse_known_tenants(text);
      if (parse_known_tenants(format_known_tenants(tenants)).size() != tenants.size()) std::abort();
      break;
    }
    case 3: {
      for (const gpumux::settings::Setting& setting : gpumux::settings::kGpuSettings) {
        GpuSettings settings;
        static_cast<void>(gpumux::settings::alias_text(setting, text));
        if (!gpumux::settings::set(settings, setting.name, text)) continue;
        gpumux::settings::show(settings, [](const auto&, const std::string&) {});
      }
      break;
    }
    case 4: {
      const gpumux::base::Standing at_start{.priority = -3, .share = 50, .max_share = 200};
      static_cast<void>(parse_standing_patch(text, {}, at_start));
      break;
    }
    case 5: {
      const std::string quoted = gpumux::server::json_string(text);
      if (quoted.size() < 2 || quoted.front() != '"' || quoted.back() != '"') std::abort();
      break;
    }
    case 6: {
      if (const auto submission = parse_submission(text)) {
        // A submission that was accepted is kept, and comes back.
        const std::string kept = to_text(submission->document);
        const auto back = parse_document(kept);
        if (!back || to_text(*back) != kept) std::abort();
        static_cast<void>(make_runner_spec(*back, {}, {}));
      }
      static_cast<void>(parse_document(text));
      break;
    }
    default: {
      static_cast<void>(parse_array(text));
      static_cast<void>(parse_limits(text));
      gpumux::settings::QueueSettings queue;
      gpumux::settings::DaemonSettings daemon;
      for (const auto& setting : gpumux::settings::kQueueSettings)
        static_cast<void>(gpumux::settings::set(queue, setting.name, text));
      for (const auto& setting : gpumux::settings::kDaemonSettings)
        static_cast<void>(gpumux::settings::set(daemon, setting.name, text));
    }
  }
  return 0;
}
