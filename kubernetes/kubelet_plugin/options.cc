// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/options.h"

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <utility>

#include "base/units.h"
#include "base/version.h"
#include "command_line/parse.h"
#include "os/runtime_dir.h"
#include "settings/settings.h"

namespace gpumux::kubernetes {
namespace {

constexpr char kFooter[] = R"(
Examples:
  gpumux-kubelet-plugin                               ten shares of each GPU
  gpumux-kubelet-plugin --resource nvshare.com/gpu    serve nvshare's pods
  gpumux-kubelet-plugin --whole GPU-6f1c... --shares 4
                                                      the other GPUs in 4 shares
  gpumux-kubelet-plugin --inject env                  a runtime without CDI
  gpumux-kubelet-plugin --api dra --node "$NODE"      claims of devices
  gpumux-kubelet-plugin --check                       for a probe: whether the plugin of this node answers
  gpumux-kubelet-plugin --install                     for an init container: put hook and library on the host

Exit status:
  0  stopped (SIGTERM, SIGINT), or the plugin answers, or the files are installed or removed
  1  something failed that should not, or the plugin does not answer
  2  wrong options or variables

Containers that run go on when the plugin stops.)";

constexpr std::pair<const char*, Api> kApis[] = {{"device-plugin", Api::kDevicePlugin}, {"dra", Api::kDra}};

EarlyExit fail(const std::string& text) {
  return {kExitUsage, command_line::error_text("gpumux-kubelet-plugin", text), true};
}

base::Result<Api> parse_api(const std::string& name) {
  std::string all;
  for (const auto& [known, api] : kApis) {
    if (name == known) return api;
    all += (all.empty() ? "" : ", ") + std::string(known);
  }
  return base::fail(base::Code::kInvalid, "--api " + name + ": this version serves no such API; it serves: " + all);
}

// An empty value counts as unset.
std::optional<std::string> value_of(const Environment& environment, std::string_view name) {
  const char* value = name.empty() ? nullptr : environment(std::string(name).c_str());
  if (value == nullptr || value[0] == '\0') return std::nullopt;
  return value;
}

base::Status read_variable(settings::KubeletSettings& target, const settings::Setting& setting,
                           const Environment& environment) {
  const auto in_variable = [](std::string_view name, const base::Error& error) {
    return base::fail(base::Code::kInvalid, "environment variable " + std::string(name) + ": " + error.message());
  };
  if (const auto own = value_of(environment, setting.variable)) {
    if (const auto done = settings::set(target, setting.name, *own); !done)
      return in_variable(setting.variable, done.error());
  } else if (const auto alias = value_of(environment, setting.alias.name)) {
    const auto text = settings::alias_text(setting, *alias);
    if (!text) return in_variable(setting.alias.name, text.error());
    if (*text) return settings::set(target, setting.name, **text);
  }
  return {};
}

// "10.0.0.1:6443", "[fd00::1]:6443"; or what the kubelet tells each pod.
base::Status find_api_server(PluginOptions& options, const Environment& environment) {
  if (!options.settings.api_server) {
    const auto variable = [&](const char* name) { return value_of(environment, name); };
    options.api_address = variable("KUBERNETES_SERVICE_HOST").value_or("");
    options.api_port = variable("KUBERNETES_SERVICE_PORT").value_or("443");
    if (!options.api_address.empty()) return {};
    return base::fail(base::Code::kInvalid,
                      "--api dra needs the API server: run in a pod, or set --api-server ADDRESS:PORT");
  }
  const std::string& text = *options.settings.api_server;
  const std::size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    options.api_address = text.substr(0, colon);
    options.api_port = text.substr(colon + 1);
    if (options.api_address.starts_with('[') && options.api_address.ends_with(']'))
      options.api_address = options.api_address.substr(1, options.api_address.size() - 2);
  }
  if (!options.api_address.empty() && base::parse_integer(options.api_port.c_str(), 1, 65535)) return {};
  return base::fail(base::Code::kInvalid, "--api-server " + text + ": this is no ADDRESS:PORT, such as 10.0.0.1:6443");
}

base::Status check_dra_options(PluginOptions& options, const Environment& environment) {
  if (options.settings.inject == settings::Inject::kEnv)
    return base::fail(base::Code::kInvalid, "--inject env: dynamic resource allocation needs a runtime with CDI");
  if (options.task != Task::kServe) return {};
  if (!options.settings.node)
    return base::fail(base::Code::kInvalid,
                      "--api dra needs the name that Kubernetes has for this node: set --node NAME");
  return find_api_server(options, environment);
}

}  // namespace

std::variant<PluginOptions, EarlyExit> parse_options(int argc, const char* const* argv,
                                                     const Environment& environment) {
  PluginOptions options;
  std::string api = kApis[0].first;
  std::map<std::string, std::string> flags;

  CLI::App app("gpumux-kubelet-plugin serves shares of this node's GPUs to the kubelet.", "gpumux-kubelet-plugin");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("gpumux-kubelet-plugin ") + base::version());
  app.add_option("--api", api, "The kubelet's API that is served: device-plugin, dra")->type_name("API");
  app.add_option("--runtime-dir", options.runtime_dir, "Where the daemon's sockets are (default: /run/gpumux)")
      ->type_name("DIR");
  const auto add_task = [&](const char* name, Task task, const char* help) {
    return app.add_flag_callback(
        name, [&options, task] { options.task = task; }, help);
  };
  auto* const check =
      add_task("--check", Task::kCheck, "Ask the plugin that runs on this node whether it answers, and stop");
  auto* const install = add_task("--install", Task::kInstall,
                                 "Put this version's library and the hook where --libraries and --hook say, and stop");
  add_task("--remove", Task::kRemove,
           "Remove CDI specifications, hook, libraries, and the folders of an ended plugin and daemon from the host, "
           "unless containers use them, and stop")
      ->excludes(check)
      ->excludes(install);
  check->excludes(install);
  for (const settings::Setting& setting : settings::kKubeletSettings) {
    app.add_option(setting.option(), flags[std::string(setting.name)], setting.help())
        ->type_name("VALUE")
        ->group("Settings, over the environment");
  }
  if (const auto end = command_line::parse(app, {argv + 1, argv + argc}))
    return EarlyExit{end->is_error ? kExitUsage : kExitStopped, end->text, end->is_error};

  const auto served = parse_api(api);
  if (!served) return fail(served.error().message());
  options.api = *served;
  for (const settings::Setting& setting : settings::kKubeletSettings) {
    const std::string& text = flags[std::string(setting.name)];
    if (text.empty()) {
      if (const auto done = read_variable(options.settings, setting, environment); !done)
        return fail(done.error().message());
    } else if (const auto good = settings::check(setting, setting.option(), text); !good) {
      return fail(good.error().message());
    } else {
      static_cast<void>(settings::set(options.settings, setting.name, text));
    }
  }
  if (options.settings.inject == settings::Inject::kEnv && options.settings.nvidia == settings::Nvidia::kCdi)
    return fail("--inject env is for runtimes without CDI, and --nvidia cdi needs one with it: set --nvidia env");
  if (options.api == Api::kDra) {
    if (const auto good = check_dra_options(options, environment); !good) return fail(good.error().message());
  }
  if (options.settings.resource == options.settings.whole_resource)
    return fail("--resource and --whole-resource are both " + options.settings.resource + ": each needs a name");
  if (options.runtime_dir.empty())
    options.runtime_dir = value_of(environment, "GPUMUX_RUNTIME_DIR").value_or(os::kSystemRuntimeDir);
  return options;
}

}  // namespace gpumux::kubernetes
