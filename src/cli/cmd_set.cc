// SPDX-License-Identifier: Apache-2.0
// gpumux set: changes a running daemon's settings, per GPU.
#include <array>
#include <iostream>

#include "api_client/client.h"
#include "cli/command.h"
#include "cli/settings_change.h"
#include "cli/status_view.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

constexpr char kName[] = "set";

int report_change_error(const base::Error& error, const std::string& changed) {
  const int status = report_error(kName, error);
  if (!changed.empty()) say_error(kName, "changed before that: GPU " + changed);
  return status;
}

// UUIDs of the GPUs that were named, each once; or "all".
base::Result<std::vector<std::string>> resolve(const api_client::Client& client,
                                               const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "all") return std::vector<std::string>{"all"};
  }
  if (names.empty()) return std::vector<std::string>{"all"};
  const auto snapshot = client.snapshot();
  if (!snapshot) return tl::unexpected(snapshot.error());
  std::vector<std::string> uuids;
  for (const std::string& name : names) {
    const auto gpu = find_gpu(snapshot->gpus, name);
    if (!gpu) return tl::unexpected(gpu.error());
    if (std::find(uuids.begin(), uuids.end(), (*gpu)->uuid) == uuids.end()) uuids.push_back((*gpu)->uuid);
  }
  return uuids;
}

}  // namespace

int set_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  std::vector<std::string> gpus;
  bool save = false;
  CLI::App app("Changes settings of GPUs while programs run, and prints the settings now in force.", "gpumux set");
  app.add_option("GPU", gpus, "Indices, UUIDs, or all (the default)")->type_name("");
  const auto rules = setting_rules();
  std::vector<std::string> values(rules.size());
  std::vector<const CLI::Option*> given(rules.size());
  for (std::size_t i = 0; i < rules.size(); ++i) {
    given[i] = app.add_option(std::string(rules[i].option), values[i],
                              std::string(rules[i].meaning) + ": " + std::string(rules[i].allowed))
                   ->type_name(std::string(rules[i].placeholder));
  }
  app.add_flag("--save", save, "Also write them to the daemon's configuration, so that they outlive its restart");
  app.add_option("--runtime-dir", options.runtime_dir, "Ask the daemon whose sockets are in DIR")->type_name("DIR");
  app.footer(R"(Examples:
  gpumux set --quantum 50ms
  gpumux set 0 --mode concurrent
  gpumux set 0 1 --policy fifo --max-runtime 5m --save

Only the daemon's owner, root and members of the group gpumux may change settings.

Exit status: 0 changed, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;

  std::vector<SettingValue> changes;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (given[i]->count() == 0) continue;
    if (const auto checked = check_setting(rules[i].name, values[i]); !checked) {
      say_error(kName, checked.error().message());
      return kExitUsage;
    }
    changes.push_back({std::string(rules[i].name), values[i]});
  }
  for (const std::string& gpu : gpus) {
    if (const auto checked = check_gpu_name(gpu); !checked) {
      say_error(kName, checked.error().message());
      return kExitUsage;
    }
  }
  if (changes.empty()) {
    say_error(kName,
              "nothing to change: name at least one setting, for example --quantum 50ms; see `gpumux set --help`");
    return kExitUsage;
  }

  const auto client = api_client::Client::connect(options);
  if (!client) return report_error(kName, client.error());
  // Every name is looked up before anything is changed, so a wrong one changes nothing.
  const auto targets = resolve(*client, gpus);
  if (!targets) return report_error(kName, targets.error());
  const std::string body = settings_body(changes, save);
  std::string changed;
  for (const std::string& target : *targets) {
    const auto now = client->change_settings(target, body);
    if (!now) return report_change_error(now.error(), changed);
    for (const api_client::Gpu& gpu : *now) {
      std::cout << "GPU " << gpu.index << ": " << printable(describe_settings(gpu)) << "\n";
      changed += (changed.empty() ? "" : ", ") + std::to_string(gpu.index);
    }
  }
  std::cout << std::flush;
  return kExitOk;
}

}  // namespace gpumux::cli
