// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/submission.h"

#include <pwd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/split.h"
#include "base/standing.h"
#include "base/units.h"
#include "cli/jobs/job_view.h"
#include "cli/run/program_lookup.h"
#include "cli/views/times.h"
#include "os/random.h"
#include "os/system_clock.h"

extern char** environ;

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;
using base::Status;

// More GPUs than any machine has.
constexpr std::uint64_t kMostGpus = 4096;

constexpr std::string_view kUnlimited = "unlimited";

base::Error about(std::string_view option, base::Error error) {
  error.what = std::string(option) + ": " + error.what;
  return error;
}

Result<std::string> home_directory() {
  const passwd* entry = ::getpwuid(::geteuid());
  if (entry != nullptr && entry->pw_dir != nullptr && entry->pw_dir[0] == '/') return std::string(entry->pw_dir);
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return std::string(home);
  return base::fail(Code::kNotFound, "your home directory is not known (user " + std::to_string(::geteuid()) +
                                         " has no entry in the user database, and HOME is not set)");
}

Result<std::string> current_directory() {
  char buffer[PATH_MAX];
  if (::getcwd(buffer, sizeof buffer) != nullptr && buffer[0] == '/') return std::string(buffer);
  return base::fail_errno(errno == 0 ? ENOENT : errno,
                          "the current directory cannot be found (was it removed?): change to another one, or use "
                          "--home");
}

std::string from_directory(const std::string& path, const std::string& directory) {
  return path.starts_with('/') ? path : directory + "/" + path;
}

bool is_there(const std::string& path, mode_t kind) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == kind;
}

// Other queues take a script by its name alone. Here it is a command like any other.
std::string script_hint(const std::string& program, const std::string& directory) {
  const std::string path = from_directory(program, directory);
  if (program.empty() || !is_there(path, S_IFREG)) return {};
  if (::access(path.c_str(), X_OK) != 0)
    return "; it is a file that may not be executed: write bash " + program + ", or chmod +x it";
  return "; it is in the job's directory: write ./" + program + ", or bash " + program;
}

// Whether each job of an array gets a log of its own: by its element or its id.
bool tells_elements_apart(const std::string& pattern) {
  for (std::size_t i = pattern.find('%'); i != std::string::npos; i = pattern.find('%', i + 2)) {
    if (i + 1 < pattern.size() && (pattern[i + 1] == 'a' || pattern[i + 1] == 'j')) return true;
  }
  return false;
}

Result<std::string> directory_of(const SubmitWishes& wishes) {
  if (wishes.home) return home_directory();
  if (wishes.directory.starts_with('/')) return wishes.directory;
  auto here = current_directory();
  if (!here || wishes.directory.empty()) return here;
  return *here + "/" + wishes.directory;
}

// Adds what the job inherits of this process.
Status add_surroundings(api_client::Submission& submission, const SubmitWishes& wishes) {
  auto directory = directory_of(wishes);
  if (!directory) return tl::unexpected(std::move(directory).error());
  submission.directory = std::move(*directory);
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    submission.environment.emplace_back(*variable);
  if (!wishes.exported.empty()) {
    auto exported = exported_environment(wishes.exported, submission.environment);
    if (!exported) return tl::unexpected(about("--export", exported.error()));
    submission.environment = std::move(*exported);
  }
  for (const auto& [name, value] : wishes.variables) {
    std::erase_if(submission.environment,
                  [&name = name](const std::string& entry) { return entry.starts_with(name + "="); });
    submission.environment.push_back(name + "=" + value);
  }
  const mode_t mask = ::umask(0);
  ::umask(mask);
  submission.umask = mask;
  errno = 0;
  const int nice = ::getpriority(PRIO_PROCESS, 0);
  submission.nice = errno == 0 ? nice : 0;
  if (submission.interactive) {
    winsize size{};
    const bool known = ::ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    if (known && size.ws_row > 0 && size.ws_col > 0) submission.window = {size.ws_row, size.ws_col};
  }
  return {};
}

}  // namespace

