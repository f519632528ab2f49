// SPDX-License-Identifier: Apache-2.0
// The inventory of a real machine, through NVML. NVML needs no CUDA context and makes none, so the daemon never takes
// GPU memory.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/limits.h"
#include "cuda/nvml.h"
#include "daemon/gpus/inventory.h"
#include "daemon/gpus/nvml_health.h"
#include "server/peers/process_info.h"

namespace gpumux::daemon {
namespace {

using namespace cuda;

// Asked again with more room only if this is too small.
constexpr std::size_t kProcesses = 256;

// Closed after everything of it.
using Library = std::unique_ptr<void, int (*)(void*)>;

// Whether NVML has the function, and the call has succeeded.
template <class Function, class... Arguments>
bool succeeds(Function function, Arguments... arguments) {
  return function != nullptr && function(arguments...) == NVML_SUCCESS;
}

base::Status fail(const Nvml& nvml, nvmlReturn_t result, const std::string& what, const std::string& remedy = "") {
  const char* text = nvml.nvmlErrorString != nullptr ? nvml.nvmlErrorString(result) : "NVML error";
  return base::fail(base::Code::kUnavailable, what + ": " + text + remedy);
}

std::string compute_mode_text(nvmlComputeMode_t mode) {
  switch (mode) {
    case NVML_COMPUTEMODE_DEFAULT: return "default";
    case NVML_COMPUTEMODE_EXCLUSIVE_THREAD: return "exclusive-thread";
    case NVML_COMPUTEMODE_PROHIBITED: return "prohibited";
    case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: return "exclusive-process";
  }
  return "unknown";
}

// As NVIDIA's driver for dynamic resource allocation spells them.
std::string architecture_text(nvmlDeviceArchitecture_t architecture) {
  switch (architecture) {
    case kNvmlArchitectureKepler: return "Kepler";
    case kNvmlArchitectureMaxwell: return "Maxwell";
    case kNvmlArchitecturePascal: return "Pascal";
    case kNvmlArchitectureVolta: return "Volta";
    case kNvmlArchitectureTuring: return "Turing";
    case kNvmlArchitectureAmpere: return "Ampere";
    case kNvmlArchitectureAda: return "Ada Lovelace";
    case kNvmlArchitectureHopper: return "Hopper";
    case kNvmlArchitectureBlackwell: return "Blackwell";
    default: return {};
  }
}

// NVML writes 8 digits of domain, other tools 4.
std::string pci_text(const nvmlPciInfo_t& pci) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
  return text;
}

class NvmlInventory final : public Inventory {
 public:
  NvmlInventory(Library library, const Nvml& nvml) : library_(std::move(library)), nvml_(nvml) {}
  ~NvmlInventory() override {
    health_.reset();
    nvml_.nvmlShutdown();
  }

  const std::vector<GpuInfo>& gpus() const override { return gpus_; }
  const DriverInfo& driver() const override { return driver_; }

