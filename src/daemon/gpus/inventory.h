// SPDX-License-Identifier: Apache-2.0
// The GPUs that this machine has, and the processes that use them. An interface, so that tests need no GPU and no
// driver.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"

namespace gpumux::daemon {

struct GpuInfo {
  base::GpuUuid uuid;
  std::string uuid_text;  // as nvidia-smi prints it: "GPU-..." or "MIG-..."
  std::string name;
  std::string pci_bus_id;
  std::string compute_mode;  // "default", "exclusive-process", "prohibited"
  std::uint64_t memory_total = 0;
  std::string architecture{};        // "Hopper"; empty: the driver does not say, or we know no name
  std::string compute_capability{};  // "9.0"; empty: the driver does not say
};

struct GpuProcess {
  pid_t pid = 0;
  std::string name;
  std::uint64_t memory = 0;
};

// Each is absent where the driver does not say it: of a MIG instance's utilization, for example.
struct GpuLoad {
  std::optional<std::uint32_t> utilization_percent{};
  std::optional<std::uint32_t> power_milliwatts{};
  std::optional<std::uint32_t> power_limit_milliwatts{};
  std::optional<std::uint32_t> temperature_celsius{};
};

struct GpuUse {
  std::uint64_t memory_used = 0;
  std::vector<GpuProcess> processes;  // tenants and others
  std::string sick{};                 // why no new work belongs on it; empty: it is healthy
  base::TimePoint asked_at{};         // filled in by the caller
};

struct DriverInfo {
  std::string cuda_version;  // "13.0": the newest version that the driver supports
  std::string nvml_version;  // the driver's own: "580.159.04"
  bool simulated = false;
};

// Why work cannot be frozen with this driver; empty: nothing is known against it. The library relies on structures of
// NVIDIA's kernel modules, which a new branch may change. So the branches are listed with which it has been measured,
// or whose open sources have the same (docs/decisions/0038-interrupts.md).
std::string why_no_interrupts(const DriverInfo& driver);

class Inventory {
 public:
  virtual ~Inventory() = default;
  // In PCI bus order, the instances of a partitioned (MIG) GPU in place of it. Does not change while the daemon runs.
  virtual const std::vector<GpuInfo>& gpus() const = 0;
  virtual const DriverInfo& driver() const = 0;
  // One entry for each of gpus(). May take long: called on a helper thread only, one call at a time.
  virtual std::vector<GpuUse> read_use() = 0;
  // The same. Apart from read_use(), which others wait for when memory has come back.
  virtual std::vector<GpuLoad> read_load() = 0;
};

// The driver's management library, opened at run time (`path`; empty: libnvidia-ml.so.1). No CUDA context is made.
// Errors say what is missing and what to do.
base::Result<std::unique_ptr<Inventory>> open_nvml(const std::string& path);

}  // namespace gpumux::daemon
