// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/host_budget.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "base/units.h"
#include "os/cgroups.h"
#include "server/loop/files.h"

namespace gpumux::daemon {
namespace {

// The files have a number, or "max".
constexpr std::size_t kMostDigits = 64;

std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = server::read_file(path, kMostDigits);
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

std::optional<std::uint64_t> percent_of(std::string_view text) {
  if (text.size() < 2 || text.back() != '%') return std::nullopt;
  const auto percent = base::parse_integer(text.substr(0, text.size() - 1), 0, 90);
  return percent ? std::optional(*percent) : std::nullopt;
}

// In version 2's one tree, and in version 1's hierarchy of memory.
std::uint64_t cgroup_available() {
  std::uint64_t least = ~std::uint64_t{0};
  if (const auto folder = os::own_cgroup("")) least = memory_left(*folder, "memory.max", "memory.current");
  if (const auto folder = os::own_cgroup("memory"))
    least = std::min(least, memory_left(*folder, "memory.limit_in_bytes", "memory.usage_in_bytes"));
  return least;
}

}  // namespace

std::uint64_t memory_left(const os::CgroupFolder& group, const char* most_file, const char* used_file) {
  std::uint64_t least = ~std::uint64_t{0};
  for (std::string path = group.path;; path.resize(path.rfind('/'))) {
    const auto most = read_number(path + "/" + most_file);
    const auto used = read_number(path + "/" + used_file);
    if (most && used) least = std::min(least, *most > *used ? *most - *used : 0);
    if (path.size() <= group.mount_point.size()) return least;
  }
}

std::uint64_t host_budget(std::string_view text) {
  const std::uint64_t most = std::min(memory_available(), cgroup_available());
  if (const auto percent = percent_of(text)) return most / 100 * *percent;
  const auto bytes = base::parse_bytes(text);
  return bytes ? std::min(*bytes, most) : 0;
}

std::uint64_t reserved_host_memory(std::uint64_t budget, std::uint64_t chunk) {
  // An account alone still gets nearly all, and one that comes last can run a small program: 1 GiB is four chunks.
  constexpr std::uint64_t kMostReserved = 4;
  constexpr std::uint64_t kReservedPart = 16;
  return std::min(budget / chunk / kReservedPart, kMostReserved) * chunk;
}

// The machine's memory bounds the making of host memory, and a few cores keep it busy. 8 threads make most, of each
// kind of host memory (experiment 006 and bench/gpu). Programs need cores, too.
std::size_t host_threads() {
  constexpr unsigned kMostThreads = 8;
  const unsigned cores = std::thread::hardware_concurrency();
  return std::clamp(cores / 2, 1u, kMostThreads);
}

}  // namespace gpumux::daemon