  base::Status discover() {
    health_.emplace(nvml_);
    read_driver();
    unsigned int count = 0;
    if (const auto result = nvml_.nvmlDeviceGetCount_v2(&count); result != NVML_SUCCESS) {
      return fail(nvml_, result, "cannot count the GPUs");
    }
    struct Found {
      nvmlPciInfo_t pci{};
      nvmlDevice_t device = nullptr;
    };
    std::vector<Found> found;
    for (unsigned int i = 0; i < count; ++i) {
      Found gpu;
      // One lost GPU must not keep the daemon from serving the others.
      if (nvml_.nvmlDeviceGetHandleByIndex_v2(i, &gpu.device) != NVML_SUCCESS) continue;
      if (nvml_.nvmlDeviceGetPciInfo_v3 != nullptr) nvml_.nvmlDeviceGetPciInfo_v3(gpu.device, &gpu.pci);
      found.push_back(gpu);
    }
    std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
      return std::tuple(a.pci.domain, a.pci.bus, a.pci.device) < std::tuple(b.pci.domain, b.pci.bus, b.pci.device);
    });
    for (const Found& gpu : found) add(gpu.device, pci_text(gpu.pci));
    if (gpus_.empty()) {
      return base::fail(base::Code::kNotFound,
                        "NVML finds no GPU that can be used: check `nvidia-smi`, and that /dev/nvidia* "
                        "are there and may be opened by this user");
    }
    return {};
  }

  std::vector<GpuUse> read_use() override {
    std::vector<GpuUse> all;
    health_->look();
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const nvmlDevice_t device = devices_[i];
      GpuUse use;
      use.sick = health_->why_sick(parents_[i]);
      if (const auto memory = read_memory(device)) use.memory_used = memory->used;
      add_processes(use, device, nvml_.nvmlDeviceGetComputeRunningProcesses_v3);
      add_processes(use, device, nvml_.nvmlDeviceGetGraphicsRunningProcesses_v3);
      add_processes(use, device, nvml_.nvmlDeviceGetMPSComputeRunningProcesses_v3);
      all.push_back(std::move(use));
    }
    return all;
  }

  std::vector<GpuLoad> read_load() override {
    std::vector<GpuLoad> all;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      GpuLoad load;
      nvmlUtilization_t rates{};
      if (succeeds(nvml_.nvmlDeviceGetUtilizationRates, devices_[i], &rates)) load.utilization_percent = rates.gpu;
      unsigned int value = 0;
      if (succeeds(nvml_.nvmlDeviceGetPowerUsage, parents_[i], &value)) load.power_milliwatts = value;
      if (succeeds(nvml_.nvmlDeviceGetEnforcedPowerLimit, parents_[i], &value)) load.power_limit_milliwatts = value;
      if (succeeds(nvml_.nvmlDeviceGetTemperature, parents_[i], NVML_TEMPERATURE_GPU, &value))
        load.temperature_celsius = value;
      all.push_back(load);
    }
    return all;
  }

 private:
  using ProcessFunction = nvmlReturn_t (*)(nvmlDevice_t, unsigned int*, nvmlProcessInfo_t*);

  void read_driver() {
    std::array<char, kNvmlDriverVersionBytes> text{};
    if (succeeds(nvml_.nvmlSystemGetDriverVersion, text.data(), static_cast<unsigned int>(text.size())))
      driver_.nvml_version = text.data();
    int version = 0;
    if (succeeds(nvml_.nvmlSystemGetCudaDriverVersion_v2, &version))
      driver_.cuda_version = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    driver_.simulated = ::dlsym(library_.get(), kSimulatedNvmlSymbol) != nullptr;
  }

  std::optional<nvmlMemory_t> read_memory(nvmlDevice_t device) const {
    nvmlMemory_v2_t detailed{};
    detailed.version = kNvmlMemoryVersion2;
    if (succeeds(nvml_.nvmlDeviceGetMemoryInfo_v2, device, &detailed)) {
      // `total` is with what the driver has reserved for itself (0.6 of an H200's 140 GiB), `used` is without it. The
      // rest is what programs can have, and what the driver tells them.
      return nvmlMemory_t{detailed.total - std::min(detailed.reserved, detailed.total), detailed.free, detailed.used};
    }
    nvmlMemory_t memory{};
    return succeeds(nvml_.nvmlDeviceGetMemoryInfo, device, &memory) ? std::optional(memory) : std::nullopt;
  }

  void add(nvmlDevice_t device, const std::string& pci) {
    unsigned int current = kNvmlMigDisabled;
    unsigned int pending = kNvmlMigDisabled;
    const bool is_partitioned =
        succeeds(nvml_.nvmlDeviceGetMigMode, device, &current, &pending) && current == kNvmlMigEnabled;
    if (!is_partitioned) return add_one(device, device, pci);
    unsigned int most = 0;
    if (!succeeds(nvml_.nvmlDeviceGetMaxMigDeviceCount, device, &most)) return;
    for (unsigned int i = 0; i < most; ++i) {
      nvmlDevice_t instance = nullptr;
      if (succeeds(nvml_.nvmlDeviceGetMigDeviceHandleByIndex, device, i, &instance)) add_one(instance, device, pci);
    }
  }

  // `parent`: the whole GPU, which knows what its instances do not.
  void add_one(nvmlDevice_t device, nvmlDevice_t parent, const std::string& pci) {
    std::array<char, kNvmlUuidBytes> uuid{};
    if (gpus_.size() >= base::kMaxGpus) return;
    if (!succeeds(nvml_.nvmlDeviceGetUUID, device, uuid.data(), static_cast<unsigned int>(uuid.size()))) return;
    const auto parsed = base::GpuUuid::parse(uuid.data());
    // Drivers before R470 name instances by "MIG-GPU-UUID/x/y", which says nothing about what cuDeviceGetUuid gives.
    if (!parsed) return;
    GpuInfo info{.uuid = *parsed, .uuid_text = uuid.data(), .name = "", .pci_bus_id = pci, .compute_mode = ""};
    std::array<char, kNvmlNameBytes> name{};
    if (succeeds(nvml_.nvmlDeviceGetName, device, name.data(), static_cast<unsigned int>(name.size())))
      info.name = name.data();
    auto mode = NVML_COMPUTEMODE_DEFAULT;
    if (succeeds(nvml_.nvmlDeviceGetComputeMode, parent, &mode)) info.compute_mode = compute_mode_text(mode);
    nvmlDeviceArchitecture_t architecture = 0;
    if (succeeds(nvml_.nvmlDeviceGetArchitecture, parent, &architecture))
      info.architecture = architecture_text(architecture);
    int major = 0;
    int minor = 0;
    if (succeeds(nvml_.nvmlDeviceGetCudaComputeCapability, parent, &major, &minor))
      info.compute_capability = std::to_string(major) + "." + std::to_string(minor);
    if (const auto memory = read_memory(device)) info.memory_total = memory->total;
    gpus_.push_back(std::move(info));
    devices_.push_back(device);
    parents_.push_back(parent);
    health_->watch(parent);
  }

  static void add_processes(GpuUse& use, nvmlDevice_t device, ProcessFunction list) {
    if (list == nullptr) return;
    std::vector<nvmlProcessInfo_t> processes(kProcesses);
    auto count = static_cast<unsigned int>(processes.size());
    auto result = list(device, &count, processes.data());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
      processes.resize(std::size_t{count} + kProcesses);
      count = static_cast<unsigned int>(processes.size());
      result = list(device, &count, processes.data());
    }
    if (result != NVML_SUCCESS) return;
    for (std::size_t i = 0; i < std::min<std::size_t>(count, processes.size()); ++i) {
      const auto pid = static_cast<pid_t>(processes[i].pid);
      // One process may do computing and graphics.
      if (std::any_of(use.processes.begin(), use.processes.end(), [&](const GpuProcess& p) { return p.pid == pid; }))
        continue;
      const auto process = server::process_info(pid);
      const bool known = processes[i].usedGpuMemory != kNvmlValueNotAvailable;
      use.processes.push_back({pid, process ? process->name : "", known ? processes[i].usedGpuMemory : 0});
    }
  }

  Library library_;
  Nvml nvml_;
  std::vector<GpuInfo> gpus_;
  std::vector<nvmlDevice_t> devices_;  // of gpus_
  std::vector<nvmlDevice_t> parents_;  // the whole GPU of each
  std::optional<NvmlHealth> health_;
  DriverInfo driver_;
};

}  // namespace

