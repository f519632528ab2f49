// SPDX-License-Identifier: Apache-2.0
// gpumux status: the holders of each GPU, the seats that wait for them, and why.
#include <set>
#include <utility>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/frame/watch.h"
#include "cli/jobs/queue_state_view.h"
#include "cli/run/tenants_here.h"
#include "cli/views/settings_change.h"
#include "cli/views/status_view.h"
#include "os/runtime_dir.h"

namespace gpumux::cli {
namespace {

constexpr char kStatusName[] = "status";

// The daemon's answer, without the end of its last line.
base::Result<std::vector<std::string>> look_as_json(const api_client::Options& options, const Output& output) {
  const auto text = api_client::Client::connect(options).and_then(&api_client::Client::snapshot_text);
  if (!text) return tl::unexpected(text.error());
  std::string json = json_for(output, *text);
  json.pop_back();
  return std::vector{std::move(json)};
}

// `names`: of GPUs; none: all.
base::Result<std::vector<std::string>> look_as_table(const api_client::Options& options,
                                                     const std::vector<std::string>& names, const Output& output,
                                                     StatusTable shown) {
  const auto client = api_client::Client::connect(options);
  if (!client) return tl::unexpected(client.error());
  const auto snapshot = client->snapshot();
  if (!snapshot) return tl::unexpected(snapshot.error());
  std::set<std::uint32_t> gpus;
  for (const std::string& name : names) {
    const auto gpu = find_gpu(snapshot->gpus, name);
    if (!gpu) return tl::unexpected(gpu.error());
    gpus.insert((*gpu)->index);
  }
  // A daemon without a queue has GPUs all the same.
  const auto queue = client->queue();
  return status_lines(*snapshot, output, shown, gpus,
                      queue ? jobs_of_gpus(*queue) : std::map<std::uint32_t, std::string>());
}

}  // namespace

int status_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  bool json = false;
  bool memory = false;
  std::vector<std::string> gpus;
  CLI::App app("Shows the GPUs, the programs that hold and wait for each, and why they wait.", "gpumux status");
  CLI::Option* const as_json =
      app.add_flag("--json", json, "Print the daemon's answer as it is (docs/api.md, GET /v1/status)");
  app.add_option("GPU", gpus, "Show only these GPUs, by index or UUID")->type_name("")->excludes(as_json);
  app.add_flag("--memory", memory, "Show where each program's memory is, and how much of it has moved")
      ->excludes(as_json);
  Watch watch(app);
  add_runtime_dir(app, options.runtime_dir);
  app.footer(
      R"(States: holding (may use the GPU), revoked (asked to give it back), draining (submits no more work, and its
work still runs), waiting #N (N-th in the queue), idle (wants nothing), silent (does not answer: stopped, or in a
debugger), suspended (its job is suspended, and it has drained). FOR is the time in this state. LAST 5S is the part of
the last five seconds for which the program had the GPU to use. JOB is the job that the program is a part of. GPU TIME
and WAITED are sums. P50 / P99 are the median and the 99th percentile of its waits. The line "jobs" names the jobs that
have the GPU, whether their programs use it or not.

With --memory: the line "memory" says whose the GPU's memory is. RESIDENT is on the GPU, EVICTED is not, UNPAGEABLE
cannot leave the GPU (docs/memory.md). HOST is the daemon's host memory that the program uses. MOVED OUT and MOVED IN
are sums of what was copied since the program's start. NOT COPIED was unchanged or constant.

Examples:
  gpumux status
  gpumux status 1
  gpumux status --watch 0.5
  gpumux status --memory
  gpumux status --json | jq '.gpus[].seats[] | [.program, .phase]'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 the daemon does not let you in.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const Watch::Look look = [&](const Output& output) {
    if (json) return look_as_json(options, output);
    return look_as_table(options, gpus, output, memory ? StatusTable::kMemory : StatusTable::kTurns);
  };
  watch.set_runtime_dir(options.runtime_dir.empty() ? os::find_runtime_dir().value_or("?") : options.runtime_dir);
  if (watch.is_wanted()) return json ? watch.documents(kStatusName, look) : watch.screens(kStatusName, look);
  const auto lines = look(look_at_stdout());
  if (!lines) {
    const int exit_status = report_error(kStatusName, lines.error());
    const std::string dir = options.runtime_dir.empty() ? os::find_runtime_dir().value_or("") : options.runtime_dir;
    const std::string waiting = exit_status == kExitNoDaemon ? tenants_text(tenants_here(dir)) : std::string();
    if (!waiting.empty()) say_error(kStatusName, "programs wait for a daemon, or will: " + waiting);
    return exit_status;
  }
  print_lines(*lines);
  return kExitOk;
}

}  // namespace gpumux::cli
