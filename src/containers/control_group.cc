// SPDX-License-Identifier: Apache-2.0
#include "containers/control_group.h"

#include <algorithm>

#include "os/durable_file.h"

namespace gpumux::containers {
namespace {

constexpr std::size_t kIdDigits = 64;
// Paths of control groups have at most PATH_MAX bytes, and there is one for each of a dozen hierarchies.
constexpr std::size_t kMostBytes = 64u << 10;

bool is_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
bool is_letter_or_digit(char c) { return is_digit(c) || (c >= 'g' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

std::string control_group_in(std::string_view text) {
  std::string_view longest;
  while (!text.empty()) {
    // "hierarchy:controllers:/path"
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t colon = line.find(':', line.find(':') + 1);
    if (colon == std::string_view::npos) continue;
    if (const std::string_view path = line.substr(colon + 1); path.size() > longest.size()) longest = path;
  }
  return std::string(longest);
}

std::string control_group_of(pid_t pid) {
  const auto process = os::open_directory("/proc/" + std::to_string(pid));
  if (!process) return {};
  const auto text = os::read_unsized_at(process->get(), "cgroup", kMostBytes);
  return text ? control_group_in(*text) : std::string();
}

std::string_view container_id_in(std::string_view control_group) {
  for (auto at = control_group.begin(); at != control_group.end();) {
    const auto begin = std::find_if(at, control_group.end(), is_letter_or_digit);
    const auto end = std::find_if_not(begin, control_group.end(), is_letter_or_digit);
    if (static_cast<std::size_t>(end - begin) == kIdDigits && std::all_of(begin, end, is_digit))
      return {begin, kIdDigits};
    at = end;
  }
  return {};
}

bool is_within(std::string_view group, std::string_view outer) {
  if (outer.empty() || group.substr(0, outer.size()) != outer) return false;
  return group.size() == outer.size() || outer.back() == '/' || group[outer.size()] == '/';
}

}  // namespace gpumux::containers
