// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/host_files.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "os/system_clock.h"
#include "os/unix_socket.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace gpumux::daemon {
namespace {

// The step that failed on the way to a mount, and why. Plain: a child sends it.
struct Failure {
  int system_errno = 0;  // 0: nothing
  char what[48] = {};
};

Failure failure(const char* what) {
  Failure failed{.system_errno = errno, .what = {}};
  std::strncpy(failed.what, what, sizeof failed.what - 1);
  return failed;
}

// Async-signal-safe, as all that a child runs here. The mount's size is not limited: a tenant may make its file larger,
// and would take what a limit leaves from the others. The daemon bounds how many files there are.
Failure make_mount(int& mount) {
  const int context = ::fsopen("tmpfs", FSOPEN_CLOEXEC);
  if (context < 0) return failure("fsopen");
  Failure failed;
  mount = -1;
  if (::fsconfig(context, FSCONFIG_SET_STRING, "huge", "always", 0) != 0) {
    failed = failure("huge=always");
  } else if (::fsconfig(context, FSCONFIG_SET_STRING, "size", "0", 0) != 0) {
    failed = failure("size=0");
  } else if (::fsconfig(context, FSCONFIG_SET_STRING, "mode", "0700", 0) != 0) {
    failed = failure("mode=0700");
  } else if (::fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) {
    failed = failure("making a tmpfs");
  } else {
    mount = ::fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (mount < 0) failed = failure("fsmount");
  }
  ::close(context);
  return failed;
}

bool write_file(const char* path, std::span<const char> text) {
  const int file = ::open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool is_written = ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int why = errno;
  ::close(file);
  errno = why;
  return is_written;
}

// "1000 1000 1": the id is its own in there, so that the daemon owns the mount's root.
struct IdMap {
  explicit IdMap(unsigned id) {
    const int length = std::snprintf(text.data(), text.size(), "%u %u 1", id, id);
    used = static_cast<std::size_t>(std::max(length, 0));
  }
  std::span<const char> span() const { return std::span(text).first(used); }
  std::array<char, 32> text{};
  std::size_t used = 0;
};

Failure enter_own_namespaces(const IdMap& user, const IdMap& group) {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return failure("unshare");
  // Group ids may be mapped without a privilege only by a process that cannot change its groups.
  if (!write_file("/proc/self/setgroups", std::span("deny", 4)) && errno != ENOENT) return failure("setgroups");
  if (!write_file("/proc/self/gid_map", group.span())) return failure("gid_map");
  if (!write_file("/proc/self/uid_map", user.span())) return failure("uid_map");
  return {};
}

base::Result<os::FileDescriptor> told(const Failure& failed, os::FileDescriptor mount) {
  if (failed.system_errno == 0) return mount;
  return base::fail_errno(failed.system_errno, std::string(failed.what, ::strnlen(failed.what, sizeof failed.what)));
}

base::Result<os::FileDescriptor> mount_here() {
  int mount = -1;
  const Failure failed = make_mount(mount);
  return told(failed, os::FileDescriptor(mount));
}

base::Result<os::FileDescriptor> mount_by_child() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return base::fail_errno(errno, "socketpair");
  os::FileDescriptor ours(ends[0]);
  os::FileDescriptor childs(ends[1]);
  const IdMap user(::geteuid());
  const IdMap group(::getegid());
  const pid_t child = ::fork();
  if (child < 0) return base::fail_errno(errno, "fork");
  if (child == 0) {
    int mount = -1;
    Failure failed = enter_own_namespaces(user, group);
    if (failed.system_errno == 0) failed = make_mount(mount);
    const auto sent = os::send_message(childs.get(), std::as_bytes(std::span(&failed, 1)), mount);
    ::_exit(sent ? 0 : 1);
  }
  childs.reset();
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  Failure failed;
  auto received = os::receive_message(ours.get(), std::as_writable_bytes(std::span(&failed, 1)));
  if (!received) return tl::unexpected(received.error());
  if (received->bytes != sizeof failed || (failed.system_errno == 0 && !received->fd))
    return base::fail(base::Code::kInternal, "the child that makes a tmpfs ended without one");
  return told(failed, std::move(received->fd));
}

