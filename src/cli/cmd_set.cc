// SPDX-License-Identifier: Apache-2.0
// gpumux set: changes a running daemon's settings, per GPU, and how running programs stand before others.
#include <array>
#include <iostream>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/find_client.h"
#include "cli/jobs/job_change.h"
#include "cli/jobs/submission.h"
#include "cli/views/settings_change.h"
#include "settings/settings.h"

namespace gpumux::cli {
namespace {

constexpr char kSetName[] = "set";

// Of a program that runs: in the API, as an option, and for --help.
struct StandingOption {
  const char* name;
  const char* option;
  const char* placeholder;
  const char* meaning;
};
constexpr std::array<StandingOption, 3> kStandingOptions{{
    {"priority", "--priority", "N",
     "With --tenant or --job: its priority, from -1000 to 1000, higher runs first, or default"},
    {"share", "--share", "X",
     "With --tenant: its weight among programs of the same priority, from 0.01 to 100, or default"},
    {"max_share", "--max-share", "PART", "With --tenant: the most GPU time that it may have, such as 30%, or default"},
}};

const char* placeholder(const settings::Setting& setting) {
  switch (setting.type.kind) {
    case settings::Kind::kTime: return "TIME";
    case settings::Kind::kBytes: return "BYTES";
    case settings::Kind::kBool: return "BOOL";
    default: return "WORD";
  }
}

int report_change_error(const base::Error& error, const std::string& changed) {
  const int status = report_error(kSetName, error);
  if (!changed.empty()) say_error(kSetName, "changed before that: " + changed);
  return status;
}

// UUIDs of the GPUs that were named, each once; or "all".
base::Result<std::vector<std::string>> resolve(const std::vector<api_client::Gpu>& gpus,
                                               const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "all") return std::vector<std::string>{"all"};
  }
  if (names.empty()) return std::vector<std::string>{"all"};
  std::vector<std::string> uuids;
  for (const std::string& name : names) {
    const auto gpu = find_gpu(gpus, name);
    if (!gpu) return tl::unexpected(gpu.error());
    if (std::find(uuids.begin(), uuids.end(), (*gpu)->uuid) == uuids.end()) uuids.push_back((*gpu)->uuid);
  }
  return uuids;
}

int change_gpus(const api_client::Client& client, const std::vector<std::string>& gpus,
                const std::vector<SettingValue>& changes, bool save) {
  // Every name is looked up before anything is changed, so a wrong one changes nothing.
  const auto before = client.snapshot();
  if (!before) return report_error(kSetName, before.error());
  const auto targets = resolve(before->gpus, gpus);
  if (!targets) return report_error(kSetName, targets.error());
  std::string changed;
  for (const std::string& target : *targets) {
    const auto now = client.change_settings(target, settings_body(changes, save));
    if (!now) return report_change_error(now.error(), changed.empty() ? "" : "GPU " + changed);
    for (const api_client::Gpu& gpu : *now) {
      const auto old = find_gpu(before->gpus, gpu.uuid);
      std::cout << "GPU " << gpu.index << ": "
                << printable(describe_changes(changes, old ? (*old)->settings : gpu.settings, gpu.settings)) << "\n";
      changed += (changed.empty() ? "" : ", ") + std::to_string(gpu.index);
    }
  }
  std::cout << std::flush;
  return kExitOk;
}

int change_tenants(const api_client::Client& client, const std::vector<std::string>& names, const std::string& body) {
  const auto snapshot = client.snapshot();
  if (!snapshot) return report_error(kSetName, snapshot.error());
  std::vector<std::uint64_t> tenants;
  for (const std::string& name : names) {
    const auto tenant = find_tenant(snapshot->gpus, name);
    if (!tenant) return report_error(kSetName, tenant.error());
    if (std::find(tenants.begin(), tenants.end(), *tenant) == tenants.end()) tenants.push_back(*tenant);
  }
  std::string changed;
  for (const std::uint64_t tenant : tenants) {
    const auto now = client.change_tenant(tenant, body);
    if (!now) return report_change_error(now.error(), changed);
    const std::string who = now->program + " (" + std::to_string(now->pid) + ")";
    std::cout << printable(who) << ": priority " << now->priority << ", share " << printable(now->share) << ", at most "
              << printable(now->max_share) << " of the time\n";
    changed += (changed.empty() ? "" : ", ") + who;
  }
  std::cout << std::flush;
  return kExitOk;
}

}  // namespace

