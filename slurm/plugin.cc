// SPDX-License-Identifier: Apache-2.0
// spank_gpumux.so: programs of a Slurm job are tenants, if their user gives one of its options.
//
// Slurm loads the plugin into srun, sbatch and salloc, where it reads the options. Slurm also loads it into slurmstepd,
// the root process of one step on one node, where it makes the step's tasks tenants. Each has one thread that calls it.
// Its only own state is of one step.
//
// It fails no job because gpumux is missing: what it cannot do it says, to the user and to slurmd's log.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "base/standing.h"
#include "os/installation.h"
#include "os/preload_list.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "slurm/allocation.h"
#include "slurm/job_record.h"
#include "slurm/request.h"
#include "slurm/slurm_api.h"

namespace {

using namespace gpumux;  // the names below are Slurm's, in no namespace

// The longest LD_PRELOAD that is kept: what a user may set is not bounded.
constexpr std::size_t kMostPreload = 64u << 10;
constexpr int kRefused = 1;  // a task's exit status

slurm::Request request;
bool is_refused = false;               // the step's tasks do not start
std::string notes;                     // lines for the user
bool is_gated = false;                 // the step's tasks are tenants, and its job's record is not written yet
std::optional<containers::Part> part;  // what the job has then; empty: all of its GPUs

// The arguments are those of plugstack.conf: optional /usr/lib/gpumux/spank_gpumux.so [runtime_dir=DIR]
std::string runtime_dir(int count, char** arguments) {
  constexpr std::string_view kName = "runtime_dir=";
  for (int i = 0; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with(kName)) return std::string(argument.substr(kName.size()));
  }
  return os::kSystemRuntimeDir;
}

// As it is installed: PREFIX/lib/gpumux/spank_gpumux.so, PREFIX/lib/libgpumux.so.
std::string library() {
  Dl_info self{};
  if (::dladdr(&request, &self) == 0 || self.dli_fname == nullptr) return os::kLibraryName;
  std::string folder = self.dli_fname;
  for (int i = 0; i < 2; ++i) folder.resize(std::min(folder.rfind('/'), folder.size()));
  return folder + "/" + os::kLibraryName;
}

// To slurmd's log; and to the user, by the step's first task: at first slurmstepd has no other way there.
void note(const std::string& what) {
  ::slurm_info("gpumux: %s", what.c_str());
  notes += "gpumux: " + what + "\n";
}

template <class Parsed>
bool take(const base::Result<Parsed>& parsed, const char* option) {
  if (!parsed) ::slurm_error("%s: %s", option, parsed.error().message().c_str());
  return parsed.has_value();
}

int take_percent(int, const char* text, int) {
  // Slurm's text for no value, when a step inherits the option.
  constexpr std::string_view kNull = "(null)";
  request.is_made = true;
  if (text == nullptr || text[0] == '\0' || text == kNull) return 0;
  const auto percent = slurm::parse_percent(text);
  if (!take(percent, "--gpumux")) return -1;
  request.percent = *percent;
  return 0;
}

int take_memory(int, const char* text, int) {
  request.is_made = true;
  const auto bytes = slurm::parse_memory(text);
  if (!take(bytes, "--gpumux-mem")) return -1;
  request.bytes = *bytes;
  return 0;
}

int take_priority(int, const char* text, int) {
  request.is_made = true;
  const auto priority = base::parse_priority(text);
  if (!take(priority, "--gpumux-priority")) return -1;
  request.priority = *priority;
  return 0;
}

// Slurm wants characters that may change, and changes none.
struct Option {
  const char* name;
  const char* value;
  const char* usage;
  int has_value;  // 1: it must have one; 2: it may
  spank_opt_cb_f take;
};
constexpr std::array<Option, 3> kOptions{{
    {"gpumux", "PERCENT", "share the job's GPUs with other programs by gpumux, at most PERCENT of each", 2,
     take_percent},
    {"gpumux-mem", "BYTES", "the most GPU memory of the job on each GPU, such as 20G; means --gpumux, too", 1,
     take_memory},
    {"gpumux-priority", "N",
     "higher goes first; above 0 needs the right to change gpumux's settings; means --gpumux, too", 1, take_priority},
}};

template <class Value>
Value item(spank_t spank, spank_item_t which, Value otherwise) {
  Value value = otherwise;
  return ::spank_get_item(spank, which, &value) == ESPANK_SUCCESS ? value : otherwise;
}

std::string variable(spank_t spank, const char* name) {
  std::string value(kMostPreload, '\0');
  if (::spank_getenv(spank, name, value.data(), static_cast<int>(value.size())) != ESPANK_SUCCESS) return {};
  value.resize(value.find('\0'));
  return value;
}

