// SPDX-License-Identifier: Apache-2.0
#include "os/cgroups.h"

#include <fcntl.h>

#include <cstddef>

#include "os/durable_file.h"

namespace gpumux::os {
namespace {

// Takes the text up to the next `end` off `text`.
std::string_view take(std::string_view& text, char end) {
  const std::size_t at = text.find(end);
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return taken;
}

// The `index`th word of a line, from 0.
std::string_view word(std::string_view line, std::size_t index) {
  for (; index > 0; --index) take(line, ' ');
  return take(line, ' ');
}

// Whether the list "cpu,memory" has the name. The list of version 2's line in /proc/self/cgroup is empty.
bool has(std::string_view list, std::string_view name) {
  if (name.empty()) return list.empty();
  while (!list.empty()) {
    if (take(list, ',') == name) return true;
  }
  return false;
}

}  // namespace

std::optional<CgroupFolder> find_cgroup(std::string_view groups, std::string_view mounts, std::string_view controller) {
  std::string_view group;
  while (!groups.empty() && group.empty()) {
    std::string_view line = take(groups, '\n');
    take(line, ':');  // the hierarchy's number
    if (has(take(line, ':'), controller)) group = line;
  }
  if (group.empty()) return std::nullopt;
  while (!mounts.empty()) {
    const std::string_view line = take(mounts, '\n');
    const std::size_t separator = line.find(" - ");
    if (separator == std::string_view::npos) continue;
    const std::string_view kind = line.substr(separator + 3);
    const bool is_it =
        controller.empty() ? word(kind, 0) == "cgroup2" : word(kind, 0) == "cgroup" && has(word(kind, 2), controller);
    if (!is_it) continue;
    const std::string root(word(line, 3));
    const std::string point(word(line, 4));
    // A mount may show only a part of the tree, and the own group must be in it.
    if (root == "/") return CgroupFolder{point, point + std::string(group == "/" ? "" : group)};
    if (group == root || group.starts_with(root + "/"))
      return CgroupFolder{point, point + std::string(group.substr(root.size()))};
  }
  return std::nullopt;
}

std::optional<CgroupFolder> own_cgroup(std::string_view controller) {
  const std::string groups = read_unsized_at(AT_FDCWD, "/proc/self/cgroup").value_or("");
  const std::string mounts = read_unsized_at(AT_FDCWD, "/proc/self/mountinfo").value_or("");
  return find_cgroup(groups, mounts, controller);
}

}  // namespace gpumux::os
