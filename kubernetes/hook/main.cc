// SPDX-License-Identifier: Apache-2.0
// gpumux-cdi-hook: the hooks of the OCI runtime specification that make the programs of one container tenants, and tell
// the daemon whose container that is. The runtime starts it as root, with the container's state on standard input.
//
//   gpumux-cdi-hook --library PATH    createContainer: between making the container's mounts and entering its root
//                                     folder. PATH: of the library inside of the container
//   gpumux-cdi-hook --record FOLDER [--claim UID] [--quota GPU_UUID=BYTES ...] [--share GPU_UUID=CORES ...]
//                   [--priority N]    createRuntime: before any program of the container's. Keeps its record in FOLDER
//   gpumux-cdi-hook --forget FOLDER   poststop: removes the record
//
// The runtime starts no container whose hook fails or hangs. So the hook always exits with 0, within kLongestSeconds: a
// container without gpumux is better than none. Two processes make that certain. The *worker* reads the runtime's words
// and does what they ask for. The *guard* waits for it, kills it when the time is up, and reports what it has said. The
// guard understands nothing else, allocates nothing, and touches nothing that could make it wait. A file of a FUSE
// server may keep a process from ending even after SIGKILL.
//
// If an image keeps a worker so, the container's processes see the worker. So a worker gives up everything of the
// host's before it touches the image. Its root folder is the image, and its descriptors are the image's and the pipe to
// the guard.
//
// If the work is not done, the guard reports it twice: on standard error and in the host's system log. The reason: runc
// shows standard error only of hooks that fail.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "kubernetes/hook/container_record.h"
#include "kubernetes/hook/image.h"
#include "kubernetes/hook/root_mount.h"
#include "kubernetes/hook/runtime_state.h"
#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/system_clock.h"

namespace {

using namespace gpumux;

// The worker has this long.
constexpr base::Duration kTimeLimit = std::chrono::milliseconds(1500);
// A killed worker has until then to end.
constexpr base::Duration kLastMoment = std::chrono::milliseconds(1750);
// A container's start waits this long at most: kLastMoment, and the rest for a busy machine.
constexpr unsigned kLongestSeconds = 2;

// Of a sentence, and of a container's id. Both fit into an empty pipe, so that no worker waits for the guard.
constexpr std::size_t kMaxReportBytes = 2048;

const base::TimePoint started = os::now();

// Whether there is something to read before this time after the hook's start.
bool wait_readable(int fd, base::Duration limit) {
  pollfd waiting{fd, POLLIN, 0};
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(started + limit - os::now());
    const int ready = ::poll(&waiting, 1, left.count() > 0 ? static_cast<int>(left.count()) : 0);
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// One line: names in it are the image's and may hold anything.
std::string printable(std::string_view sentence) {
  std::string line(sentence.substr(0, kMaxReportBytes));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  return line;
}

// The log daemon's socket is the host's: the guard does not enter the container's root folder. Does not wait.
void log_to_system(std::string_view line) {
  char message[2 * kMaxReportBytes + 256];
  constexpr char kWarningOfDaemons[] = "<28>";  // syslog(3): LOG_DAEMON | LOG_WARNING
  const int length =
      std::snprintf(message, sizeof message, "%s%.*s", kWarningOfDaemons, static_cast<int>(line.size()), line.data());
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un log{AF_UNIX, "/dev/log"};
  [[maybe_unused]] const ssize_t sent = ::sendto(socket.get(), message, static_cast<std::size_t>(length), MSG_NOSIGNAL,
                                                 reinterpret_cast<const sockaddr*>(&log), sizeof log);
}

using Words = std::span<char* const>;

// One task that the hook is started for.
struct Use {
  const char* flag;                                           // the first of its arguments
  const char* undone;                                         // what is true of a container for which it was not done
  const char* too_late;                                       // that it was not done in time
  base::Status (*run)(const kubernetes::State&, Words more);  // in the worker; `more`: the arguments behind the flag
};

// `container`, `why`: lines of at most kMaxReportBytes.
void report(const Use& use, std::string_view container, std::string_view why) {
  if (container.empty()) container = "(no id)";
  char line[2 * kMaxReportBytes + 256];
  const int length =
      std::snprintf(line, sizeof line, "gpumux-cdi-hook: container %.*s %s: %.*s\n", static_cast<int>(container.size()),
                    container.data(), use.undone, static_cast<int>(why.size()), why.data());
  const std::string_view whole(line, static_cast<std::size_t>(length));
  log_to_system(whole.substr(0, whole.size() - 1));
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, whole.data(), whole.size());
}

void report_failure(const Use& use, const char* trying) {
  char why[256];
  const int length = std::snprintf(why, sizeof why, "%s: %s", trying, std::strerror(errno));
  report(use, "", {why, static_cast<std::size_t>(length)});
}

// The guard ends a worker that waits here for too long.
base::Result<std::string> read_state() {
  std::string state;
  static char buffer[16384];
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (got < 0 && errno == EAGAIN) wait_readable(STDIN_FILENO, kTimeLimit);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return base::fail_errno(errno, "cannot read the container's state from standard input");
    if (got == 0) return state;
    state.append(buffer, static_cast<std::size_t>(got));
    if (state.size() > kubernetes::kMaxStateBytes) {
      return base::fail(base::Code::kInvalid, "the container's state on standard input has more than " +
                                                  std::to_string(kubernetes::kMaxStateBytes) + " bytes");
    }
  }
}

