// SPDX-License-Identifier: Apache-2.0
#include "containers/control_group.h"

#include <algorithm>

#include "base/units.h"
#include "os/durable_file.h"

namespace gpumux::containers {
namespace {

constexpr std::size_t kIdDigits = 64;
// Paths of control groups have at most PATH_MAX bytes, and there is one for each of a dozen hierarchies.
constexpr std::size_t kMostGroupBytes = 64u << 10;

constexpr std::string_view kSlurm = "slurm";
constexpr std::string_view kSlurmJob = "job_";
constexpr std::string_view kSlurmId = "slurm-";

bool is_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
bool is_letter_or_digit(char c) { return is_digit(c) || (c >= 'g' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Empty: the name has none.
std::string_view runtimes_id_in(std::string_view name) {
  for (auto at = name.begin(); at != name.end();) {
    const auto begin = std::find_if(at, name.end(), is_letter_or_digit);
    const auto end = std::find_if_not(begin, name.end(), is_letter_or_digit);
    if (static_cast<std::size_t>(end - begin) == kIdDigits && std::all_of(begin, end, is_digit)) return {begin, end};
    at = end;
  }
  return {};
}

std::uint32_t number_after(std::string_view prefix, std::string_view text) {
  if (!text.starts_with(prefix)) return 0;
  return static_cast<std::uint32_t>(base::parse_integer(text.substr(prefix.size()), 1, UINT32_MAX).value_or(0));
}

struct Found {
  std::string id;
  std::string_view group;
};

Found find_id(std::string_view control_group) {
  bool is_slurms = false;
  for (std::size_t at = 0; at < control_group.size();) {
    const std::size_t end = std::min(control_group.find('/', at), control_group.size());
    const std::string_view name = control_group.substr(at, end - at);
    const std::string_view group = control_group.substr(0, end);
    if (const auto id = runtimes_id_in(name); !id.empty()) return {std::string(id), group};
    if (is_slurms) {
      if (const std::uint32_t job = number_after(kSlurmJob, name); job != 0) return {slurm_id(job), group};
    }
    is_slurms = is_slurms || name.find(kSlurm) != std::string_view::npos;
    at = end + 1;
  }
  return {};
}

}  // namespace

std::string control_group_in(std::string_view text) {
  std::string_view chosen;
  bool has_id = false;
  while (!text.empty()) {
    // "hierarchy:controllers:/path"
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t colon = line.find(':', line.find(':') + 1);
    if (colon == std::string_view::npos) continue;
    const std::string_view path = line.substr(colon + 1);
    const bool has = !find_id(path).id.empty();
    if (has < has_id || (has == has_id && path.size() <= chosen.size())) continue;
    chosen = path;
    has_id = has;
  }
  return std::string(chosen);
}

std::string control_group_of(pid_t pid) {
  const auto process = os::open_directory("/proc/" + std::to_string(pid));
  if (!process) return {};
  const auto text = os::read_unsized_at(process->get(), "cgroup", kMostGroupBytes);
  return text ? control_group_in(*text) : std::string();
}

std::string container_id_in(std::string_view control_group) { return find_id(control_group).id; }

std::string_view container_group_in(std::string_view control_group) { return find_id(control_group).group; }

std::string slurm_id(std::uint32_t job) { return std::string(kSlurmId) + std::to_string(job); }

bool is_within(std::string_view group, std::string_view outer) {
  if (outer.empty() || group.substr(0, outer.size()) != outer) return false;
  return group.size() == outer.size() || outer.back() == '/' || group[outer.size()] == '/';
}

}  // namespace gpumux::containers
