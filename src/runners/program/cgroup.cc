// SPDX-License-Identifier: Apache-2.0
#include "runners/program/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "os/cgroups.h"
#include "os/durable_file.h"

namespace gpumux::runners {
namespace {

using base::Result;
using base::Status;

// Jobs' groups lie in one of our own. A process that has given up root's powers may be unable to write to the root of
// the hierarchy, and it removes the groups then.
constexpr char kSharedName[] = "gpumux";
constexpr decltype(statfs::f_type) kCgroup2Magic = 0x63677270;

// The `index`th word of a line, from 0.
std::string_view word(std::string_view line, std::size_t index) {
  for (; index > 0; --index) {
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return {};
    line.remove_prefix(space + 1);
  }
  return line.substr(0, line.find(' '));
}

template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    visit(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
}

bool has_mark(const std::string& directory, const char* name) {
  char value[8] = {};
  return ::getxattr(directory.c_str(), name, value, sizeof value) == 1 && value[0] == '1';
}

// Under systemd each group has one writer: systemd, unless it has handed the group over and marked it so.
bool may_divide(const std::string& directory) {
  struct stat status {};
  if (::stat("/run/systemd/system", &status) != 0) return true;
  return has_mark(directory, "trusted.delegate") || has_mark(directory, "user.delegate");
}

}  // namespace

std::string own_cgroup() {
  const auto folder = os::own_cgroup({});
  return folder ? folder->path : std::string();
}

std::string plan_cgroup(const std::string& parent, std::uint64_t job, std::uint32_t attempt) {
  if (parent == "none") return {};
  std::string directory = parent;
  if (parent == "auto") {
    directory = own_cgroup();
    if (directory.empty() || !may_divide(directory)) return {};
  }
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0 || status.f_type != kCgroup2Magic) return {};
  // A user's own daemon below a group that was not handed over to that user.
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK, AT_EACCESS) != 0) return {};
  // With this process's number: several daemons may count their jobs below one parent.
  return directory + "/" + kSharedName + "/job-" + std::to_string(job) + "." + std::to_string(attempt) + "." +
         std::to_string(::getpid());
}

Result<Cgroup> Cgroup::make(const std::string& path) {
  // Independent of the umask: the supervisor moves members in, and every user may look.
  const std::string shared = path.substr(0, path.rfind('/'));
  if (::mkdir(shared.c_str(), 0755) == 0) ::chmod(shared.c_str(), 0755);
  if (::mkdir(path.c_str(), 0755) != 0) return base::fail_errno(errno, "cannot make the control group " + path);
  Cgroup group;
  group.path_ = path;
  auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  group.directory_ = std::move(*directory);
  // Linux before 5.2 has groups that cannot be frozen.
  if (::faccessat(group.directory_.get(), "cgroup.freeze", W_OK, AT_EACCESS) != 0) {
    const int why = errno;
    ::rmdir(path.c_str());
    return base::fail_errno(why, "cannot freeze the control group " + path);
  }
  return group;
}

Status Cgroup::write(const char* name, const char* value) const {
  const os::FileDescriptor file(::openat(directory_.get(), name, O_WRONLY | O_CLOEXEC));
  if (!file) return base::fail_errno(errno, "cannot open " + path_ + "/" + name);
  const auto size = static_cast<ssize_t>(std::string_view(value).size());
  if (::write(file.get(), value, static_cast<std::size_t>(size)) != size)
    return base::fail_errno(errno, "cannot write " + path_ + "/" + name);
  return {};
}

Result<bool> Cgroup::event(const char* key) const {
  const auto text = os::read_unsized_at(directory_.get(), "cgroup.events");
  if (!text) return tl::unexpected(text.error());
  bool value = false;
  for_each_line(*text, [&](std::string_view line) {
    if (word(line, 0) == key) value = word(line, 1) == "1";
  });
  return value;
}

pid_t Cgroup::fork_into() const {
  // The kernel's struct clone_args of Linux 5.7, and its flag; the headers of older systems have neither.
  struct Arguments {
    std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size,
        cgroup;
  };
  constexpr std::uint64_t kIntoCgroup = 0x200000000;
  Arguments arguments{};
  arguments.flags = kIntoCgroup;
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<std::uint64_t>(directory_.get());
  // By system call: glibc has no fork() that takes a group. The rest of glibc's fork() is for programs with threads.
  return static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
}

Status Cgroup::join() const { return write("cgroup.procs", "0"); }
Status Cgroup::freeze(bool frozen) const { return write("cgroup.freeze", frozen ? "1" : "0"); }
Status Cgroup::kill() const { return write("cgroup.kill", "1"); }
Result<bool> Cgroup::is_frozen() const { return event("frozen"); }

Result<bool> Cgroup::is_empty() const {
  return event("populated").map([](bool populated) { return !populated; });
}

Result<std::vector<pid_t>> Cgroup::members() const {
  const auto text = os::read_unsized_at(directory_.get(), "cgroup.procs");
  if (!text) return tl::unexpected(text.error());
  std::vector<pid_t> pids;
  for_each_line(*text, [&](std::string_view line) {
    pid_t pid = 0;
    // 0 stands for a process of another pid namespace, which cannot be named from here.
    if (std::from_chars(line.data(), line.data() + line.size(), pid).ec == std::errc() && pid > 0) pids.push_back(pid);
  });
  return pids;
}

namespace {

// Groups are removed from the leaves up. Only the administrator's jobs can have made any: users may not write here.
bool remove_below(int parent, const char* name, int depth) {
  // A guess: no job nests groups as deep. Deeper ones stay, with the groups above them.
  constexpr int kDeepest = 16;
  const int directory = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (directory < 0) return errno == ENOENT;
  DIR* entries = ::fdopendir(directory);
  if (entries == nullptr) {
    ::close(directory);
    return false;
  }
  while (const dirent* entry = depth < kDeepest ? ::readdir(entries) : nullptr) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') remove_below(directory, entry->d_name, depth + 1);
  }
  ::closedir(entries);
  // Anything but "busy" will not be otherwise later.
  return ::unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno != EBUSY;
}

}  // namespace

bool Cgroup::remove() const { return remove_below(AT_FDCWD, path_.c_str(), 0); }

}  // namespace gpumux::runners