Result<std::vector<std::uint32_t>> parse_gpu_ids(std::string_view text) {
  std::vector<std::uint32_t> ids;
  for (const std::string_view word : base::split(text, ',')) {
    const auto id = base::parse_integer(word, 0, kMostGpus);
    if (!id)
      return base::fail(Code::kInvalid, id.error().what + ": write the numbers of GPUs with commas between them: 0,2");
    const auto number = static_cast<std::uint32_t>(*id);
    if (std::find(ids.begin(), ids.end(), number) != ids.end())
      return base::fail(Code::kInvalid, "GPU " + std::to_string(number) + " is named twice");
    ids.push_back(number);
  }
  return ids;
}

Result<std::vector<std::string>> exported_environment(std::string_view text,
                                                      const std::vector<std::string>& environment) {
  // With any choice of variables: programs are found by these, and find their user's files.
  std::set<std::string, std::less<>> names{"HOME", "LOGNAME", "PATH", "SHELL", "USER"};
  std::map<std::string, std::string, std::less<>> values;
  bool all = false;
  for (const std::string_view word : base::split(text, ',')) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (name.empty())
      return base::fail(Code::kInvalid, "write ALL, NONE, or names of variables: HOME,BATCH=64 or ALL,BATCH=64");
    if (equals != std::string_view::npos) {
      values[std::string(name)] = word;
    } else if (name == "ALL") {
      all = true;
    } else if (name != "NONE") {
      names.emplace(name);
    }
  }
  std::vector<std::string> exported;
  for (const std::string& variable : environment) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    if ((all || names.contains(name)) && !values.contains(name)) exported.push_back(variable);
  }
  for (const auto& [name, variable] : values) exported.push_back(variable);
  return exported;
}

Result<std::vector<NamedDependency>> parse_dependencies(std::string_view text) {
  std::vector<NamedDependency> dependencies;
  for (std::string_view jobs : base::split(text, ',')) {
    std::string need = "ok";
    // A job's id begins with a digit, so what begins otherwise is a condition.
    if (jobs.empty() || jobs[0] < '0' || jobs[0] > '9') {
      const std::size_t colon = jobs.find(':');
      const std::string_view condition = jobs.substr(0, colon);
      const bool is_ok = condition == "ok" || condition == "afterok";
      if (colon == std::string_view::npos || (!is_ok && condition != "any" && condition != "afterany"))
        return base::fail(
            Code::kInvalid,
            "write ok:ID (the job has ended with status 0), any:ID (it has ended), or ID, which is ok:ID");
      if (!is_ok) need = "any";
      jobs.remove_prefix(colon + 1);
    }
    for (const std::string_view job : base::split(jobs, ':')) {
      GPUMUX_TRY(api_client::check_job_id(job));
      dependencies.push_back({std::string(job), need});
    }
  }
  return dependencies;
}

Status read_request(const RequestWishes& wishes, api_client::Submission& submission) {
  if (!wishes.gpus.empty()) {
    const auto gpus = base::parse_integer(wishes.gpus, 1, kMostGpus);
    if (!gpus) return tl::unexpected(about("--gpus", gpus.error()));
    submission.gpus = *gpus;
  }
  if (!wishes.gpu_ids.empty()) {
    auto ids = parse_gpu_ids(wishes.gpu_ids);
    if (!ids) return tl::unexpected(about("--gpu-ids", ids.error()));
    submission.gpu_ids = std::move(*ids);
  }
  if (!wishes.memory.empty()) {
    const auto bytes = base::parse_memory(wishes.memory);
    if (!bytes) return tl::unexpected(about("--mem", bytes.error()));
    submission.memory_bytes = *bytes;
  }
  if (wishes.time_limit == kUnlimited) {
    submission.time_limit = base::Duration::zero();
  } else if (!wishes.time_limit.empty()) {
    const auto limit = base::parse_time_limit(wishes.time_limit);
    if (!limit) return tl::unexpected(about("--time-limit", limit.error()));
    submission.time_limit = *limit;
  }
  if (!wishes.priority.empty()) {
    const auto priority = base::parse_priority(wishes.priority);
    if (!priority) return tl::unexpected(about("--priority '" + wishes.priority + "'", priority.error()));
    submission.priority = *priority;
  }
  return {};
}

