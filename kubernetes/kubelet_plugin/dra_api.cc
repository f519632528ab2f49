// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/dra_api.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/version.h"
#include "kubernetes/api_server/client.h"
#include "kubernetes/device_plugin/answers.h"
#include "kubernetes/dra/claims.h"
#include "kubernetes/dra/driver.h"
#include "kubernetes/dra/publisher.h"
#include "kubernetes/kubelet_plugin/daemon.h"
#include "kubernetes/kubelet_plugin/log.h"
#include "kubernetes/kubelet_plugin/node_gpus.h"
#include "kubernetes/kubelet_plugin/nvidia.h"

namespace gpumux::kubernetes {
namespace {

// How often the daemon is asked. The scheduler learns of a sick GPU or a dead daemon this late.
constexpr timespec kAskForClaimsEvery{1, 0};

// How long the preparation of a claim waits for a daemon that does not answer. A daemon that starts again takes two
// seconds, and the kubelet tries a failed claim again only after 60 s or more. It gives up a call after 45 s.
constexpr auto kDaemonPatience = std::chrono::seconds(10);

void report(const std::string& sentence) { log(LogLevel::kInfo, sentence); }

// "pci0000:00", from /sys.
std::string pcie_root_of(const std::string& pci_bus_id) {
  std::error_code failed;
  const auto device = std::filesystem::canonical("/sys/bus/pci/devices/" + pci_bus_id, failed);
  if (failed || pci_bus_id.empty()) return {};
  const auto root =
      std::find_if(device.begin(), device.end(), [](const auto& part) { return part.string().starts_with("pci"); });
  return root == device.end() ? std::string() : root->string();
}

// This node's GPUs, as the daemon says, for the slices, the kubelet and the claims.
class DraGpus {
 public:
  // While the daemon does not answer, the GPUs are those that it named last, and all of them are sick.
  void update(const DaemonSays& said) {
    const std::lock_guard lock(mutex_);
    daemon_answers_ = said.snapshot.has_value();
    changed_.notify_all();
    if (!said.snapshot) {
      for (DraGpu& gpu : gpus_) gpu.sick = "the daemon of gpumux does not answer";
      return;
    }
    gpus_.clear();
    is_simulated_ = said.driver.simulated;
    for (const api_client::Gpu& gpu : said.snapshot->gpus) {
      gpus_.push_back({gpu.uuid, gpu.name, gpu.pci_bus_id, pcie_root_of(gpu.pci_bus_id), said.driver.nvml_version,
                       said.driver.version, gpu.memory_total_bytes, gpu.refused.empty() ? gpu.sick : gpu.refused,
                       gpu.architecture, gpu.compute_capability});
    }
  }

  std::vector<DraGpu> gpus() const {
    const std::lock_guard lock(mutex_);
    return gpus_;
  }
  bool is_simulated() const {
    const std::lock_guard lock(mutex_);
    return is_simulated_;
  }

  // A container that starts without a daemon would have its GPUs without gpumux.
  base::Status wait_for_daemon() const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kDaemonPatience, [this] { return daemon_answers_ || has_ended_; });
    if (daemon_answers_) return {};
    return base::fail(base::Code::kUnavailable,
                      "the daemon of gpumux does not answer on this node, so no container gets a GPU of it");
  }

