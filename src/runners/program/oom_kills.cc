// SPDX-License-Identifier: Apache-2.0
#include "runners/program/oom_kills.h"

#include <fcntl.h>

#include <string>

#include "base/split.h"
#include "base/units.h"
#include "os/durable_file.h"

namespace gpumux::runners {
namespace {

// memory.events and /proc/vmstat have the same line: "oom_kill 3".
std::optional<std::uint64_t> read_count(int directory, const char* name) {
  constexpr std::string_view kKey = "oom_kill ";
  const std::string text = os::read_unsized_at(directory, name).value_or("");
  for (const std::string_view line : base::split(text, '\n')) {
    if (!line.starts_with(kKey)) continue;
    const auto count = base::parse_integer(line.substr(kKey.size()), 0, UINT64_MAX);
    return count ? std::optional(*count) : std::nullopt;
  }
  return std::nullopt;
}

// Of this process's own control group, with those below it, or else of the machine.
std::optional<std::uint64_t> count_near() {
  const std::string group = own_cgroup();
  const auto of_group = group.empty() ? std::nullopt : read_count(AT_FDCWD, (group + "/memory.events").c_str());
  return of_group ? of_group : read_count(AT_FDCWD, "/proc/vmstat");
}

}  // namespace

void OomKills::begin() { before_ = count_near(); }

OomKill OomKills::look(const Cgroup* group) const {
  if (group != nullptr) {
    // The group was made for this job.
    if (const auto own = read_count(group->directory(), "memory.events"))
      return *own > 0 ? OomKill::kOfJob : OomKill::kNone;
  }
  const auto now = count_near();
  return before_ && now && *now > *before_ ? OomKill::kNearJob : OomKill::kNone;
}

}  // namespace gpumux::runners
