// SPDX-License-Identifier: Apache-2.0
#include "daemon/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <map>
#include <utility>

#include "base/units.h"
#include "base/version.h"
#include "command_line/parse.h"
#include "daemon/api/openapi.h"
#include "os/installation.h"
#include "os/runtime_dir.h"
#include "server/peers/access.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

constexpr char kSystemStateDir[] = "/var/lib/gpumux";

constexpr char kFooter[] = R"(
Examples:
  gpumuxd                                    the machine's daemon
  gpumuxd --private --exit-when-unused 10s   one user's daemon, while it is used
  gpumuxd --gpus 0,1 --quantum 50ms          serve two GPUs, with quanta of 50 ms
  gpumuxd --check-config                     check the configuration

Exit status:
  0  stopped (SIGTERM, SIGINT, or unused), or the configuration is right
  1  an unexpected failure; the log names it
  2  wrong options
  3  wrong configuration; the error names file, line, key and the allowed values
  4  no NVIDIA driver or no GPU
  5  another daemon has this runtime directory, or all the GPUs; the error names its owner.
     Or a private daemon has given way to root's daemon
  6  the runtime directory, its sockets or the trace file cannot be made

Tenants go on when the daemon stops, and come back to the next one.)";

EarlyExit fail(ExitCode code, const std::string& text) {
  return {code, command_line::error_text("gpumuxd", text), true};
}

std::string default_config_file(bool is_private, const Environment& environment) {
  if (!is_private) return kSystemConfigFile;
  if (const char* xdg = environment("XDG_CONFIG_HOME"); xdg != nullptr && xdg[0] == '/')
    return std::string(xdg) + "/gpumux/gpumux.toml";
  if (const char* home = environment("HOME"); home != nullptr && home[0] == '/')
    return std::string(home) + "/.config/gpumux/gpumux.toml";
  return kSystemConfigFile;
}

// The folder for jobs: the one that a service manager has made for it, else the usual place.
std::string default_state_dir(bool is_private, const Environment& environment) {
  if (is_private) return os::private_state_dir(environment);
  if (const char* named = environment("GPUMUX_STATE_DIR"); named != nullptr && named[0] != '\0') return named;
  const char* made = environment("STATE_DIRECTORY");
  if (made == nullptr || made[0] != '/') return kSystemStateDir;
  const std::string all = made;
  return all.substr(0, all.find(':'));
}

base::Result<std::string> runtime_dir(const std::string& named, bool is_private, const Environment& environment) {
  if (!named.empty()) return named;
  if (is_private) return os::make_user_runtime_dir();
  if (const char* variable = environment("GPUMUX_RUNTIME_DIR"); variable != nullptr && variable[0] != '\0')
    return std::string(variable);
  return std::string(os::kSystemRuntimeDir);
}

}  // namespace

