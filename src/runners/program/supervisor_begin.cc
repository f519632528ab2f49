// SPDX-License-Identifier: Apache-2.0
// From the daemon's Begin to the running child.
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "os/unix_socket.h"
#include "os/wall_clock.h"
#include "runners/program/child.h"
#include "runners/program/privileges.h"
#include "runners/program/report.h"
#include "runners/program/supervisor.h"

namespace gpumux::runners {
namespace {

using base::Code;
using base::Result;
using base::Status;

// A daemon that started a runner and does not say what for is gone or stuck.
constexpr int kBeginTimeoutMs = 30'000;
// Daemons connect one at a time; an administrator's tools may look too.
constexpr int kControlBacklog = 8;
// Attached terminals that have not been accepted yet.
constexpr int kAttachBacklog = 16;
// The runner must be the last of its job to be killed for memory: no other process writes the end.
constexpr char kRunnerOomScore[] = "-900";

// The spec, mapped instead of read: with megabytes of arguments, that memory would stay with the runner for days.
Result<wire::RunnerSpec> read_spec(int directory) {
  const os::FileDescriptor file(::openat(directory, wire::kSpecFile, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return base::fail_errno(errno, "cannot open the job's spec");
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return base::fail_errno(errno, "cannot look at the job's spec");
  if (!S_ISREG(status.st_mode) || status.st_size <= 0 ||
      static_cast<std::uint64_t>(status.st_size) > wire::kMaxSpecBytes) {
    return base::fail(Code::kInvalid, "the job's spec has " + std::to_string(status.st_size) + " bytes; the most is " +
                                          std::to_string(wire::kMaxSpecBytes));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return base::fail_errno(errno, "cannot map the job's spec");
  auto spec = wire::decode_spec(std::span(static_cast<const std::byte*>(memory), size));
  ::munmap(memory, size);
  return spec;
}

void set_own_oom_score() {
  const os::FileDescriptor file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  // Only root may; without, the runner is one small process among others.
  if (file) static_cast<void>(!::write(file.get(), kRunnerOomScore, sizeof kRunnerOomScore - 1));
}

// Whether /proc shows other users' processes only to processes that may trace them.
bool proc_hides_processes() {
  std::FILE* mounts = std::fopen("/proc/self/mounts", "re");
  if (mounts == nullptr) return true;
  char line[1024];
  bool hides = false;
  while (std::fgets(line, sizeof line, mounts) != nullptr) {
    const std::string_view text = line;
    if (text.find(" /proc proc ") != std::string_view::npos && text.find("hidepid=") != std::string_view::npos &&
        text.find("hidepid=0") == std::string_view::npos && text.find("hidepid=off") == std::string_view::npos) {
      hides = true;
    }
  }
  std::fclose(mounts);
  return hides;
}

}  // namespace

Supervisor::Supervisor(os::FileDescriptor daemon) { peers_.push_back(std::move(daemon)); }

int Supervisor::run() {
  const auto message = receive_begin();
  if (!message) return 1;
  if (const Status begun = begin(*message); !begun) {
    refuse(begun.error());
    return 1;
  }
  start();
  loop();
  return 0;
}

std::optional<wire::Begin> Supervisor::receive_begin() {
  const int socket = peers_[0].get();
  pollfd polled{socket, POLLIN, 0};
  int ready;
  do {
    ready = ::poll(&polled, 1, kBeginTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  if (ready != 1) return std::nullopt;
  // A socket pair names the process that made it; an accepted connection the process that connected.
  const auto peer = os::peer_credentials(socket);
  if (!peer || (peer->uid != 0 && peer->uid != ::geteuid())) return std::nullopt;
  std::byte buffer[base::kMaxMessageBytes];
  const auto received = os::receive_message(socket, buffer);
  if (!received || received->bytes == 0) return std::nullopt;
  const auto decoded = wire::decode_to_runner(std::span(buffer, received->bytes));
  if (!decoded) {
    refuse(decoded.error());
    return std::nullopt;
  }
  const auto* begin = std::get_if<wire::Begin>(&*decoded);
  return begin == nullptr ? std::nullopt : std::optional(*begin);
}

void Supervisor::refuse(const base::Error& error) {
  wire::RunnerRefused refused;
  refused.claimed = error.code == Code::kExists ? 1 : 0;
  wire::set_text(refused.text, error.message());
  tell(peers_[0], refused);
}

Status Supervisor::open_job_directory(const std::string& path) {
  auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  struct stat status {};
  if (::fstat(directory->get(), &status) != 0) return base::fail_errno(errno, "cannot look at " + path);
  // The files in it decide whose job is run: no other user may have written there.
  if (status.st_uid != ::geteuid() || (status.st_mode & 0077) != 0)
    return base::fail(Code::kDenied, path + " is not a directory that only its runner's user can use");
  directory_ = std::move(*directory);
  return {};
}

Status Supervisor::begin(const wire::Begin& begin) {
  if (begin.protocol != wire::kRunnerProtocolVersion) {
    return base::fail(Code::kUnsupported, "the daemon speaks version " + std::to_string(begin.protocol) +
                                              " of the runner's protocol, and this runner version " +
                                              std::to_string(wire::kRunnerProtocolVersion));
  }
  GPUMUX_TRY(open_job_directory(std::string(wire::text_of(begin.directory))));
  auto spec = read_spec(directory_.get());
  if (!spec) return tl::unexpected(spec.error());
  spec_ = std::move(*spec);
  const std::string cgroup = plan_cgroup(spec_.cgroup_parent, spec_.job, spec_.attempt);
  GPUMUX_TRY(claim(cgroup));
  // From here on the job has a runner, and whatever goes wrong is the job's end, which is written.
  end_.job = spec_.job;
  end_.attempt = spec_.attempt;
  if (const Status ready = set_up(cgroup); !ready) {
    never_started(wire::kExitNotStarted, ready.error().message());
  }
  return {};
}

Status Supervisor::claim(const std::string& cgroup) {
  wire::RunnerClaim claim;
  claim.runner_pid = static_cast<std::uint32_t>(::getpid());
  claim.runner_start_ticks = start_ticks_of(::getpid());
  claim.boot_id = os::boot_id();
  claim.cgroup = cgroup;
  auto claimed = os::claim_file_at(directory_.get(), wire::kClaimFile, wire::encode_claim(claim));
  if (!claimed) return tl::unexpected(claimed.error());
  claim_ = std::move(*claimed);
  return {};
}

Status Supervisor::set_up(const std::string& cgroup) {
  set_own_oom_score();
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::sigaddset(&handled, signal);
  ::sigprocmask(SIG_SETMASK, &handled, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  signals_ = os::FileDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return base::fail_errno(errno, "cannot receive signals");
  // Room for the end, while there is some. Without it the end is written when there is.
  static_cast<void>(end_file_.reserve(directory_.get(), wire::kEndFile, wire::encode_end(end_).size()));
  // Through the descriptor, for the limit on a socket's name is 107 bytes.
  const std::string control = "/proc/self/fd/" + std::to_string(directory_.get()) + "/" + wire::kControlSocket;
  auto listener = os::listen_seqpacket(control, 0600, kControlBacklog);
  if (!listener) return tl::unexpected(listener.error());
  control_ = std::move(*listener);
  if (!cgroup.empty()) {
    // Without one (it is there already, or the kernel is old) the job is held together by its tree.
    if (auto group = Cgroup::make(cgroup)) processes_.use_cgroup(std::move(*group));
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno(errno, "cannot make a pipe");
  report_ = os::FileDescriptor(ends[0]);
  report_end_ = os::FileDescriptor(ends[1]);
  ::fcntl(report_.get(), F_SETFL, O_NONBLOCK);
  if (!spec_.setup_command.empty()) {
    program_ = os::FileDescriptor(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    if (!program_) return base::fail_errno(errno, "cannot open the runner's own program");
  }
  return {};
}

void Supervisor::start() {
  tell_all(state());
  if (!std::holds_alternative<Waiting>(phase_)) return;  // set_up() has failed: there will be no process
  const Status started = spec_.interactive ? start_terminal() : start_main(-1);
  if (!started) never_started(wire::kExitNotStarted, started.error().message());
}

Status Supervisor::start_terminal() {
  os::FileDescriptor listener;
  if (!spec_.attach_path.empty()) {
    auto made = os::listen_seqpacket(spec_.attach_path, 0600, kAttachBacklog);
    if (!made) return tl::unexpected(made.error());
    listener = std::move(*made);
    if (::lchown(spec_.attach_path.c_str(), spec_.uid, spec_.gid) != 0)
      return base::fail_errno(errno, "cannot give " + spec_.attach_path + " to the job's user");
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a pair of sockets");
  terminal_.link = os::FileDescriptor(ends[0]);
  const os::FileDescriptor other_end(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return base::fail_errno(errno, "cannot start the terminal's process");
  if (pid == 0) {
    become_terminal(
        TerminalPlan{.spec = &spec_, .link = other_end.get(), .report = report_end_.get(), .listener = listener.get()});
  }
  terminal_.process = pid;
  processes_.except(pid);
  return {};
}

Status Supervisor::start_main(int terminal) {
  oom_kills_.begin();
  const pid_t self = ::getpid();
  const Cgroup* const group = processes_.cgroup();
  const pid_t born_inside = group != nullptr ? group->fork_into() : -1;
  const pid_t pid = born_inside >= 0 ? born_inside : ::fork();
  if (pid < 0) return base::fail_errno(errno, "cannot start the job's process");
  if (pid == 0) {
    become_job(ChildPlan{.spec = &spec_,
                         .supervisor = self,
                         .report = report_end_.get(),
                         .terminal = terminal,
                         .program = program_.get(),
                         .cgroup = born_inside < 0 ? group : nullptr});
  }
  main_ = pid;
  phase_.emplace<Running>();
  started_ = clock_.now();
  started_wall_ns_ = static_cast<std::uint64_t>(os::wall_clock_ns());
  report_end_.reset();
  program_.reset();
  release_spec();
  // From here on it opens nothing and takes no user's identity.
  if (const Status dropped = keep_only_signalling(proc_hides_processes()); !dropped) {
    wire::set_text(end_.text, "its supervisor " + printable(dropped.error().message()));
    terminate(wire::EndReason::kDaemon, base::Duration(0));
  }
  tell_all(state());
  return {};
}

// The child has its copy. The runner would keep this one for days.
void Supervisor::release_spec() {
  wire::RunnerSpec rest;
  rest.job = spec_.job;
  rest.attempt = spec_.attempt;
  rest.uid = spec_.uid;
  rest.interactive = spec_.interactive;
  rest.attach_path = spec_.attach_path;
  rest.leftover_grace_ms = spec_.leftover_grace_ms;
  spec_ = std::move(rest);
  ::malloc_trim(0);
}

void Supervisor::never_started(std::uint32_t code, const std::string& why, std::optional<base::TimePoint> kill_at) {
  end_.how = wire::EndHow::kNotStarted;
  end_.code = code;
  end_.reason = reason_;
  end_.ended_wall_ns = static_cast<std::uint64_t>(os::wall_clock_ns());
  wire::set_text(end_.text, printable(why));
  report_end_.reset();
  write_end();
  phase_ = Cleaning{.kill_at = kill_at, .give_up_at = {}, .drain_until = {}, .release_until = {}};
  next_tick_ = clock_.now();
  tell_all(state());
}

}  // namespace gpumux::runners
