// SPDX-License-Identifier: Apache-2.0
#include "doorkeepers/starter.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/units.h"
#include "os/durable_file.h"
#include "os/unix_socket.h"

namespace gpumux::doorkeepers {
namespace {

// The character devices of NVIDIA's driver (Documentation/admin-guide/devices.txt of Linux). An exported allocation is
// an open /dev/nvidiactl (driver 580.159.04, H200).
constexpr unsigned kNvidiaMajor = 195;
// In a starter and its children. 0 to 2 are /dev/null.
constexpr int kSocket = 3;

// A process that waits for ever must hold nothing of the owner's: not its locks, sockets or output.
void keep_only(int socket) {
  if (socket != kSocket && ::dup3(socket, kSocket, O_CLOEXEC) < 0) ::_exit(EXIT_FAILURE);
  // First, for the close of the others may take long.
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int i = 0; i < kSocket; ++i) ::dup2(null, i);
  if (::close_range(kSocket + 1, ~0U, 0) == 0) return;
  // Linux before 5.9.
  for (const std::string& name : os::list_directory("/proc/self/fd").value_or(std::vector<std::string>())) {
    if (const auto fd = base::parse_integer(name, kSocket + 1, INT32_MAX)) ::close(static_cast<int>(*fd));
  }
}

void wait_readable(int socket) {
  pollfd poller{socket, POLLIN, 0};
  ::poll(&poller, 1, -1);
}

pid_t fork_child() {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  // After the parent's end the signal would not come.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(EXIT_FAILURE);
  return 0;
}

[[noreturn]] void guard(int channel, Starter::Work work) {
  ::dup3(channel, kSocket, O_CLOEXEC);
  ::close(channel);
  const pid_t doorkeeper = fork_child();
  if (doorkeeper == 0) {
    work(kSocket);
    ::_exit(EXIT_FAILURE);
  }
  ::waitpid(doorkeeper, nullptr, 0);
  ::_exit(EXIT_SUCCESS);
}

[[noreturn]] void start_others(int control, Starter::Work work) {
  ::prctl(PR_SET_NAME, kName);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);  // a terminal's ^C is for the daemon
  ::signal(SIGCHLD, SIG_IGN);                 // the starter need not wait for a guard
  keep_only(control);
  // Of a message with more descriptors than are allowed, the kernel closes the rest itself, and waits.
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  for (;;) {
    wait_readable(kSocket);
    std::byte nothing;
    auto order = os::receive_message(kSocket, {&nothing, 1});
    if (!order || order->bytes == 0) ::_exit(EXIT_SUCCESS);
    if (order->fd && fork_child() == 0) guard(order->fd.get(), work);
  }
}

}  // namespace

bool is_harmless(int fd, int memory) {
  const unsigned flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  struct statx its {};
  struct statx ours {};
  // F_GET_SEALS: answered by the kernel alone, and only of memory files.
  if (::fcntl(fd, F_GET_SEALS) >= 0) {
    // The last descriptor of a mounted tmpfs can end the mount, with all that is mounted in it.
    return ::statx(fd, "", flags, STATX_TYPE, &its) == 0 && ::statx(memory, "", flags, STATX_TYPE, &ours) == 0 &&
           its.stx_dev_major == ours.stx_dev_major && its.stx_dev_minor == ours.stx_dev_minor;
  }
  const int mode = ::fcntl(fd, F_GETFL);
  return mode >= 0 && (mode & O_PATH) == 0 && ::statx(fd, "", flags, STATX_TYPE, &its) == 0 &&
         (its.stx_mode & S_IFMT) == S_IFCHR && its.stx_rdev_major == kNvidiaMajor;
}

base::Result<Starter> Starter::start(Work work) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a socket for doorkeepers");
  os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor its(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return base::fail_errno(errno, "cannot start a process for doorkeepers");
  if (pid == 0) start_others(its.get(), work);
  return Starter(std::move(ours), pid);
}

Starter::~Starter() {
  control_.reset();
  while (pid_ > 0 && ::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

base::Result<os::FileDescriptor> Starter::add() const {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a socket for a doorkeeper");
  os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor its(ends[1]);
  const std::byte order{};
  GPUMUX_TRY(os::send_message(control_.get(), {&order, 1}, its.get()));
  return ours;
}

}  // namespace gpumux::doorkeepers