// One step of a job of many nodes is on all of them, and each asking slurmctld would be too much for it. Such a job has
// whole GPUs, or is refused. Its variables are believed, for a user who sets them gets no more than without --gpumux.
slurm::Allocation allocation_of_many(spank_t spank, std::uint32_t nodes) {
  const bool has_shards = !variable(spank, "SLURM_SHARDS_ON_NODE").empty();
  return {.nodes = nodes, .gpus = 1, .shards = has_shards ? 1u : 0u, .shards_per_gpu = 1};
}

// Empty: the step does without gpumux, which has been said.
std::optional<slurm::Allocation> allocation_of(spank_t spank, std::uint32_t job) {
  const auto nodes = item<std::uint32_t>(spank, S_JOB_NNODES, 1);
  if (nodes > 1) return allocation_of_many(spank, nodes);
  const auto allocation = slurm::ask_slurmctld(job);
  if (!allocation) {
    note("this step runs without gpumux: " + allocation.error().message());
    return std::nullopt;
  }
  if (allocation->gpus == 0) {
    note("this step runs without gpumux: its job has no GPUs of Slurm's (--gres=gpu:N or --gres=shard:N)");
    return std::nullopt;
  }
  return *allocation;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

SPANK_PLUGIN(gpumux, 1)

int slurm_spank_init(spank_t spank, int, char**) {
  if (::spank_context() == S_CTX_SLURMD || ::spank_context() == S_CTX_JOB_SCRIPT) return 0;
  for (const Option& option : kOptions) {
    spank_option known{const_cast<char*>(option.name),
                       const_cast<char*>(option.value),
                       const_cast<char*>(option.usage),
                       option.has_value,
                       0,
                       option.take};
    if (::spank_option_register(spank, &known) != ESPANK_SUCCESS) ::slurm_error("gpumux: cannot add --%s", option.name);
  }
  return 0;
}

// In slurmstepd: as root, before any process of the step.
int slurm_spank_init_post_opt(spank_t spank, int count, char** arguments) {
  if (!request.is_made || ::spank_remote(spank) != 1) return 0;
  const auto job = item<std::uint32_t>(spank, S_JOB_ID, 0);
  const auto allocation = allocation_of(spank, job);
  if (!allocation) return 0;
  if (const std::string why = slurm::refusal(*allocation); !why.empty()) {
    note(why);
    is_refused = true;
    return 0;
  }
  const slurm::Step step{.job = job,
                         .tasks = item<std::uint32_t>(spank, S_JOB_LOCAL_TASK_COUNT, 1),
                         .library = os::is_preloaded_everywhere() ? std::string() : library(),
                         .runtime_dir = runtime_dir(count, arguments),
                         .preload = variable(spank, "LD_PRELOAD")};
  if (!step.library.empty() && ::access(step.library.c_str(), R_OK) != 0) {
    note("this step runs without gpumux: there is no " + step.library + " on its node");
    return 0;
  }
  is_gated = true;
  part = slurm::part_of(request, *allocation);
  for (const auto& one : slurm::variables(step, request, *allocation))
    ::spank_setenv(spank, one.name.c_str(), one.value.c_str(), one.is_users ? 0 : 1);
  if (!os::connect_seqpacket(step.runtime_dir + "/" + os::kTenantSocket))
    note("no daemon answers in " + step.runtime_dir + ": this step uses its GPUs without gpumux, unless one starts");
  return 0;
}

// As root, when Slurm has put a task into its control group, and before it runs.
int slurm_spank_task_post_fork(spank_t spank, int count, char** arguments) {
  if (!is_gated) return 0;
  is_gated = false;
  const auto job = item<std::uint32_t>(spank, S_JOB_ID, 0);
  const std::string folder = runtime_dir(count, arguments);
  const auto kept = part ? slurm::keep_record(folder, job, item<pid_t>(spank, S_TASK_PID, 0), *part)
                         : slurm::forget_record(folder, job);
  if (!kept) {
    ::slurm_spank_log("gpumux: the job has no record, so its part of the GPU is what its variables say: %s",
                      kept.error().message().c_str());
  }
  return 0;
}

// In the task. Slurm ignores what an `optional` plugin answers, so a task that is refused ends here.
int slurm_spank_task_init(spank_t spank, int, char**) {
  const bool is_first = item<int>(spank, S_TASK_ID, 0) == 0;
  if (is_first && !notes.empty() && ::write(STDERR_FILENO, notes.data(), notes.size()) < 0)
    ::slurm_info("gpumux: the step's standard error takes nothing");
  if (is_refused) ::_exit(kRefused);
  return 0;
}

// As root, when the job has ended on this node.
int slurm_spank_job_epilog(spank_t spank, int count, char** arguments) {
  const auto job = item<std::uint32_t>(spank, S_JOB_ID, 0);
  if (const auto gone = slurm::forget_record(runtime_dir(count, arguments), job); !gone)
    ::slurm_error("gpumux: the record of job %u stays until gpumuxd starts: %s", job, gone.error().message().c_str());
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