// crun makes a root writable that was not, unless the configuration asks for a read-only one.
kubernetes::Access access_of(const kubernetes::RootMount& mount, bool asked_read_only) {
  if (mount.is_read_only_beneath) return kubernetes::Access::kReadOnly;
  if (!mount.is_read_only) return kubernetes::Access::kWritable;
  return asked_read_only ? kubernetes::Access::kReadOnlyByRuntime : kubernetes::Access::kReadOnly;
}

struct OpenRoot {
  os::FileDescriptor folder;
  kubernetes::Access access = kubernetes::Access::kWritable;
};

base::Result<OpenRoot> open_root(const std::string& bundle) {
  const auto folder = os::open_directory(bundle);
  if (!folder) return tl::unexpected(folder.error());
  const auto config = os::read_file_at(folder->get(), "config.json", kubernetes::kMaxConfigBytes);
  if (!config) return tl::unexpected(config.error());
  const auto root = kubernetes::root_of(*config, bundle);
  if (!root) return tl::unexpected(root.error());
  os::FileDescriptor opened(::open(root->path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return base::fail_errno(errno, "cannot open the container's root " + root->path);
  const auto mount = kubernetes::root_mount_of(opened.get());
  if (!mount) return tl::unexpected(mount.error());
  return OpenRoot{std::move(opened), access_of(*mount, root->is_read_only)};
}

// Leaves the host: no path and no process of the container's leads to it by way of this process.
base::Status enter(int root) {
  if (::fchdir(root) != 0 || ::chroot(".") != 0) return base::fail_errno(errno, "cannot enter the container's root");
  // Processes of the container's user do not reach the hook's own file, /proc/PID/exe.
  ::prctl(PR_SET_DUMPABLE, 0);
  return {};
}

base::Status list_library(const kubernetes::State& state, Words more) {
  if (more.size() != 1 || more[0][0] != '/')
    return base::fail(base::Code::kInvalid, "--library needs one absolute path, of the library in the container");
  const auto root = open_root(state.bundle);
  if (!root) return tl::unexpected(root.error());
  GPUMUX_TRY(enter(root->folder.get()));
  const auto listed = kubernetes::list_library(root->folder.get(), more[0], root->access);
  if (!listed) return tl::unexpected(listed.error());
  if (*listed == kubernetes::Listing::kOldLoader)
    return base::fail(base::Code::kInvalid, "the image's glibc is older than the library needs");
  return {};
}

base::Status keep_record(const kubernetes::State& state, Words more) {
  const auto order = kubernetes::parse_record_order(more);
  if (!order) return tl::unexpected(order.error());
  return kubernetes::keep_record(state, *order);
}

base::Status forget_record(const kubernetes::State& state, Words more) {
  if (more.size() != 1 || more[0][0] != '/')
    return base::fail(base::Code::kInvalid, "--forget needs one absolute path, of the records' folder");
  return kubernetes::forget_record(state, more[0]);
}

constexpr Use kUses[] = {
    {"--library", "runs without gpumux", "the image could not be changed in time", list_library},
    {"--record", "has no whole record, so its claims may not hold", "the record could not be written in time",
     keep_record},
    {"--forget", "has ended and leaves its record", "the record could not be removed in time", forget_record},
};

base::Status read_and_run(const Use& use, Words more) {
  const auto text = read_state();
  if (!text) return tl::unexpected(text.error());
  const auto state = kubernetes::parse_state(*text);
  if (!state) return tl::unexpected(state.error());
  const std::string id = printable(state->id) + "\n";
  [[maybe_unused]] const ssize_t wrote = ::write(STDOUT_FILENO, id.data(), id.size());
  // The state was the last that the runtime has said.
  ::dup2(STDERR_FILENO, STDIN_FILENO);
  return use.run(*state, more);
}

// `in`, `out`: the two ends of one pipe. Writes to it the container's id and a newline, as soon as the id is known. If
// the work is not done, it then writes the reason.
[[noreturn]] void work(const Use& use, Words more, os::FileDescriptor in, os::FileDescriptor out, pid_t guard) {
  // A guard that was killed leaves no worker, also if that was before this call.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != guard) ::_exit(0);
  // The runtime waits for the ends of its own streams, and the worker may outlive the guard. Messages of the C library
  // at an abort go nowhere: nothing can be written to the end for reading.
  ::dup2(out.get(), STDOUT_FILENO);
  ::dup2(in.get(), STDERR_FILENO);
  in.reset();
  out.reset();
  std::string why;
  if (const auto done = read_and_run(use, more); !done) why = printable(done.error().message());
  [[maybe_unused]] const ssize_t wrote = ::write(STDOUT_FILENO, why.data(), why.size());
  ::_exit(0);
}

// Reports why it was not done, if it was not and the image has use for it.
void guard(const Use& use, Words more) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return report_failure(use, "cannot make a pipe");
  os::FileDescriptor reading(ends[0]);
  os::FileDescriptor writing(ends[1]);
  const pid_t self = ::getpid();
  const pid_t worker = ::fork();
  if (worker < 0) return report_failure(use, "cannot start a process");
  if (worker == 0) work(use, more, std::move(reading), std::move(writing), self);
  writing.reset();
  ::prctl(PR_SET_DUMPABLE, 0);
  const os::FileDescriptor ended(static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)));
  if (!ended) report_failure(use, "cannot watch the worker");
  const bool is_in_time = ended && wait_readable(ended.get(), kTimeLimit);
  if (!is_in_time) ::kill(worker, SIGKILL);
  // Only this process sees its end: processes whose parent ends go to the container's first process.
  int status = 0;
  if (is_in_time || !ended || wait_readable(ended.get(), kLastMoment)) ::waitpid(worker, &status, 0);

  char said[2 * kMaxReportBytes + 1];
  const ssize_t length = ::read(reading.get(), said, sizeof said);
  std::string_view why(said, length > 0 ? static_cast<std::size_t>(length) : 0);
  const std::size_t newline = why.find('\n');
  const bool has_id = newline != std::string_view::npos;
  const std::string_view id = has_id ? why.substr(0, newline) : "";
  if (has_id) why.remove_prefix(newline + 1);
  if (!ended) return;
  if (!is_in_time) {
    report(use, id, has_id ? use.too_late : "the container's state on standard input did not end in time");
  } else if (WIFSIGNALED(status)) {
    char signal[64];
    const int size = std::snprintf(signal, sizeof signal, "the worker was ended by signal %d", WTERMSIG(status));
    report(use, id, {signal, static_cast<std::size_t>(size)});
  } else if (!why.empty()) {
    report(use, id, why);
  }
}

