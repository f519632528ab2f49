// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/launch.h"

#include <sys/resource.h>

#include <algorithm>

#include "base/limits.h"

namespace gpumux::jobs {
namespace {

using base::Code;
using base::Result;

constexpr char kStateFolder[] = "/.local/state";
constexpr char kLogFolder[] = "/gpumux/logs/";
constexpr char kNoUser[] = "nobody";

// The GPUs in the order of the job's own numbers: as it asked for them, otherwise ascending.
std::string visible_gpus(const JobDocument& document, const LaunchedJob& job) {
  std::string list;
  const auto add = [&](std::uint32_t gpu) { list += (list.empty() ? "" : ",") + std::to_string(gpu); };
  if (!document.gpu_order.empty()) {
    for (const std::uint32_t gpu : document.gpu_order) add(gpu);
  } else {
    for (const base::GpuIndex gpu : job.gpus) add(gpu.value);
  }
  return list;
}

bool has_variable(const std::vector<std::string>& environment, const std::string& name) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& entry) { return entry.starts_with(name + "="); });
}

// A name is the user's own words: it may not lead anywhere else.
std::string file_part(std::string text) {
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

// Where the submitter's programs keep such files (XDG base directory specification; a relative path counts as none).
// HOME counts for a user whom the user database does not know. Empty: not known.
std::string state_folder(const JobDocument& document) {
  const auto path_in = [&](std::string_view name) -> std::string {
    for (const std::string& variable : document.environment) {
      if (variable.starts_with(name) && variable[name.size()] == '/') return variable.substr(name.size());
    }
    return "";
  };
  if (const std::string folder = path_in("XDG_STATE_HOME="); !folder.empty()) return folder;
  std::string home = document.submitter.home;
  if (home.empty() || home[0] != '/') home = path_in("HOME=");
  return home.empty() ? "" : home + kStateFolder;
}

// The file that a pattern of the submission names. `option`: for errors.
Result<std::string> expand(const std::string& option, const std::string& pattern, const JobDocument& document,
                           const LaunchedJob& job) {
  std::string path;
  const Submitter& who = document.submitter;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      path += pattern[i];
      continue;
    }
    switch (i + 1 < pattern.size() ? pattern[++i] : '\0') {
      case 'j': path += std::to_string(job.id.value); break;
      case 'u': path += file_part(who.user_name.empty() ? kNoUser : who.user_name); break;
      case 'n':
      case 'x': path += file_part(job.name); break;
      case 'A': path += std::to_string((job.array == kNoJob ? job.id : job.array).value); break;
      case 'a': path += job.array == kNoJob ? "" : std::to_string(job.array_index); break;
      case '%': path += '%'; break;
      default:
        return base::fail(Code::kInvalid, option + " '" + pattern.substr(0, 64) +
                                              "': after % there may be j (the job's id), u (user), n (name), a "
                                              "(element of the array), A (the array's id) or %");
    }
  }
  if (path.empty() || path.back() == '/')
    return base::fail(Code::kInvalid, option + " must name a file, and not '" + path.substr(0, 64) + "'");
  return path[0] == '/' ? path : document.directory + "/" + path;
}

// The runner sets it as root: the value that its user could have set (setpriority(2), RLIMIT_NICE).
std::int32_t allowed_nice(const JobDocument& document) {
  if (document.submitter.uid == 0) return document.nice;
  std::uint64_t ceiling = 0;
  for (const wire::ResourceLimit& limit : document.submitter.limits) {
    if (limit.resource == RLIMIT_NICE) ceiling = std::min<std::uint64_t>(limit.soft, 40);
  }
  return std::max(document.nice, std::min(0, 20 - static_cast<std::int32_t>(ceiling)));
}

}  // namespace

void take_order(JobDocument& document, const store::StoredJob& job) {
  if (job.spec.gpus.empty()) {
    document.gpu_order.clear();
  } else if (!job.gpu_order.empty()) {
    document.gpu_order = job.gpu_order;
  }
}

std::string run_id(const LaunchSettings& settings, JobId job, std::uint32_t attempt) {
  return "job-" + settings.store_id + "-" + std::to_string(job.value) + "-" + std::to_string(attempt);
}

std::string attach_path(const LaunchSettings& settings, JobId job, std::uint32_t attempt) {
  return settings.attach_dir + "/" + std::to_string(job.value) + "." + std::to_string(attempt);
}