std::variant<ParsedOptions, EarlyExit> parse_options(int argc, const char* const* argv,
                                                     const Environment& environment) {
  ParsedOptions parsed;
  DaemonOptions& daemon = parsed.daemon;
  std::string exit_when_unused;
  std::string max_job_time;
  std::string log_level;
  std::map<std::string, std::string> settings;

  CLI::App app("gpumuxd shares this machine's GPUs between programs.", "gpumuxd");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("gpumuxd ") + base::version());
  app.add_option(
         "--config", daemon.config_file,
         "Configuration file, for all settings: these, the daemon's own and the queue's (docs/configuration.md; "
         "default: /etc/gpumux/gpumux.toml, private: ~/.config/gpumux/gpumux.toml)")
      ->type_name("FILE");
  app.add_option("--runtime-dir", daemon.runtime_dir,
                 "Directory of the sockets (default: /run/gpumux, private: the user's own)")
      ->type_name("DIR");
  app.add_option(
         "--state-dir", daemon.state_dir,
         "Directory of the jobs (default: /var/lib/gpumux, private: ~/.local/state/gpumux/queue); none: no queue")
      ->type_name("DIR");
  app.add_option("--max-job-time", max_job_time,
                 "A time limit for every job, in seconds; a job's own limit counts if it is smaller")
      ->type_name("SECONDS");
  app.add_flag("--private", daemon.is_private, "Serve only the user who starts the daemon; needs no root");
  app.add_option("--exit-when-unused", exit_when_unused,
                 "Stop after this time without tenants and API requests, such as 10s")
      ->type_name("TIME");
  app.add_flag("--restart-on-failure", parsed.restart_on_failure,
               "Start the daemon again if it fails or is killed, as systemd does for the system's");
  app.add_option("--trace", daemon.trace_file, "Append the lease trace to this file, one JSON object per line")
      ->type_name("FILE");
  app.add_option("--log-level", log_level, "How much to log: debug, info, warning or error")->type_name("LEVEL");
  app.add_option("--notify-fd", daemon.notify_fd, "Write READY=1 to this descriptor once the sockets are open")
      ->type_name("FD");
  app.add_option("--gpus", daemon.gpus, "Serve only these GPUs, by index or UUID, separated by commas")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("GPUS");
  app.add_flag("--check-config", parsed.check_config, "Check the configuration and the environment, and stop");
  bool print_api = false;
  app.add_flag("--print-api", print_api, "Print the description of the HTTP API in OpenAPI, and stop");
  for (const settings::Setting& setting : settings::kGpuSettings) {
    app.add_option(setting.option(), settings[std::string(setting.name)], setting.help())
        ->type_name("VALUE")
        ->group("Settings of every GPU, over file and environment");
  }
  if (const auto end = command_line::parse(app, {argv + 1, argv + argc}))
    return EarlyExit{end->is_error ? kExitUsage : kExitStopped, end->text, end->is_error};
  if (print_api) return EarlyExit{kExitStopped, openapi_text()};

  for (const settings::Setting& setting : settings::kGpuSettings) {
    const std::string& text = settings[std::string(setting.name)];
    if (text.empty()) continue;
    if (const auto good = settings::check(setting, setting.option(), text); !good)
      return fail(kExitUsage, good.error().message());
    daemon.flag_settings.push_back({std::string(setting.name), text});
  }
  if (!exit_when_unused.empty()) {
    const auto duration = base::parse_duration(exit_when_unused, std::chrono::seconds(1));
    if (!duration || duration->count() == 0) return fail(kExitUsage, "--exit-when-unused must be a time such as 10s");
    daemon.exit_when_unused = *duration;
  }
  if (!max_job_time.empty()) {
    const auto seconds = base::parse_integer(max_job_time, 1, 31'536'000);
    if (!seconds) return fail(kExitUsage, "--max-job-time must be a number of seconds, at most a year");
    daemon.flag_max_job_time = std::chrono::seconds(static_cast<std::int64_t>(*seconds));
  }
  daemon.config_required = !daemon.config_file.empty();
  if (!daemon.config_required) daemon.config_file = default_config_file(daemon.is_private, environment);
  auto config = load_config(daemon.config_file, daemon.config_required, environment);
  if (!config) return fail(exit_code_of(config.error(), kExitConfig), config.error().message());
  daemon.config = std::move(*config);
  if (!log_level.empty()) {
    if (const auto set = settings::set(daemon.config, "log_level", log_level); !set)
      return fail(kExitUsage, "--log-level: " + set.error().message());
    daemon.flag_log_level = log_level;
  }
  if (const auto access = server::AccessRules::make(daemon.config, ::geteuid(), daemon.is_private); !access) {
    return fail(kExitConfig, access.error().message());
  }
  daemon.environment = environment;
  if (const char* nvml = environment("GPUMUX_NVML"); nvml != nullptr) parsed.nvml_path = nvml;
  if (daemon.state_dir.empty()) daemon.state_dir = default_state_dir(daemon.is_private, environment);
  if (parsed.check_config) return parsed;
  auto dir = runtime_dir(daemon.runtime_dir, daemon.is_private, environment);
  if (!dir) return fail(kExitNoSockets, dir.error().message());
  daemon.runtime_dir = std::move(*dir);
  return parsed;
}

}  // namespace gpumux::daemon
