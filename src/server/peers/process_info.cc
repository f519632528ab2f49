// SPDX-License-Identifier: Apache-2.0
#include "server/peers/process_info.h"

#include <pwd.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "base/units.h"
#include "server/loop/files.h"

namespace gpumux::server {
namespace {

// A directory service may have long entries.
constexpr std::size_t kLookupBytes = 65536;

}  // namespace

std::optional<ProcessInfo> process_info(pid_t pid) {
  if (pid < 1) return std::nullopt;
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
  if (!text) return std::nullopt;
  // "4711 (name) S ppid ...": the name may hold spaces and parentheses, so its end is the last one.
  const std::size_t open = text->find('(');
  const std::size_t close = text->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open || close + 2 >= text->size()) {
    return std::nullopt;
  }
  ProcessInfo info;
  info.name = text->substr(open + 1, close - open - 1);
  info.state = (*text)[close + 2];
  // The start time is field 22, the kernel's flags are field 9, the parent is field 4; the state, at close + 2, is
  // field 3.
  std::size_t at = close + 2;
  const auto number = [&] {
    return base::parse_integer(std::string_view(*text).substr(at, text->find(' ', at) - at), 0, UINT64_MAX);
  };
  base::Result<std::uint64_t> flags = 0;
  for (int field = 3; field < 22; ++field) {
    if (field == 4) info.parent = static_cast<pid_t>(number().value_or(0));
    if (field == 9) flags = number();
    at = text->find(' ', at);
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  constexpr std::uint64_t kExiting = 4;  // PF_EXITING of the kernel's sched.h
  info.is_ending = info.state == 'Z' || info.state == 'X' || (flags && (*flags & kExiting) != 0);
  const auto start = number();
  if (!start) return std::nullopt;
  info.start_time = *start;
  return info;
}

std::string describe_state(char state) {
  switch (state) {
    case 'T': return "stopped (SIGSTOP)";
    case 't': return "stopped by a debugger";
    case 'D': return "waiting in the kernel";
    case 'Z': return "ended, not yet collected by its parent";
    default: return "";
  }
}

std::optional<uid_t> user_id(const std::string& name) {
  if (const auto number = base::parse_integer(name, 0, std::numeric_limits<uid_t>::max() - 1))
    return static_cast<uid_t>(*number);
  std::vector<char> buffer(kLookupBytes);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? std::nullopt : std::optional(found->pw_uid);
}

std::string user_name(uid_t uid) {
  std::vector<char> buffer(kLookupBytes);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) return found->pw_name;
  return std::to_string(uid);
}

}  // namespace gpumux::server