Result<api_client::Submission> make_submission(const SubmitWishes& wishes, const std::vector<char*>& program) {
  api_client::Submission submission;
  for (const char* word : program) {
    if (word != nullptr) submission.arguments.emplace_back(word);
  }
  if (submission.arguments.empty() || submission.arguments[0].empty())
    return base::fail(Code::kInvalid, "no command was named: write it after --");
  GPUMUX_TRY(read_request(wishes, submission));
  if (!wishes.minutes_limit.empty()) {
    const bool is_bare = wishes.minutes_limit.find_first_not_of("0123456789") == std::string::npos;
    const auto limit = base::parse_time_limit(wishes.minutes_limit + (is_bare ? "m" : ""));
    if (!limit) return tl::unexpected(about("-t", limit.error()));
    submission.time_limit = *limit;
  }
  if (!wishes.begin.empty()) {
    const auto begin = parse_begin(wishes.begin, now_unix_ns());
    if (!begin) return tl::unexpected(about("--begin", begin.error()));
    submission.begin_unix_ns = *begin;
  }
  if (wishes.interactive && !wishes.error.empty())
    return base::fail(Code::kInvalid, "--error: an interactive job writes everything to its terminal");
  if (!wishes.on_time_limit.empty() && wishes.on_time_limit != "suspend" && wishes.on_time_limit != "cancel")
    return base::fail(Code::kInvalid, "--on-time-limit: '" + wishes.on_time_limit + "' is neither suspend nor cancel");
  submission.on_time_limit = wishes.on_time_limit;
  for (const std::string& text : wishes.after) {
    if (const auto dependencies = parse_dependencies(text); !dependencies)
      return tl::unexpected(about("--after " + text, dependencies.error()));
  }
  if (wishes.interactive && !wishes.array.empty())
    return base::fail(Code::kInvalid, "--interactive: the jobs of an array cannot all have your terminal");
  for (const auto& [option, pattern] : {std::pair("--output", &wishes.output), std::pair("--error", &wishes.error)}) {
    if (wishes.array.empty() || pattern->empty() || wishes.append || tells_elements_apart(*pattern)) continue;
    return base::fail(Code::kInvalid,
                      std::string(option) +
                          ": the jobs of the array would write over each other's output: put %a, the element, into "
                          "its name, as in run-%a.log");
  }
  submission.name = wishes.name;
  submission.setup_command = wishes.setup_command;
  submission.output = wishes.output;
  submission.error_output = wishes.error;
  submission.array = wishes.array;
  submission.append = wishes.append;
  submission.exclusive = wishes.exclusive;
  submission.interactive = wishes.interactive;
  submission.requeue = wishes.requeue;
  submission.held = wishes.held;
  GPUMUX_TRY(add_surroundings(submission, wishes));
  auto token = os::random_hex(16);
  if (!token) return tl::unexpected(std::move(token).error());
  submission.token = std::move(*token);
  return submission;
}

Status resolve_dependencies(const api_client::Client& client, const std::vector<std::string>& after,
                            api_client::Submission& submission) {
  for (const std::string& text : after) {
    const auto dependencies = parse_dependencies(text);
    if (!dependencies) return tl::unexpected(dependencies.error());
    for (const NamedDependency& named : *dependencies) {
      const auto job = client.job(named.job);
      if (!job && job.error().code == Code::kNotFound)
        return base::fail(Code::kNotFound, "--after " + text + ": there is no job " + named.job);
      if (!job) return tl::unexpected(about("--after " + text, job.error()));
      submission.after.push_back({job->id, named.need});
    }
  }
  return {};
}