// An earlier daemon's tmpfs that is attached at this folder, or a new one that is attached there.
base::Result<os::FileDescriptor> mount_at(const std::string& place) {
  if (::mkdir(place.c_str(), S_IRWXU) != 0 && errno != EEXIST) return base::fail_errno(errno, "cannot make " + place);
  const auto open_place = [&] {
    return os::FileDescriptor(::open(place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  };
  os::FileDescriptor there = open_place();
  struct stat its {};
  struct stat above {};
  if (!there || ::fstat(there.get(), &its) != 0 || ::fstatat(there.get(), "..", &above, 0) != 0)
    return base::fail_errno(errno, "cannot open " + place);
  if (its.st_uid != ::geteuid() || (its.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    return base::fail(base::Code::kDenied, place + " is open to other users");
  if (its.st_dev != above.st_dev) return there;
  const auto mount = mount_here();
  if (!mount) return tl::unexpected(mount.error());
  if (::move_mount(mount->get(), "", AT_FDCWD, place.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0)
    return base::fail_errno(errno, "cannot attach a tmpfs at " + place);
  there = open_place();
  if (!there) return base::fail_errno(errno, "cannot open " + place);
  return there;
}

base::Status populate(int fd, std::uint64_t bytes) {
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return base::fail_errno(errno, "cannot make host memory");
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return base::fail_errno(errno, "cannot map host memory");
  // For a memfd: huge pages where the kernel gives them to shared memory on advice.
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  int failed = ::madvise(memory, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  ::munmap(memory, bytes);
  // Before Linux 5.14.
  if (failed == EINVAL) failed = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (failed != 0) return base::fail_errno(failed, "cannot populate host memory");
  return {};
}

}  // namespace

std::string_view name_of(HostFileKind kind) {
  switch (kind) {
    case HostFileKind::kHugePagePool: return "huge_page_pool";
    case HostFileKind::kTmpfs: return "tmpfs";
    case HostFileKind::kMemfd: return "memfd";
  }
  return "";
}

HostFiles::HostFiles(base::Result<os::FileDescriptor> mount) {
  if (mount) {
    mount_ = std::move(*mount);
  } else {
    why_not_ = mount.error().message();
  }
}

HostFiles HostFiles::open() {
  auto mount = mount_here();
  // Without the right to mount; any other error here would come in a child, too.
  if (!mount && mount.error().system_errno == EPERM) return open_by_child();
  return HostFiles(std::move(mount));
}

base::Result<HostFiles> HostFiles::open_at(const std::string& folder) {
  auto mount = mount_at(folder);
  if (!mount) return tl::unexpected(mount.error());
  HostFiles files(std::move(mount));
  files.place_ = folder;
  return files;
}

os::FileDescriptor HostFiles::attached() const {
  if (place_.empty()) return {};
  return os::FileDescriptor(::openat(mount_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

void HostFiles::detach() const {
  if (!place_.empty()) ::umount2(place_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
}

HostFiles HostFiles::open_by_child() { return HostFiles(mount_by_child()); }

// A process that writes to what it has kept mapped gets new pages, and its own cgroup pays for them.
void HostFiles::unmake(os::FileDescriptor file, std::uint64_t bytes) {
  ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
}

bool HostFiles::is_whole(int file, std::uint64_t bytes) {
  struct stat facts {};
  return ::fstat(file, &facts) == 0 && static_cast<std::uint64_t>(facts.st_size) == bytes;
}

os::FileDescriptor HostFiles::make_unnamed(const char* what) const {
  return os::FileDescriptor(is_attached() ? ::openat(mount_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
                                          : ::memfd_create(what, MFD_CLOEXEC));
}

base::Result<HostFile> HostFiles::make(std::uint64_t bytes) const {
  constexpr unsigned kHugeTwoMebibytes = 21u << 26;  // MFD_HUGE_2MB
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const os::SystemClock clock;
  const base::TimePoint begin = clock.now();
  const auto made = [&](os::FileDescriptor fd, HostFileKind kind) {
    if (kind != HostFileKind::kTmpfs) ::fcntl(fd.get(), F_ADD_SEALS, kSeals);
    return HostFile{std::move(fd), kind, clock.now() - begin};
  };
  // A page of the pool can have no name in the tmpfs.
  os::FileDescriptor fd;
  if (place_.empty())
    fd = os::FileDescriptor(
        ::memfd_create("gpumux-host", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | kHugeTwoMebibytes));
  // Only fallocate shows that the pool has too few pages.
  if (fd && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0)
    return made(std::move(fd), HostFileKind::kHugePagePool);
  HostFileKind kind = HostFileKind::kMemfd;
  if (mount_) {
    kind = HostFileKind::kTmpfs;
    fd = os::FileDescriptor(::openat(mount_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  } else {
    fd = os::FileDescriptor(::memfd_create("gpumux-host", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  if (!fd) return base::fail_errno(errno, "cannot make host memory");
  GPUMUX_TRY(populate(fd.get(), bytes));
  return made(std::move(fd), kind);
}

}  // namespace gpumux::daemon