// crun starts no container if a hook ends before it has read the whole state.
void drain_state() {
  static char ignored[16384];
  while (wait_readable(STDIN_FILENO, kLastMoment) && ::read(STDIN_FILENO, ignored, sizeof ignored) > 0) {
  }
}

// The descriptors 0 to 2 are open from here on, so that no file of ours gets their numbers, and no others are.
void open_standard_streams() {
  ::close_range(STDERR_FILENO + 1, ~0u, 0);
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  ::clearenv();  // machines without empty_environment.S
  // crun starts hooks with all signals blocked; other runtimes may have any of them ignored.
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGCHLD, SIG_DFL);
  // If something keeps the guard, a full pipe of the runtime's for example, it does not keep the container.
  ::signal(SIGALRM, [](int) { ::_exit(0); });
  ::alarm(kLongestSeconds);
  open_standard_streams();
  ::signal(SIGPIPE, SIG_IGN);
  ::umask(0022);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);

  const Words words(argv, static_cast<std::size_t>(argc));
  const auto* use = std::find_if(std::begin(kUses), std::end(kUses), [&](const Use& one) {
    return words.size() > 1 && std::strcmp(words[1], one.flag) == 0;
  });
  if (use == std::end(kUses)) {
    report(kUses[0], "", "wrong arguments; --library PATH, --record FOLDER or --forget FOLDER is needed");
  } else {
    guard(*use, words.subspan(2));
  }
  drain_state();
  // No destructor of a library and no flush may fail now.
  ::_exit(0);
}