  // No call waits from now on.
  void end() {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

  // The id of a device's GPU. A sick one is given, too: only a pod that tolerates its taint comes here.
  base::Result<std::string> gpu_of(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    for (const DraGpu& gpu : gpus_) {
      if (device_name_of(gpu.id) == device) return gpu.id;
    }
    return base::fail(base::Code::kUnavailable,
                      "the daemon of gpumux serves no " + device + " on this node now; see gpumux status there");
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<DraGpu> gpus_;  // from here on guarded by mutex_
  bool is_simulated_ = false;
  bool daemon_answers_ = false;
  bool has_ended_ = false;
};

// Gives a claim's containers their injection and CDI devices. The names of GPUs and the way to NVIDIA's driver are as
// by the other API; its variables go into our specification.
base::Result<Claims::Given> give(const Grant& grant, const PluginOptions& options, const DraGpus& gpus) {
  GPUMUX_TRY(gpus.wait_for_daemon());
  const bool is_simulated = gpus.is_simulated();
  ContainerGpus wanted;
  std::vector<std::string> ids;
  for (const GrantedShare& share : grant.shares) {
    auto gpu = gpus.gpu_of(share.device);
    if (!gpu) return tl::unexpected(gpu.error());
    ids.push_back(*gpu);
    if (std::none_of(wanted.begin(), wanted.end(), [&](const auto& known) { return known.first == *gpu; }))
      wanted.emplace_back(std::move(*gpu), 1);
  }
  const DriverSource source =
      driver_source(options.settings, is_simulated, usual_places(options.settings.cdi_folder), wanted);
  const auto driver = given_by_cdi(wanted, {}, source);
  if (!driver) return tl::unexpected(driver.error());

  std::vector<Variable> variables = variables_of(grant);
  for (const auto& [name, value] : driver->envs()) variables.push_back({name, value});
  Node node{options.settings.libraries, base::version(), options.runtime_dir, std::nullopt};
  if (is_simulated) node.simulated = SimulatedDriver{options.settings.sim_libraries, options.settings.sim_dir};
  containers::Claim claim{grant.uid};
  claim.priority = grant.priority;
  for (const auto& [device, bytes] : memory_of(grant)) {
    auto gpu = gpus.gpu_of(device);
    if (!gpu) return tl::unexpected(gpu.error());
    claim.quotas.push_back({std::move(*gpu), bytes});
  }
  for (const auto& [device, cores] : cores_of(grant)) {
    auto gpu = gpus.gpu_of(device);
    if (!gpu) return tl::unexpected(gpu.error());
    claim.shares.push_back({std::move(*gpu), cores});
  }
  auto injection = make_injection(node, std::move(variables), std::move(claim));
  if (!injection) return tl::unexpected(injection.error());

  Claims::Given given{std::move(*injection), {}};
  for (const std::string& id : ids) {
    given.cdi_devices.emplace_back();
    if (source == DriverSource::kCdi) given.cdi_devices.back().push_back("nvidia.com/gpu=" + id);
  }
  return given;
}

// Where claims are. The version of the API is looked for once.
class ClaimSource {
 public:
  explicit ClaimSource(ApiServerSettings server) : server_(std::move(server)) {}

  base::Result<std::string> fetch(const ClaimName& claim) {
    std::string version;
    {
      const std::lock_guard lock(mutex_);
      if (version_.empty()) {
        auto found = find_resource_version(server_);
        if (!found) return tl::unexpected(found.error());
        version_ = std::move(*found);
      }
      version = version_;
    }
    return server_.get("/apis/resource.k8s.io/" + version + "/namespaces/" + claim.name_space + "/resourceclaims/" +
                       claim.name);
  }

 private:
  ApiServer server_;
  std::mutex mutex_;
  std::string version_;  // guarded by mutex_; empty: not known yet
};

// Threads that run until the driver and the publisher are told to stop. If one of them cannot be made, the others end
// before the error goes on.
class Workers {
 public:
  Workers(Driver& driver, SlicePublisher& publisher) : driver_(driver), publisher_(publisher) {}
  ~Workers() {
    driver_.stop();
    publisher_.stop();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  bool have_started() const { return !threads_.empty(); }
  void start(Claims& claims) {
    threads_.emplace_back([this] { static_cast<void>(driver_.run()); });
    threads_.emplace_back([this] { publisher_.run(); });
    threads_.emplace_back([&claims] { claims.remove_gone(); });
  }

 private:
  Driver& driver_;
  SlicePublisher& publisher_;
  std::vector<std::thread> threads_;
};

DriverSettings driver_settings(const PluginOptions& options) {
  return {options.settings.kubelet, options.settings.node.value_or("")};
}

}  // namespace

base::Status serve_dra(const PluginOptions& options, const sigset_t& signals) {
  ApiServerSettings server;
  server.address = options.api_address;
  server.port = options.api_port;
  server.token_file = options.settings.service_account + "/token";
  server.authorities_file = options.settings.service_account + "/ca.crt";
  const DriverSettings at = driver_settings(options);

  DraGpus gpus;
  ClaimSource source(server);
  auto claims = Claims::open(
      {at.claims_folder(), options.settings.cdi_folder, options.settings.hook, at.pool},
      [&](const ClaimName& claim) { return source.fetch(claim); },
      [&](const Grant& grant) { return give(grant, options, gpus); }, report);
  if (!claims) return tl::unexpected(claims.error());
  SlicePublisher publisher(server, {at.pool, options.settings.memory_percent, options.settings.shares}, report);
  Driver driver(at, **claims, report);

  NodeGpusTracker changes({}, numa_node_of, log);
  Workers workers(driver, publisher);
  do {
    const DaemonSays said = ask_daemon(options.runtime_dir);
    changes.update(said.snapshot, said.driver.simulated);
    gpus.update(said);
    const std::vector<DraGpu> now = gpus.gpus();
    std::vector<DeviceState> states;
    for (const DraGpu& gpu : now) states.push_back({device_name_of(gpu.id), gpu.sick});
    driver.set_health(std::move(states));
    // The scheduler places pods where slices are. The kubelet fails a pod there whose driver it does not know yet, and
    // tries it again a minute later. A daemon that has never answered has no GPUs to say anything of.
    if (driver.is_registered() && (said.snapshot || !now.empty())) publisher.set_gpus(now);
    if (!workers.have_started()) workers.start(**claims);
  } while (::sigtimedwait(&signals, nullptr, &kAskForClaimsEvery) <= 0);
  log(LogLevel::kInfo, "stopping");
  gpus.end();
  return {};
}

base::Status check_dra(const PluginOptions& options) { return ask_driver(driver_settings(options)); }

}  // namespace gpumux::kubernetes
