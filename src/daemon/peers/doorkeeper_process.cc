// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/doorkeeper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/units.h"
#include "os/durable_file.h"
#include "os/unix_socket.h"

namespace gpumux::daemon {
namespace {

// The character devices of NVIDIA's driver (Documentation/admin-guide/devices.txt of Linux). An exported allocation is
// an open /dev/nvidiactl (driver 580.159.04, H200).
constexpr unsigned kNvidiaMajor = 195;
constexpr std::chrono::seconds kCheckPatience{5};  // as kLookPatience
// In a starter and its children. 0 to 2 are /dev/null.
constexpr int kSocket = 3;

// A process that waits for ever must hold nothing of the daemon's: not its locks, sockets or output.
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

[[noreturn]] void keep_door() {
  const os::FileDescriptor memory(::memfd_create("gpumux-door", MFD_CLOEXEC));
  alignas(Answer) std::array<std::byte, kAnswerBytes> reply{};
  std::array<int, os::kMaxDescriptors> fds{};
  for (;;) {
    wait_readable(kSocket);
    std::byte nothing;
    auto request = os::receive_message(kSocket, {&nothing, 1});
    if (!request || request->bytes == 0 || !request->fd) ::_exit(EXIT_SUCCESS);
    const auto arrived = os::receive_all(request->fd.get(), std::span(reply).subspan(sizeof(Answer)), fds);
    // The daemon has the connection, too: this drops nothing that lies in it.
    request->fd.reset();
    // Without a message: as if the connection had ended.
    const os::Arrived got = arrived.value_or(os::Arrived());
    const bool is_welcome = got.descriptors == 0 || (got.descriptors == 1 && is_harmless(fds[0], memory.get()));
    const Answer answer{is_welcome ? Answer::Outcome::kReceived : Answer::Outcome::kRefused, got.was_cut};
    std::memcpy(reply.data(), &answer, sizeof answer);
    const std::size_t bytes = sizeof answer + (is_welcome ? got.bytes : 0);
    const int passed = is_welcome && got.descriptors == 1 ? fds[0] : -1;
    if (!os::send_message(kSocket, std::span(reply).first(bytes), passed) || !is_welcome) ::_exit(EXIT_SUCCESS);
    if (passed >= 0) ::close(passed);
  }
}

[[noreturn]] void guard(int channel) {
  ::dup3(channel, kSocket, O_CLOEXEC);
  ::close(channel);
  const pid_t doorkeeper = fork_child();
  if (doorkeeper == 0) keep_door();
  ::waitpid(doorkeeper, nullptr, 0);
  ::_exit(EXIT_SUCCESS);
}

[[noreturn]] void start_others(int control) {
  ::prctl(PR_SET_NAME, kDoorkeeperName);
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
    if (order->fd && fork_child() == 0) guard(order->fd.get());
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

base::Result<Starter> Starter::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a socket for doorkeepers");
  os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor its(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return base::fail_errno(errno, "cannot start a process for doorkeepers");
  if (pid == 0) start_others(its.get());
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

base::Status Starter::check() const {
  const os::FileDescriptor memory(::memfd_create("gpumux-check", MFD_CLOEXEC));
  if (!memory) return base::fail_errno(errno, "cannot make a memory file");
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a pair of sockets");
  const os::FileDescriptor near(ends[0]);
  const os::FileDescriptor far(ends[1]);
  auto channel = add();
  if (!channel) return tl::unexpected(channel.error());
  const std::byte nothing{};
  GPUMUX_TRY(os::send_message(near.get(), {&nothing, 1}, memory.get()));
  GPUMUX_TRY(os::send_message(channel->get(), {&nothing, 1}, far.get()));
  pollfd answers{channel->get(), POLLIN, 0};
  // A machine that is as slow as that refuses nothing.
  if (::poll(&answers, 1, static_cast<int>(std::chrono::milliseconds(kCheckPatience).count())) == 0) return {};
  std::array<std::byte, kAnswerBytes> buffer;
  const auto received = os::receive_message(channel->get(), buffer);
  if (received && received->bytes > sizeof(Answer) && received->fd) return {};
  return base::fail(base::Code::kUnsupported,
                    std::string("the process ") + kDoorkeeperName +
                        " cannot receive a memory file: no process can be started, or a sandbox forbids a system "
                        "call (dup3, memfd_create, prctl, statx)");
}

}  // namespace gpumux::daemon
