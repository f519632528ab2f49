// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/host_budget.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/units.h"
#include "daemon/loop/files.h"

namespace gpumux::daemon {
namespace {

// /proc/self/cgroup has a line for each hierarchy, a dozen at most, with a path of up to 4 KiB. The other files have a
// number.
constexpr std::size_t kMaxProcFile = 1 << 16;

std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_file(path, kMaxProcFile);
  if (!text) return std::nullopt;
  const std::string line = text->substr(0, text->find('\n'));
  const auto number = base::parse_integer(line, 0, ~std::uint64_t{0} / 2);
  return number ? std::optional(*number) : std::nullopt;  // none: "max"
}

std::uint64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kilobytes * 1024;
  }
  return 0;
}

// The memory that our cgroup, and each above it, still allows. In version 2's one tree; with version 1 the limits are
// not looked at.
std::uint64_t cgroup_available() {
  std::uint64_t least = ~std::uint64_t{0};
  const auto text = read_file("/proc/self/cgroup", kMaxProcFile);
  const std::size_t at = text ? text->find("0::/") : std::string::npos;
  std::string path = "/sys/fs/cgroup";
  if (at != std::string::npos) path += text->substr(at + 3, text->find('\n', at) - at - 3);
  while (path.size() >= std::string("/sys/fs/cgroup").size()) {
    const auto most = read_number(path + "/memory.max");
    const auto now = read_number(path + "/memory.current");
    if (most && now) least = std::min(least, *most > *now ? *most - *now : 0);
    path.resize(path.rfind('/'));
  }
  return least;
}

std::optional<std::uint64_t> percent_of(std::string_view text) {
  if (text.size() < 2 || text.back() != '%') return std::nullopt;
  const auto percent = base::parse_integer(text.substr(0, text.size() - 1), 0, 90);
  return percent ? std::optional(*percent) : std::nullopt;
}

}  // namespace

std::uint64_t host_budget(std::string_view text) {
  const std::uint64_t most = std::min(memory_available(), cgroup_available());
  if (const auto percent = percent_of(text)) return most / 100 * *percent;
  const auto bytes = base::parse_bytes(text);
  return bytes ? std::min(*bytes, most) : 0;
}

bool is_fixed_host_memory(std::string_view text) { return !percent_of(text); }

// The machine's memory bounds the making of host memory, and a few cores keep it busy. 8 threads make most, of each
// kind of host memory (experiment 006 and bench/gpu). Programs need cores, too.
std::size_t host_threads() {
  constexpr unsigned kMostThreads = 8;
  const unsigned cores = std::thread::hardware_concurrency();
  return std::clamp(cores / 2, 1u, kMostThreads);
}

}  // namespace gpumux::daemon
