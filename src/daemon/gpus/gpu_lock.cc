// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/gpu_lock.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <vector>

#include "base/units.h"
#include "daemon/peers/listener.h"
#include "os/durable_file.h"
#include "os/pidfd.h"
#include "os/unix_socket.h"
#include "server/loop/files.h"
#include "server/peers/process_info.h"
#include "server/peers/trust_domain.h"

namespace gpumux::daemon {
namespace {

// The owner answers from its loop. An owner that is stuck costs its visitors this long, and only the path is then
// missing.
constexpr int kAnswerTimeoutMs = 300;
// A guess: few daemons of one machine ask a GPU's owner at the same moment.
constexpr int kBacklog = 8;
constexpr char kLockSuffix[] = ".lock";
constexpr char kSocketSuffix[] = ".sock";
constexpr char kRuntimeDirSuffix[] = ".dir";  // a link to it, to be read without waiting for its daemon
// Hundreds of thousands of sockets; a machine with more has its squatter reported without a process id.
constexpr std::size_t kMaxSocketList = 64u << 20;
// A process's status lists all its groups: 65,536 at most.
constexpr std::size_t kMaxStatus = 1u << 20;

// An abstract address.
std::string name_of(const std::string& uuid_text) { return "@gpumux-gpu-" + uuid_text; }

// The owner's own words, which go to a terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }, '?');
  return text;
}

std::optional<LockOwner> ask_name(const std::string& uuid_text, GpuLock::Patience patience, Closer& closer) {
  auto connected = os::connect_seqpacket(name_of(uuid_text));
  if (!connected) return std::nullopt;
  // Any process may have taken the name first, and may send anything.
  const ForeignConnection socket(std::move(*connected), closer);
  const auto credentials = os::peer_credentials(socket.get());
  if (!credentials) return std::nullopt;
  LockOwner owner{credentials->pid, credentials->uid, {}};
  // In this order: the facts from /proc are of this process if it lives afterwards.
  const auto process = os::peer_process(socket.get(), owner.pid);
  owner.is_on_host = process && server::is_where_we_are(owner.pid) && !os::has_ended(process->pidfd.get());
  pollfd poller{socket.get(), POLLIN, 0};
  std::array<std::byte, 512> buffer;
  if (patience == GpuLock::Patience::kForAnswer && ::poll(&poller, 1, kAnswerTimeoutMs) == 1) {
    // Not received: descriptors may have come along.
    if (const auto next = os::peek(socket.get(), buffer))
      owner.runtime_dir = printable(std::string(reinterpret_cast<const char*>(buffer.data()), next->bytes));
  }
  return owner;
}

// The inode of the socket that has the name, as /proc/net/unix has it:
//   Num: RefCount Protocol Flags Type St Inode Path
std::string inode_of_name(const std::string& uuid_text) {
  const auto list = server::read_file("/proc/net/unix", kMaxSocketList);
  const std::size_t path = list ? list->find(" " + name_of(uuid_text) + "\n") : std::string::npos;
  if (path == std::string::npos) return {};
  const std::size_t begin = list->rfind(' ', path - 1) + 1;
  return list->substr(begin, path - begin);
}

uid_t uid_of(const std::string& process) {
  const std::string status = server::read_file(process + "/status", kMaxStatus).value_or("");
  const std::size_t line = status.find("\nUid:\t");
  if (line == std::string::npos) return 0;
  const std::size_t begin = line + 6;
  const auto uid = base::parse_integer(status.substr(begin, status.find('\t', begin) - begin), 0, UINT32_MAX);
  return uid ? static_cast<uid_t>(*uid) : 0;
}

// A socket that is bound and does not listen cannot say whose it is.
std::optional<LockOwner> look_for_owner(const std::string& uuid_text) {
  const std::string inode = inode_of_name(uuid_text);
  if (inode.empty()) return std::nullopt;
  const std::string wanted = "socket:[" + inode + "]";
  const auto names_in = [](const std::string& folder) {
    return os::list_directory(folder).value_or(std::vector<std::string>());
  };
  for (const std::string& name : names_in("/proc")) {
    const auto pid = base::parse_integer(name, 1, INT_MAX);
    if (!pid) continue;
    const std::string process = "/proc/" + name;
    for (const std::string& fd : names_in(process + "/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(process + "/fd/" + fd, gone).string() == wanted)
        return LockOwner{static_cast<pid_t>(*pid), uid_of(process), {}};
    }
  }
  return std::nullopt;
}

bool is_roots_folder(const std::string& folder) {
  struct stat status {};
  return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == 0 &&
         (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// Whether root's daemon has the GPU. Waits for no process.
std::optional<LockOwner> ask_roots(const LockRequest& request) {
  if (!is_roots_folder(request.folder)) return std::nullopt;
  const std::string path = request.folder + "/" + request.uuid_text;
  const auto socket = os::connect_seqpacket(path + kSocketSuffix);
  // EAGAIN: a process listens, and its backlog is full.
  if (!socket && socket.error().system_errno != EAGAIN) return std::nullopt;
  LockOwner owner;
  if (socket) {
    const auto credentials = os::peer_credentials(socket->get());
    if (!credentials) return std::nullopt;
    owner.pid = credentials->pid;
  }
  std::error_code error;
  owner.runtime_dir = std::filesystem::read_symlink(path + kRuntimeDirSuffix, error).string();
  return owner;
}

tl::unexpected<base::Error> taken(const LockRequest& request) {
  return base::fail_errno(EADDRINUSE, "cannot take the lock of " + request.uuid_text);
}

}  // namespace

// While the file is locked: no other process can have made anew the files that are removed here.
GpuLock::~GpuLock() {
  // Visitors that have not been answered hear of the end only once the name is free: they may take it then.
  std::vector<ForeignConnection> visitors;
  for (os::FileDescriptor* socket : {&roots_, &name_}) {
    if (*socket) UnixListener::drain(std::move(*socket), *closer_, visitors);
  }
  if (!file_) return;
  for (const char* suffix : {kSocketSuffix, kRuntimeDirSuffix, kLockSuffix}) ::unlink(path(suffix).c_str());
}

base::Status GpuLock::watch(int socket) {
  if (!visits_) visits_ = os::FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (!visits_ || ::epoll_ctl(visits_.get(), EPOLL_CTL_ADD, socket, &event) != 0)
    return base::fail_errno(errno, "cannot watch the lock of " + request_.uuid_text);
  return {};
}

base::Status GpuLock::bind_name() {
  // The kernel keeps our credentials for visitors from here on.
  auto socket = os::listen_seqpacket(name_of(request_.uuid_text), 0666, kBacklog);
  if (!socket) return base::fail_errno(socket.error().system_errno, "cannot take the lock of " + request_.uuid_text);
  GPUMUX_TRY(watch(socket->get()));
  name_ = std::move(*socket);
  return {};
}

base::Status GpuLock::take_roots(std::optional<LockOwner>& owner) {
  const std::string& folder = request_.folder;
  if (::mkdir(folder.c_str(), 0755) == 0) {
    ::chmod(folder.c_str(), 0755);  // independent of the umask: every daemon looks in it
  } else if (errno != EEXIST) {
    return base::fail_errno(errno, "cannot create " + folder);
  }
  if (!is_roots_folder(folder))
    return base::fail(base::Code::kDenied, folder + " is not a folder that only root can write to: remove it");
  for (struct stat locked{}, named{};;) {
    os::FileDescriptor file(
        ::open(path(kLockSuffix).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR));
    if (!file) return base::fail_errno(errno, "cannot open " + path(kLockSuffix));
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return base::fail_errno(errno, "cannot lock " + path(kLockSuffix));
      owner = ask_roots(request_);
      return taken(request_);
    }
    // An owner that ends removes the file. Then the locked file has no name any more, and another file may be there.
    if (::fstat(file.get(), &locked) == 0 && ::stat(path(kLockSuffix).c_str(), &named) == 0 &&
        locked.st_ino == named.st_ino) {
      file_ = std::move(file);
      break;
    }
  }
  ::unlink(path(kRuntimeDirSuffix).c_str());
  if (::symlink(request_.runtime_dir.c_str(), path(kRuntimeDirSuffix).c_str()) != 0)
    return base::fail_errno(errno, "cannot make " + path(kRuntimeDirSuffix));
  auto socket = os::listen_seqpacket(path(kSocketSuffix), 0666, kBacklog);
  if (!socket) return tl::unexpected(socket.error());
  roots_ = std::move(*socket);
  return watch(roots_.get());
}

base::Result<GpuLock> GpuLock::take(const LockRequest& request, std::optional<LockOwner>& owner, Closer& closer,
                                    Patience patience) {
  GpuLock lock(request, closer);
  const bool is_roots = ::geteuid() == 0 && !request.is_private;
  if (is_roots) GPUMUX_TRY(lock.take_roots(owner));
  base::Status bound = lock.bind_name();
  if (!bound && bound.error().system_errno != EADDRINUSE) return tl::unexpected(bound.error());
  // Root's daemon takes its own lock first and the name then, any other one the name first and looks then. So one of
  // two that come at the same time sees the other.
  if (!is_roots) {
    owner = ask_roots(request);
    if (!bound && !owner) owner = ask_name(request.uuid_text, patience, closer);
    if (!bound || owner) return taken(request);
    return lock;
  }
  if (bound) return lock;
  const auto found = ask_name(request.uuid_text, patience, closer);
  lock.has_taken_over_ = lock.bind_name().has_value();
  if (lock.has_taken_over_) return lock;
  // Root's daemon in another mount namespace, which does not see this one's folder. Root of a container is a stranger.
  if (found && found->uid == 0 && found->is_on_host) {
    owner = found;
    return taken(request);
  }
  // A look at every descriptor of the machine takes long.
  lock.squatter_ = found || patience == Patience::kNone ? found : look_for_owner(request.uuid_text);
  if (!lock.squatter_) lock.squatter_ = LockOwner();
  return lock;
}

bool GpuLock::take_name() {
  if (!name_ && bind_name()) squatter_.reset();
  return !squatter_;
}

std::optional<LockOwner> GpuLock::overruled_by() const { return file_ ? std::nullopt : ask_roots(request_); }

void GpuLock::answer() const {
  for (const os::FileDescriptor* socket : {&roots_, &name_}) {
    // As many as wait when the turn begins. More of them make the caller's descriptor readable again.
    for (int i = 0; *socket && i < kBacklog; ++i) {
      const ForeignConnection visitor(
          os::FileDescriptor(::accept4(socket->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)), *closer_);
      if (!visitor) break;
      static_cast<void>(os::send_message(visitor.get(), std::as_bytes(std::span(request_.runtime_dir))));
    }
  }
}

std::string describe(const LockOwner& owner) {
  if (owner.pid == 0 && owner.runtime_dir.empty()) return "a process that cannot be found";
  std::string text = "pid " + std::to_string(owner.pid) + " of user " + server::user_name(owner.uid);
  if (!owner.runtime_dir.empty()) text += " (" + owner.runtime_dir + ")";
  return text;
}

}  // namespace gpumux::daemon