Result<std::string> log_path(const JobDocument& document, const LaunchedJob& job, const std::string& store_id) {
  const Submitter& who = document.submitter;
  if (document.output.empty()) {
    const std::string folder = state_folder(document);
    if (folder.empty()) {
      return base::fail(Code::kInvalid, "user " + std::to_string(who.uid) +
                                            " has no home directory for the job's log: name a file with --output");
    }
    return folder + kLogFolder + store_id + "/" + std::to_string(job.id.value) + ".log";
  }
  return expand("output", document.output, document, job);
}

Result<std::string> error_path(const JobDocument& document, const LaunchedJob& job) {
  return document.error_output.empty() ? std::string() : expand("error_output", document.error_output, document, job);
}

Result<wire::RunnerSpec> make_runner_spec(const JobDocument& document, const LaunchedJob& job,
                                          const LaunchSettings& settings) {
  auto log = log_path(document, job, settings.store_id);
  if (!log) return tl::unexpected(log.error());
  auto errors = error_path(document, job);
  if (!errors) return tl::unexpected(errors.error());
  const Submitter& who = document.submitter;
  wire::RunnerSpec spec;
  spec.job = job.id.value;
  spec.attempt = job.attempt;
  spec.interactive = document.interactive;
  spec.window = document.window;
  spec.uid = who.uid;
  spec.gid = who.gid;
  spec.groups.assign(who.groups.begin(), who.groups.end());
  spec.no_new_privs = who.no_new_privs;
  spec.directory = document.directory;
  spec.arguments = document.arguments;
  spec.environment = document.environment;
  spec.setup_command = document.setup_command;
  spec.limits = who.limits;
  spec.umask = document.umask;
  spec.nice = allowed_nice(document);

  spec.log_path = std::move(*log);
  spec.error_path = std::move(*errors);
  // The output of an earlier attempt stays.
  const bool appends = document.append || job.attempt > 1;
  spec.error_opening = appends ? wire::LogOpening::kUsersAppend : wire::LogOpening::kUsersTruncate;
  spec.log_opening = document.output.empty() ? wire::LogOpening::kOurs : spec.error_opening;
  // Opened twice, the file would be emptied twice.
  if (spec.error_path == spec.log_path) spec.error_path.clear();
  if (document.interactive) spec.attach_path = attach_path(settings, job.id, job.attempt);

  // A submission from within a run or a job brings that one's identity along: it is not this job's.
  const bool is_inside = has_variable(spec.environment, "GPUMUX_RUN_ID");
  std::erase_if(spec.environment, [&](const std::string& entry) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    return name == "GPUMUX_JOB_ID" || name == "GPUMUX_ARRAY_ID" || name == "GPUMUX_ARRAY_INDEX" ||
           (is_inside && name == "GPUMUX_NAME");
  });

  const auto late = [&](wire::SetHow how, std::string name, const std::string& value) {
    spec.late_environment.push_back({how, std::move(name) + "=" + value});
  };
  using wire::SetHow;
  late(SetHow::kSet, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
  late(SetHow::kSet, "CUDA_VISIBLE_DEVICES", visible_gpus(document, job));
  late(SetHow::kIfUnset, "PYTHONUNBUFFERED", "1");
  late(SetHow::kSet, "GPUMUX_JOB_ID", std::to_string(job.id.value));
  if (job.array != kNoJob) {
    late(SetHow::kSet, "GPUMUX_ARRAY_ID", std::to_string(job.array.value));
    late(SetHow::kSet, "GPUMUX_ARRAY_INDEX", std::to_string(job.array_index));
  }
  late(SetHow::kSet, "GPUMUX_RUN_ID", run_id(settings, job.id, job.attempt));
  late(SetHow::kSet, "GPUMUX_RUNTIME_DIR", settings.runtime_dir);
  late(SetHow::kSet, "GPUMUX_PRIORITY", std::to_string(job.priority));
  late(SetHow::kIfUnset, "GPUMUX_NAME", job.name.substr(0, base::kMaxNameBytes - 1));
  if (job.memory != 0) {
    late(SetHow::kSet, "GPUMUX_MEM_LIMIT", std::to_string(job.memory));
  } else {
    // A job that was handed in from within another run has a limit of its own.
    std::erase_if(spec.environment, [](const std::string& entry) { return entry.starts_with("GPUMUX_MEM_LIMIT="); });
  }
  if (!settings.library.empty()) late(SetHow::kPreload, "LD_PRELOAD", settings.library);
  return spec;
}

}  // namespace gpumux::jobs