int set_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  std::vector<std::string> gpus;
  std::vector<std::string> tenants;
  std::vector<std::string> jobs;
  RequestWishes request;
  bool save = false;
  CLI::App app(
      "Changes settings of GPUs, the priority and share of running programs, or what jobs ask for. Prints what has "
      "changed.",
      "gpumux set");
  app.add_option("GPU", gpus, "Indices, UUIDs, or all (the default)")->type_name("");
  const auto& table = settings::kGpuSettings;
  std::array<std::string, table.size()> values;
  std::array<const CLI::Option*, table.size()> given{};
  for (std::size_t i = 0; i < table.size(); ++i)
    given[i] = app.add_option(table[i].option(), values[i], table[i].help())->type_name(placeholder(table[i]));
  app.add_option("--tenant", tenants, "A running program, by its process id or name; may be given several times")
      ->type_name("PID")
      ->check(not_empty())
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--job", jobs, "A job's id; may be given several times")
      ->type_name("ID")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  std::array<std::string, kStandingOptions.size()> standing;
  std::array<const CLI::Option*, kStandingOptions.size()> given_standing{};
  for (std::size_t i = 0; i < kStandingOptions.size(); ++i) {
    given_standing[i] = app.add_option(kStandingOptions[i].option, standing[i], kStandingOptions[i].meaning)
                            ->type_name(kStandingOptions[i].placeholder);
  }
  add_text(app, "--time-limit", "TIME", request.time_limit,
           "With --job: its time limit, such as 1:30:00 or unlimited; of a started job, a shorter one");
  add_text(app, "--mem", "BYTES", request.memory, "With --job: its memory on each GPU, such as 20G; before it starts");
  auto* count = add_text(app, "--gpus", "N", request.gpus, "With --job: number of GPUs, any of them; before it starts");
  add_text(app, "--gpu-ids", "IDS", request.gpu_ids,
           "With --job: these GPUs, in this order, such as 0,2; before it starts")
      ->excludes(count);
  app.add_flag("--save", save,
               "Write the settings to the daemon's configuration, too, so that they outlive its restart");
  add_runtime_dir(app, options.runtime_dir);
  app.footer(R"(Examples:
  gpumux set --quantum 50ms
  gpumux set 0 --mode concurrent
  gpumux set 0 1 --policy fifo --max-runtime 5m --save
  gpumux set --tenant 4711 --priority 5
  gpumux set --tenant train.py --priority default --max-share 30%
  gpumux set --job 17 --priority 10
  gpumux set --job 17 --time-limit 4:00:00 --mem 20G --gpus 2

Only the daemon's owner, root and members of the group gpumux may change settings and put a program above others. The
user who started a program may change its priority and shares below that. Such a change lasts until the program or the
daemon ends.

A job's owner may change its priority, up to the limit that an administrator has set. While the job waits, its owner
may also change its time limit, its memory and its GPUs. Of a job that has started, the owner may make the time limit
shorter, and an administrator may make it longer. These changes last.

Exit status: 0 changed, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;

  std::vector<SettingValue> changes;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (given[i]->count() == 0) continue;
    // The daemon checks again. Checking here gives the error before any GPU is changed.
    if (const auto checked = settings::check(table[i], table[i].option(), values[i]); !checked)
      return usage_error(kSetName, checked.error().message());
    changes.push_back({std::string(table[i].name), values[i]});
  }
  std::vector<SettingValue> standing_changes;
  for (std::size_t i = 0; i < kStandingOptions.size(); ++i) {
    if (given_standing[i]->count() == 0) continue;
    if (const auto checked = check_standing(kStandingOptions[i].name, standing[i]); !checked)
      return usage_error(kSetName, checked.error().message());
    standing_changes.push_back({kStandingOptions[i].name, standing[i]});
  }
  // Of a job: its priority, and what else it asks for.
  const bool has_request =
      !request.time_limit.empty() || !request.memory.empty() || !request.gpus.empty() || !request.gpu_ids.empty();
  for (const SettingValue& change : standing_changes) {
    if (change.name == "priority" && change.value != "default") request.priority = change.value;
  }
  const bool is_a_jobs = standing_changes.empty() || (standing_changes.size() == 1 && !request.priority.empty());
  const bool are_gpus = tenants.empty() && jobs.empty();
  const char* const wrong =
      !tenants.empty() && !jobs.empty() ? "--tenant and --job cannot be combined: use two commands"
      : !are_gpus && (!changes.empty() || !gpus.empty() || save)
          ? "settings of GPUs and --save cannot be combined with --tenant or --job: use two commands"
      : are_gpus && !standing_changes.empty()
          ? "--priority, --share and --max-share need a program or a job: add --tenant PID or --job ID"
      : jobs.empty() && has_request ? "--time-limit, --mem, --gpus and --gpu-ids need a job: add --job ID"
      : !tenants.empty() && standing_changes.empty()
          ? "nothing to change: name --priority, --share or --max-share with --tenant"
      : !jobs.empty() && !is_a_jobs ? "--share, --max-share and --priority default are for programs, not for jobs"
      : !jobs.empty() && !has_request && request.priority.empty()
          ? "nothing to change: name --priority, --time-limit, --mem, --gpus or --gpu-ids with --job"
      : are_gpus && changes.empty() ? "nothing to change: name at least one setting, such as --quantum 50ms"
                                    : nullptr;
  if (wrong != nullptr) return usage_error(kSetName, wrong);
  api_client::Submission wanted;
  if (const auto read = read_request(jobs.empty() ? RequestWishes() : request, wanted); !read)
    return usage_error(kSetName, read.error().message());
  if (const auto checked = api_client::check_job_ids(jobs); !checked)
    return usage_error(kSetName, checked.error().message());

  const auto client = jobs.empty() ? api_client::Client::connect(options) : find_jobs(options);
  if (!client) return report_error(kSetName, client.error());
  if (!jobs.empty()) return change_requests(kSetName, *client, jobs, wanted);
  if (!tenants.empty()) return change_tenants(*client, tenants, settings_body(standing_changes, false));
  return change_gpus(*client, gpus, changes, save);
}

}  // namespace gpumux::cli