Result<api_client::Submitted> submit_persistently(const api_client::Submission& submission, const FindClient& find,
                                                  const Persistence& persistence) {
  // Too long a body is no reason to look for a daemon.
  if (auto body = api_client::submission_body(submission); !body) return tl::unexpected(std::move(body).error());
  const os::SystemClock clock;
  const base::TimePoint deadline = clock.now() + persistence.limit;
  base::Duration pause = persistence.first_pause;
  bool sent = false;
  for (;;) {
    auto client = find();
    if (!client && (!sent || client.error().code != Code::kUnavailable)) return tl::unexpected(client.error());
    base::Error error;
    if (client) {
      auto submitted = client->submit(submission);
      sent = true;
      if (submitted) {
        submitted->array = submission.array;
        return submitted;
      }
      error = std::move(submitted).error();
    } else {
      error = client.error();
    }
    if (error.code != Code::kUnavailable && error.code != Code::kTimeout) return tl::unexpected(std::move(error));
    if (clock.now() + pause >= deadline) {
      return base::fail(Code::kUnavailable,
                        error.message() +
                            ". The job was sent and no answer came: it may have been accepted or not; `gpumux queue` "
                            "and `gpumux history` will tell");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, persistence.longest_pause);
  }
}

namespace {

// The user's folder in which the daemon makes one for logs (jobs/service/launch.cc). Empty: there is none.
std::string folder_of_logs(const api_client::Submission& submission) {
  const auto path_in = [&](std::string_view name) -> std::string {
    for (const std::string& variable : submission.environment) {
      if (variable.starts_with(name) && variable[name.size()] == '/') return variable.substr(name.size());
    }
    return "";
  };
  if (const std::string folder = path_in("XDG_STATE_HOME="); !folder.empty()) return folder;
  const passwd* entry = ::getpwuid(::geteuid());
  const bool is_known = entry != nullptr && entry->pw_dir != nullptr && entry->pw_dir[0] == '/';
  return is_known ? entry->pw_dir : path_in("HOME=");
}

// Why the job's log cannot be made; empty: nothing is against it.
std::string doubt_about_log(const api_client::Submission& submission) {
  if (!submission.output.empty()) return "";
  const std::string folder = folder_of_logs(submission);
  if (folder.empty()) return "you have no home directory for the job's log: name a file with --output";
  // The runner makes folders that are missing.
  std::string there = folder;
  while (::access(there.c_str(), F_OK) != 0 && there.size() > 1)
    there.resize(std::max<std::size_t>(there.rfind('/'), 1));
  if (is_there(there, S_IFDIR) && ::access(there.c_str(), W_OK | X_OK) == 0) return "";
  return "the job's log has no place, because " + folder +
         (there == folder ? " is not yours to write to" : " does not exist") + ": name a file with --output";
}

}  // namespace

std::vector<std::string> doubts_about(const api_client::Submission& submission) {
  std::vector<std::string> doubts;
  const std::string& program = submission.arguments.front();
  // A set-up command may put it into PATH, or make it.
  if (submission.setup_command.empty()) {
    const std::string why = look_for_program(program, submission.directory).why;
    if (!why.empty()) doubts.push_back(why + script_hint(program, submission.directory));
  }
  if (!submission.directory.empty() && !is_there(submission.directory, S_IFDIR))
    doubts.push_back("--chdir: the folder " + submission.directory + " does not exist: create it");
  for (const auto& [option, pattern] :
       {std::pair("--output", &submission.output), std::pair("--error", &submission.error_output)}) {
    const std::string folder = pattern->substr(0, pattern->rfind('/') + 1);
    if (!folder.empty() && folder.find('%') == std::string::npos &&
        !is_there(from_directory(folder, submission.directory), S_IFDIR))
      doubts.push_back(std::string(option) + ": the folder " + folder + " does not exist: create it");
  }
  if (const std::string doubt = doubt_about_log(submission); !doubt.empty()) doubts.push_back(doubt);
  return doubts;
}

std::string describe_cap(std::int32_t priority, std::optional<std::int32_t> capped) {
  if (!capped || *capped == priority) return {};
  return "priority " + std::to_string(priority) + " orders your own jobs. Against other users' jobs it counts as " +
         std::to_string(*capped) + " (priority_cap): ask an administrator for more";
}

std::string describe_submitted(const api_client::Submitted& submitted) {
  const std::string id = std::to_string(submitted.id);
  if (submitted.count <= 1) return "job " + id;
  return "array " + id + "_[" + submitted.array + "] (" + std::to_string(submitted.count) + " jobs)";
}

}  // namespace gpumux::cli