base::Result<std::unique_ptr<Inventory>> open_nvml(const std::string& path) {
  const std::string name = path.empty() ? "libnvidia-ml.so.1" : path;
  Library library(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL), ::dlclose);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return base::fail(
        base::Code::kNotFound,
        "cannot open NVML (" + std::string(why != nullptr ? why : name) +
            "): install the NVIDIA driver of this machine's kernel, in a container pass the driver's utility "
            "libraries in (NVIDIA_DRIVER_CAPABILITIES=compute,utility), or try gpumux without a GPU "
            "(gpumux run --simulated)");
  }
  Nvml nvml;
  load_nvml(
      nvml, [](void* handle, const char* symbol) { return ::dlsym(handle, symbol); }, library.get());
  if (nvml.nvmlInit_v2 == nullptr || nvml.nvmlShutdown == nullptr || nvml.nvmlDeviceGetCount_v2 == nullptr ||
      nvml.nvmlDeviceGetHandleByIndex_v2 == nullptr || nvml.nvmlDeviceGetUUID == nullptr) {
    return base::fail(base::Code::kUnsupported, name + " lacks functions that every driver since CUDA 10 has");
  }
  if (const auto result = nvml.nvmlInit_v2(); result != NVML_SUCCESS) {
    return tl::unexpected(fail(nvml, result, "NVML does not start",
                               ". Check `nvidia-smi`; after an update of the driver, reload its kernel module or "
                               "restart the machine")
                              .error());
  }
  auto inventory = std::make_unique<NvmlInventory>(std::move(library), nvml);
  GPUMUX_TRY(inventory->discover());
  return std::unique_ptr<Inventory>(std::move(inventory));
}

std::string why_no_interrupts(const DriverInfo& driver) {
  constexpr std::string_view kBranches[] = {"580.", "590.", "595."};
  const auto is_of = [&](std::string_view branch) { return driver.nvml_version.starts_with(branch); };
  if (driver.simulated || std::any_of(std::begin(kBranches), std::end(kBranches), is_of)) return {};
  return "driver " + driver.nvml_version + " is of no branch that gpumux is known to interrupt (580, 590, 595)";
}

}  // namespace gpumux::daemon
