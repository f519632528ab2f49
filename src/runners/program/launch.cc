// SPDX-License-Identifier: Apache-2.0
#include "runners/program/launch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/file_descriptor.h"
#include "os/preload_list.h"
#include "runners/program/report.h"

namespace gpumux::runners {
namespace {

// $1 is the set-up command, $2 the job's directory, $3 the submitter's PATH. A profile may have changed the directory:
// it is the job's again when the set-up command begins, which itself may change it. A profile may have forgotten the
// PATH (Debian's does): the folders of the submitter's PATH come first again. conda's hook is for `conda activate`. A
// shell that was initialized for conda has its place in CONDA_EXE. A broken conda is no reason to fail a job that does
// not use it. `eval` keeps errors of syntax, unfinished quotes and here-documents within the set-up command. Its text
// is put together before the shift that empties "$@". Not `eval || exit`: that would turn off the set-up command's own
// `set -e`.
constexpr char kSetupScript[] =
    "[ -z \"$3\" ] || [ \"$PATH\" = \"$3\" ] || PATH=$3:$PATH\n"
    "if command -v \"${CONDA_EXE:-conda}\" >/dev/null 2>&1; then\n"
    "eval \"$(\"${CONDA_EXE:-conda}\" shell.bash hook)\"\n"
    "fi\n"
    "[ . -ef \"$2\" ] || cd -- \"$2\" || exit\n"
    "eval 'shift 3\n'\"$1\"\n"
    "case $? in 0) ;; *) exit $? ;; esac\n"
    "exec /proc/self/fd/62 --launch\n";
static_assert(kProgramFd == 62);

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

std::string_view value_of(std::string_view entry) {
  const std::size_t equals = entry.find('=');
  return equals == std::string_view::npos ? std::string_view() : entry.substr(equals + 1);
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> list;
  list.reserve(strings.size() + 1);
  // exec takes them as writable for the sake of old C, and writes nothing.
  for (const std::string& string : strings) list.push_back(const_cast<char*>(string.c_str()));
  list.push_back(nullptr);
  return list;
}

std::size_t size_of(const std::vector<std::string>& strings) {
  std::size_t size = 0;
  for (const std::string& string : strings) size += string.size() + 1;
  return size;
}

// Whether a script is there and the interpreter that its first line names is not.
bool lacks_interpreter(const std::string& program) {
  return program.find('/') != std::string::npos && ::access(program.c_str(), X_OK) == 0;
}

std::string why_not_executed(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                             int why) {
  const std::string& program = arguments[0];
  if (why == ENOENT && lacks_interpreter(program)) return program + ": its interpreter (first line) does not exist";
  if (why == ENOENT) {
    return program + ": no such program" + (program.find('/') == std::string::npos ? " (see PATH)" : "");
  }
  if (why == E2BIG) {
    return program + ": its arguments take " + std::to_string(size_of(arguments)) + " bytes and its environment " +
           std::to_string(size_of(environment)) + "; together the system takes at most " +
           std::to_string(::sysconf(_SC_ARG_MAX)) + ", and at most 131072 for one of them: pass them in a file";
  }
  return program + ": cannot be executed: " + ::strerror(why);
}

void replace_environment(std::vector<char*>& list) { ::environ = list.data(); }

void set_close_on_exec(int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); }

// The command that is left after the set-up command, as a spec of its own, in memory: arguments may be megabytes.
os::FileDescriptor remainder_of(const wire::RunnerSpec& spec) {
  wire::RunnerSpec rest;
  rest.directory = rest.log_path = "/";
  rest.cgroup_parent = "none";
  rest.arguments = spec.arguments;
  rest.late_environment = spec.late_environment;
  const std::string text = wire::encode_spec(rest);
  os::FileDescriptor file(::memfd_create("gpumux-job", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::size_t at = 0;
  while (file && at < text.size()) {
    const ssize_t wrote = ::write(file.get(), text.data() + at, text.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return {};
    at += static_cast<std::size_t>(wrote);
  }
  if (file && ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return {};
  return file;
}

}  // namespace

void end_unstarted(int report, std::uint32_t code, const std::string& why) {
  send_report(report, ReportKind::kFailed, code, why);
  const std::string line = "gpumux: " + why + "\n";
  // The log may be full or not there; the reason has been reported.
  static_cast<void>(!::write(STDERR_FILENO, line.data(), line.size()));
  ::_exit(static_cast<int>(code));
}

std::vector<std::string> join_environment(std::vector<std::string> environment,
                                          const std::vector<wire::LateVariable>& late) {
  for (const wire::LateVariable& variable : late) {
    const std::string_view name = name_of(variable.entry);
    const auto named = [name](const std::string& entry) { return name_of(entry) == name; };
    const auto old = std::find_if(environment.begin(), environment.end(), named);
    std::string entry = variable.entry;
    if (old != environment.end()) {
      if (variable.how == wire::SetHow::kIfUnset) continue;
      if (variable.how == wire::SetHow::kPreload)
        entry = std::string(name) + "=" + os::compose_preload(value_of(*old), value_of(variable.entry));
      *old = entry;
      // A name that stands there twice means what its first entry says to some, its last to others.
      environment.erase(std::remove_if(old + 1, environment.end(), named), environment.end());
    } else {
      environment.push_back(std::move(entry));
    }
  }
  return environment;
}

void run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment, int report) {
  auto list = pointers(environment);
  const auto argument_list = pointers(arguments);
  // execvp looks through the PATH of this process's own environment.
  replace_environment(list);
  set_close_on_exec(report);
  send_report(report, ReportKind::kLaunching, 0, "");
  ::execvp(argument_list[0], argument_list.data());
  const int why = errno;
  const std::uint32_t code = why == ENOENT ? wire::kExitNotFound : wire::kExitNotExecutable;
  end_unstarted(report, code, why_not_executed(arguments, environment, why));
}

void run_setup(const wire::RunnerSpec& spec, int report, int program) {
  const os::FileDescriptor rest = remainder_of(spec);
  if (!rest) end_unstarted(report, wire::kExitNotStarted, "cannot hand the command over to after its set-up command");
  // Each dup2 makes a copy that stays open over exec.
  if (::dup2(program, kProgramFd) < 0 || ::dup2(rest.get(), kRemainderFd) < 0 || ::dup2(report, kReportFd) < 0) {
    end_unstarted(report, wire::kExitNotStarted,
                  std::string("cannot keep descriptors for after the set-up command (is the job's limit on open files "
                              "below 64?): ") +
                      ::strerror(errno));
  }
  std::string path;
  for (const std::string& entry : spec.environment) {
    if (name_of(entry) == "PATH") path = value_of(entry);
  }
  const std::vector<std::string> arguments = {
      "bash", "-l", "-c", kSetupScript, "gpumux-set-up", spec.setup_command, spec.directory, path};
  auto list = pointers(spec.environment);
  const auto argument_list = pointers(arguments);
  replace_environment(list);
  send_report(report, ReportKind::kSetup, 0, "");
  ::execv("/bin/bash", argument_list.data());
  if (errno == ENOENT) ::execvp("bash", argument_list.data());
  const int why = errno;
  end_unstarted(report, why == ENOENT ? wire::kExitNotFound : wire::kExitNotExecutable,
                "the set-up command needs bash: " + why_not_executed(arguments, spec.environment, why));
}

void launch_main() {
  // These are not the command's.
  for (const int fd : {kReportFd, kProgramFd, kRemainderFd}) set_close_on_exec(fd);
  struct stat status {};
  const bool sized = ::fstat(kRemainderFd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
                     static_cast<std::uint64_t>(status.st_size) <= wire::kMaxSpecBytes;
  void* memory =
      sized ? ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, kRemainderFd, 0)
            : MAP_FAILED;
  if (memory == MAP_FAILED) {
    end_unstarted(kReportFd, wire::kExitNotStarted,
                  "what is to be run after the set-up command is not there (it closed or replaced descriptor 63)");
  }
  const auto rest =
      wire::decode_spec(std::span(static_cast<const std::byte*>(memory), static_cast<std::size_t>(status.st_size)));
  if (!rest) end_unstarted(kReportFd, wire::kExitNotStarted, "after the set-up command: " + rest.error().message());
  std::vector<std::string> environment;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    // The variable in which bash notes the path of this program: it is not the job's.
    if (std::strncmp(*entry, "_=", 2) != 0) environment.emplace_back(*entry);
  }
  run_command(rest->arguments, join_environment(std::move(environment), rest->late_environment), kReportFd);
}

}  // namespace gpumux::runners
