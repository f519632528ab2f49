// SPDX-License-Identifier: Apache-2.0
// A simulated machine's settings. Read once, by the process that creates the machine. Then they are part of the
// machine's shared state, the same for every process until the machine's directory is removed.
//
// Each setting is a line `key = value` of machine.conf in the machine's directory, or a variable GPUMUX_SIM_KEY, which
// wins. docs/simulated-driver.md lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::sim {

inline constexpr std::uint32_t kMaxGpus = 16;

// Can the machine's channels be frozen?
enum class Interrupts : std::uint32_t {
  kYes,
  kRefused,  // the kernel module answers that it cannot
  kUnknown,  // the channels' class is of no known generation
};

// Lies in shared memory: plain numbers only.
struct Settings {
  std::uint32_t gpus = 1;
  std::uint32_t peers = 1;                              // 1: every GPU can reach every other's memory
  std::uint64_t memory_bytes = std::uint64_t{8} << 30;  // per GPU
  std::uint64_t context_bytes = std::uint64_t{256} << 20;
  std::uint64_t reserved_bytes = 0;  // of memory_bytes, the driver's own part
  std::uint64_t h2d_bytes_per_second = std::uint64_t{6} << 30;
  std::uint64_t d2h_bytes_per_second = std::uint64_t{6} << 30;
  std::uint64_t d2d_bytes_per_second = std::uint64_t{16} << 30;
  std::uint64_t peer_bytes_per_second = std::uint64_t{8} << 30;
  std::uint64_t kernel_bytes_per_second = std::uint64_t{16} << 30;
  std::uint64_t duplex_percent = 87;  // of its own bandwidth that a direction keeps while the other one is busy too
  std::uint64_t launch_nanoseconds = 2'000;
  std::uint64_t switch_nanoseconds = 100'000;
  std::uint64_t slice_nanoseconds = 2'000'000;
  std::uint64_t death_nanoseconds = 20'000'000;  // until the memory of a killed process is back
  Interrupts interrupts = Interrupts::kYes;
  std::uint32_t channels = 20;  // of each context
  std::uint64_t freeze_nanoseconds = 700'000;
  std::uint64_t thaw_nanoseconds = 400'000;
  std::uint64_t seed = 0;  // of the UUIDs; 0: random
  char name[64] = "gpumux simulated GPU";

  std::uint64_t usable_bytes() const { return memory_bytes - (reserved_bytes < memory_bytes ? reserved_bytes : 0); }
};

// Applies the lines of machine.conf. An unknown key or a bad value is kInvalid and names its line.
base::Status apply_lines(std::string_view text, Settings& settings);

// Applies the GPUMUX_SIM_* variables of this process. A bad value is kInvalid and names its variable.
base::Status apply_environment(Settings& settings);

// GPUMUX_SIM_DIR, or /dev/shm/gpumux-sim-UID.
std::string machine_directory();

}  // namespace gpumux::sim
