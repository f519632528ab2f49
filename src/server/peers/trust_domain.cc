// SPDX-License-Identifier: Apache-2.0
#include "server/peers/trust_domain.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <iterator>

#include "server/loop/files.h"

namespace gpumux::server {
namespace {

// A guess: labels have some hundred bytes. A process with a longer one has no trust domain, so it shares nothing.
constexpr std::size_t kMaxLabel = 4096;
// A process's status lists all its groups. A process with more than some 5,000 counts as one in a container.
constexpr std::size_t kMaxStatus = 65536;

// The identity of the file that a path leads to, the same for all its names. Empty: the file cannot be looked at.
std::string identity(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

// How many pid namespaces a process is in, counted from ours: one number for each.
std::string pid_namespaces(const std::string& process) {
  const std::string status = read_file(process + "/status", kMaxStatus).value_or("");
  const std::size_t line = status.find("\nNSpid:");
  if (line == std::string::npos) return {};
  const std::string numbers = status.substr(line + 7, status.find('\n', line + 1) - line - 7);
  return std::to_string(std::count(numbers.begin(), numbers.end(), '\t'));
}

std::string user_mapping(const std::string& process) { return read_file(process + "/uid_map", kMaxLabel).value_or(""); }

// The machine's root is that of the first process. A daemon in a pod with the host's process ids has another one.
constexpr const char* kRoots[] = {"/proc/self/root", "/proc/1/root"};

// A daemon without CAP_SYS_PTRACE is refused a look, and goes by the namespaces. A process whose main thread has ended
// has no root directory to be looked at: its other threads may be anywhere.
bool has_our_root(const std::string& process) {
  struct stat theirs {};
  if (::stat((process + "/root").c_str(), &theirs) != 0) return errno == EACCES || errno == EPERM;
  return std::any_of(std::begin(kRoots), std::end(kRoots), [&](const char* root) {
    struct stat ours {};
    return ::stat(root, &ours) == 0 && ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
  });
}

}  // namespace

bool is_where_we_are(pid_t pid) {
  if (pid <= 0) return false;  // in a pid namespace that cannot be seen from here
  const std::string process = "/proc/" + std::to_string(pid);
  // A service has a mount namespace of its own as often as not, and a user's session may: only the root says something.
  const auto is_same = [&](const auto& look) { return look(process) == look("/proc/self"); };
  return is_same(pid_namespaces) && is_same(user_mapping) && has_our_root(process);
}

std::string trust_domain(pid_t pid, uid_t uid) {
  const std::string process = "/proc/" + std::to_string(pid);
  std::string domain = std::to_string(uid);
  for (const char* name : {"user", "pid", "mnt"}) {
    const std::string space = identity(process + "/ns/" + name);
    if (space.empty()) return {};
    domain += "/" + space;
  }
  const auto label = read_file(process + "/attr/current", kMaxLabel);
  if (label) return domain + "/" + *label;
  // Where no module labels processes the file is not there, or the kernel refuses to read it with EINVAL.
  const int why = label.error().system_errno;
  return why == ENOENT || why == EINVAL ? domain : std::string();
}

}  // namespace gpumux::server
