// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/device_plugin_api.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kubernetes/device_plugin/plugin.h"
#include "kubernetes/kubelet_plugin/daemon.h"
#include "kubernetes/kubelet_plugin/giver.h"
#include "kubernetes/kubelet_plugin/log.h"
#include "kubernetes/kubelet_plugin/node_gpus.h"

namespace gpumux::kubernetes {
namespace {

constexpr char kSharesSocket[] = "gpumux.sock";
constexpr char kWholeSocket[] = "gpumux-whole.sock";

// How often the daemon is asked. The kubelet learns of a sick GPU or a dead daemon this late.
constexpr timespec kAskEvery{1, 0};

std::set<std::string> names_of(const std::optional<std::string>& list) {
  std::set<std::string> names;
  std::string_view rest = list ? std::string_view(*list) : std::string_view();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    if (end > 0) names.emplace(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return names;
}

// A plugin and the thread in which it runs.
class Running {
 public:
  Running(DevicePluginSettings settings, Giver& giver)
      : plugin_(
            std::move(settings), [&giver](const ContainerGpus& gpus) { return giver.give(gpus); },
            [](const std::string& sentence) { log(LogLevel::kInfo, sentence); }) {}
  ~Running() { stop(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // Tells the kubelet of changes only.
  void set_gpus(const std::vector<SharedGpu>& gpus) {
    if (gpus == gpus_) return;
    gpus_ = gpus;
    plugin_.set_gpus(gpus);
  }
  void set_seats(const Seats& seats) { plugin_.set_seats(seats); }

  // After the first set_gpus(): the kubelet's first list has the GPUs.
  void start() {
    if (thread_.joinable()) return;
    thread_ = std::thread([this] {
      result_ = plugin_.run();
      if (!result_) ::kill(::getpid(), SIGTERM);
    });
  }
  base::Status stop() {
    if (thread_.joinable()) {
      plugin_.stop();
      thread_.join();
    }
    return result_;
  }

 private:
  DevicePlugin plugin_;
  std::vector<SharedGpu> gpus_;
  base::Status result_;
  std::thread thread_;
};

DevicePluginSettings shares_settings(const settings::KubeletSettings& settings) {
  DevicePluginSettings made;
  made.folder = settings.device_plugins;
  made.socket = kSharesSocket;
  made.resource = settings.resource;
  made.shares_per_gpu = settings.shares;
  made.placement = settings.placement == settings::Placement::kSpread ? Placement::kSpread : Placement::kPacked;
  made.same_gpu = settings.same_gpu == settings::SameGpu::kRefuse ? SameGpu::kRefuse : SameGpu::kAllow;
  return made;
}

// A whole GPU is a GPU with one share.
DevicePluginSettings whole_settings(const settings::KubeletSettings& settings) {
  DevicePluginSettings made = shares_settings(settings);
  made.socket = kWholeSocket;
  made.resource = settings.whole_resource;
  made.shares_per_gpu = 1;
  return made;
}

}  // namespace

base::Status serve_device_plugin(const PluginOptions& options, const sigset_t& signals) {
  Giver giver(options.settings, options.runtime_dir);
  const std::set<std::string> whole_names = names_of(options.settings.whole);
  Running shares(shares_settings(options.settings), giver);
  std::optional<Running> whole;
  if (!whole_names.empty()) whole.emplace(whole_settings(options.settings), giver);

  NodeGpusTracker tracker(whole_names, numa_node_of, log);
  std::string last_failure;
  do {
    const DaemonSays said = ask_daemon(options.runtime_dir);
    const NodeGpus& gpus = tracker.update(said.snapshot, said.driver.simulated);
    if (said.snapshot) {
      const base::Status prepared = giver.prepare(said.driver.simulated);
      const std::string failure = prepared ? "" : prepared.error().message();
      if (!prepared && failure != last_failure) log(LogLevel::kError, "no container can be given a GPU: " + failure);
      last_failure = failure;
    }
    shares.set_seats(gpus.seats);
    shares.set_gpus(gpus.shared);
    shares.start();
    if (whole) {
      whole->set_gpus(gpus.whole);
      whole->start();
    }
  } while (::sigtimedwait(&signals, nullptr, &kAskEvery) <= 0);
  log(LogLevel::kInfo, "stopping");
  if (whole) GPUMUX_TRY(whole->stop());
  return shares.stop();
}

base::Status check_device_plugin(const PluginOptions& options) {
  GPUMUX_TRY(ask_device_plugin(shares_settings(options.settings)));
  if (!names_of(options.settings.whole).empty()) GPUMUX_TRY(ask_device_plugin(whole_settings(options.settings)));
  return {};
}

}  // namespace gpumux::kubernetes
