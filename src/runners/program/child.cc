// SPDX-License-Identifier: Apache-2.0
#include "runners/program/child.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>

#include "os/file_descriptor.h"
#include "runners/program/job_log.h"
#include "runners/program/launch.h"
#include "runners/program/privileges.h"
#include "runners/program/report.h"

namespace gpumux::runners {
namespace {

using base::Status;

// The supervisor's death is its child's: no process could report the child's end any more. Set again after each change
// of the user, which clears it.
void die_with(pid_t supervisor) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::getppid() != supervisor) ::_exit(static_cast<int>(wire::kExitNotStarted));
}

Status set_oom_score(std::int32_t value) {
  const os::FileDescriptor file(::open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC));
  if (!file) return base::fail_errno(errno, "cannot open oom_score_adj");
  char text[16];
  const ssize_t got = ::read(file.get(), text, sizeof text);
  std::int32_t now = 0;
  if (got > 0) std::from_chars(text, text + got, now);
  if (now == value) return {};
  const std::string wanted = std::to_string(value);
  if (::pwrite(file.get(), wanted.data(), wanted.size(), 0) == static_cast<ssize_t>(wanted.size())) return {};
  // A process that may not lower it keeps its value, which is no better for the job than what was asked for.
  if (errno == EACCES && now > value) return {};
  return base::fail_errno(errno, "cannot set oom_score_adj");
}

Status set_priority(std::int32_t nice) {
  // A daemon may run with a scheduling class or priority of its own; the job does not inherit it.
  sched_param parameter{};
  if (::sched_getscheduler(0) != SCHED_OTHER && ::sched_setscheduler(0, SCHED_OTHER, &parameter) != 0)
    return base::fail_errno(errno, "cannot leave the supervisor's scheduling class");
  if (::setpriority(PRIO_PROCESS, 0, nice) == 0) return {};
  // Without root a process cannot go back to a smaller value; a larger one harms no other job.
  if ((errno == EACCES || errno == EPERM) && ::getpriority(PRIO_PROCESS, 0) > nice) return {};
  return base::fail_errno(errno, "cannot set the job's nice value");
}

Status enter_directory(const std::string& directory) {
  if (::chdir(directory.c_str()) != 0)
    return base::fail_errno(errno, "cannot enter the job's directory " + printable(directory));
  return {};
}

Status take_terminal(int terminal) {
  if (::ioctl(terminal, TIOCSCTTY, 0) != 0) return base::fail_errno(errno, "cannot take the job's terminal");
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::dup2(terminal, fd) < 0) return base::fail_errno(errno, "cannot use the job's terminal");
  }
  ::close(terminal);
  return {};
}

Status take_log(const wire::RunnerSpec& spec) {
  const auto log = open_job_log(spec.log_path, spec.log_opening);
  if (!log) return tl::unexpected(log.error());
  if (::dup2(log->get(), STDOUT_FILENO) < 0 || ::dup2(log->get(), STDERR_FILENO) < 0)
    return base::fail_errno(errno, "cannot use the job's log");
  if (spec.error_path.empty()) return {};
  const auto errors = open_job_log(spec.error_path, spec.error_opening);
  if (!errors) return tl::unexpected(errors.error());
  if (::dup2(errors->get(), STDERR_FILENO) < 0) return base::fail_errno(errno, "cannot use the job's file for errors");
  return {};
}

// The steps that need root, and nothing of the user's.
Status prepare_as_root(const ChildPlan& plan) {
  if (plan.cgroup != nullptr && !plan.cgroup->join()) send_report(plan.report, ReportKind::kNoCgroup, 0, "");
  close_all_but({plan.report, plan.terminal, plan.program});
  GPUMUX_TRY(empty_standard_streams());
  GPUMUX_TRY(set_oom_score(plan.spec->oom_score_adj));
  GPUMUX_TRY(set_priority(plan.spec->nice));
  return apply_limits(plan.spec->limits);
}

Status prepare_as_user(const ChildPlan& plan) {
  ::umask(static_cast<mode_t>(plan.spec->umask));
  if (plan.terminal >= 0) {
    GPUMUX_TRY(take_terminal(plan.terminal));
  } else {
    GPUMUX_TRY(take_log(*plan.spec));
  }
  return enter_directory(plan.spec->directory);
}

}  // namespace

void close_all_but(std::vector<int> keep) {
  std::sort(keep.begin(), keep.end());
  unsigned first = STDERR_FILENO + 1;
  for (const int fd : keep) {
    if (fd < static_cast<int>(first)) continue;
    const auto kept = static_cast<unsigned>(fd);
    if (kept > first) ::close_range(first, kept - 1, 0);
    first = kept + 1;
  }
  if (::close_range(first, ~0u, 0) == 0) return;
  // Linux before 5.9.
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t most = std::min<rlim_t>(limit.rlim_cur, 1u << 20);
  for (int fd = STDERR_FILENO + 1; static_cast<rlim_t>(fd) < most; ++fd) {
    if (!std::binary_search(keep.begin(), keep.end(), fd)) ::close(fd);
  }
}

void reset_signals() {
  // By system call: glibc keeps the first two real-time signals to itself, and would leave them ignored if a parent
  // ignores them. All zeros is the kernel's structure for "default".
  constexpr std::size_t kSignalSetBytes = 8;
  const std::uint64_t defaults[4] = {};
  for (int signal = 1; signal < NSIG; ++signal) ::syscall(SYS_rt_sigaction, signal, defaults, nullptr, kSignalSetBytes);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

Status empty_standard_streams() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return base::fail_errno(errno, "cannot open /dev/null");
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::dup2(nothing, fd) < 0) return base::fail_errno(errno, "cannot use /dev/null");
  }
  if (nothing > STDERR_FILENO) ::close(nothing);
  return {};
}

Status apply_limits(const std::vector<wire::ResourceLimit>& limits) {
  for (const wire::ResourceLimit& limit : limits) {
    // glibc's enumeration hides that the kernel takes any number, and says so if it does not know one.
    const auto resource = static_cast<__rlimit_resource>(limit.resource);
    rlimit wanted{limit.soft, limit.hard};
    if (::setrlimit(resource, &wanted) == 0) continue;
    if (errno == EPERM) {
      rlimit now{};
      if (::getrlimit(resource, &now) == 0) {
        wanted.rlim_max = std::min(wanted.rlim_max, now.rlim_max);
        wanted.rlim_cur = std::min(wanted.rlim_cur, wanted.rlim_max);
        if (::setrlimit(resource, &wanted) == 0) continue;
      }
    }
    return base::fail_errno(errno, "cannot set the job's resource limit " + std::to_string(limit.resource));
  }
  return {};
}

void become_job(const ChildPlan& plan) {
  die_with(plan.supervisor);
  reset_signals();
  ::setsid();
  Status ready = prepare_as_root(plan);
  if (ready) ready = become_user(*plan.spec);
  if (!ready) {
    // The log is not open, and may not be opened: it is the user's.
    send_report(plan.report, ReportKind::kFailed, wire::kExitNotStarted, ready.error().message());
    ::_exit(static_cast<int>(wire::kExitNotStarted));
  }
  die_with(plan.supervisor);
  if (ready = prepare_as_user(plan); !ready)
    end_unstarted(plan.report, wire::kExitNotStarted, printable(ready.error().message()));
  if (plan.spec->setup_command.empty()) {
    run_command(plan.spec->arguments, join_environment(plan.spec->environment, plan.spec->late_environment),
                plan.report);
  }
  run_setup(*plan.spec, plan.report, plan.program);
}

}  // namespace gpumux::runners
