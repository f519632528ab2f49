// SPDX-License-Identifier: Apache-2.0
#include "server/peers/account.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/split.h"
#include "base/units.h"
#include "os/file_descriptor.h"
#include "server/loop/files.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"

namespace gpumux::server {
namespace {

// A million ranges.
constexpr std::size_t kMaxFileBytes = 64 << 20;
// The kernel nests namespaces of one kind this deep.
constexpr int kMostNested = 33;

struct Namespace {
  os::FileDescriptor fd;
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const Namespace& other) const { return device == other.device && inode == other.inode; }
};

std::optional<Namespace> look_at(os::FileDescriptor fd) {
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return std::nullopt;
  return Namespace{std::move(fd), status.st_dev, status.st_ino};
}

std::optional<Namespace> open_namespace(const std::string& process, const char* kind) {
  return look_at(os::FileDescriptor(::open((process + "/ns/" + kind).c_str(), O_RDONLY | O_CLOEXEC)));
}

// `question`: NS_GET_PARENT or NS_GET_USERNS.
std::optional<Namespace> ask(const Namespace& about, unsigned long question) {
  return look_at(os::FileDescriptor(::ioctl(about.fd.get(), question)));
}

// Of the namespaces that `theirs` is nested in, itself included, the one whose parent is `ours`. None: it is ours, or
// not below ours.
std::optional<Namespace> outermost_below(const Namespace& ours, std::optional<Namespace> theirs) {
  if (!theirs || *theirs == ours) return std::nullopt;
  for (int depth = 0; depth < kMostNested; ++depth) {
    auto parent = ask(*theirs, NS_GET_PARENT);
    if (!parent) return std::nullopt;
    if (*parent == ours) return theirs;
    theirs = std::move(parent);
  }
  return std::nullopt;
}

}  // namespace

std::string Account::text() const {
  switch (kind_) {
    case Kind::kUser: return "user " + std::to_string(number_);
    case Kind::kContainer: return "container " + std::to_string(number_);
    case Kind::kUnknown: break;
  }
  return "unknown containers";
}

SubordinateIds SubordinateIds::read(const std::string& file) {
  const auto text = read_file(file, kMaxFileBytes);
  if (text) return parse(*text, user_id);
  if (text.error().system_errno != ENOENT)
    log_warning("subordinate ids are ignored: the file cannot be read",
                {{"file", file}, {"why", text.error().message()}});
  return {};
}

SubordinateIds SubordinateIds::parse(std::string_view text,
                                     const std::function<std::optional<uid_t>(const std::string&)>& find_user) {
  SubordinateIds ids;
  std::map<std::string, std::optional<uid_t>, std::less<>> known;
  for (const std::string_view line : base::split(text, '\n')) {
    const auto words = base::split(line, ':');  // name:first:count
    if (words.size() != 3) continue;
    const std::string name(words[0]);
    const auto first = base::parse_integer(words[1], 0, UINT32_MAX);
    const auto count = base::parse_integer(words[2], 1, UINT32_MAX);
    if (!first || !count) continue;
    auto found = known.find(name);
    if (found == known.end()) found = known.emplace(name, find_user(name)).first;
    // Root's ranges are for containers that root makes, and often hold the ids of the machine's users (root:1000:1).
    if (found->second && *found->second != 0) ids.ranges_.push_back({*first, *count, *found->second});
  }
  return ids;
}

uid_t SubordinateIds::owner_of(uid_t uid) const {
  const auto range = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const Range& r) { return uid >= r.first && uid - r.first < r.count; });
  return range == ranges_.end() ? uid : range->owner;
}

Account account_of(pid_t pid, uid_t uid, bool is_contained, const SubordinateIds& subordinates) {
  if (!is_contained) return Account::of_user(subordinates.owner_of(uid));
  const std::string process = "/proc/" + std::to_string(pid);
  const auto our_users = open_namespace("/proc/self", "user");
  const auto our_pids = open_namespace("/proc/self", "pid");
  if (pid <= 0 || !our_users || !our_pids) return {};
  // Root of the machine made this namespace. Processes in it may have made the ones that are nested in it.
  if (const auto pids = outermost_below(*our_pids, open_namespace(process, "pid"))) {
    const auto owner = ask(*pids, NS_GET_USERNS);
    if (owner && *owner == *our_users) return Account::of_container(pids->inode);
  }
  if (const auto users = outermost_below(*our_users, open_namespace(process, "user"))) {
    uid_t owner = 0;
    if (::ioctl(users->fd.get(), NS_GET_OWNER_UID, &owner) != 0) return {};
    return owner == 0 ? Account::of_container(users->inode) : Account::of_user(subordinates.owner_of(owner));
  }
  return {};
}

}  // namespace gpumux::server
