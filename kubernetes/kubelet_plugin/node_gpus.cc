// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/node_gpus.h"

#include <algorithm>
#include <fstream>
#include <utility>

namespace gpumux::kubernetes {

NodeGpusTracker::NodeGpusTracker(std::set<std::string> whole, NumaNode numa_node, Report report)
    : whole_(std::move(whole)), numa_node_(std::move(numa_node)), report_(std::move(report)) {}

const NodeGpus& NodeGpusTracker::update(const base::Result<api_client::Snapshot>& said, bool is_simulated) {
  if (said) {
    if (daemon_ == Daemon::kSilent) report_(LogLevel::kInfo, "the daemon answers again");
    daemon_ = Daemon::kAnswers;
    gpus_.is_simulated = is_simulated;
    take(*said);
    return gpus_;
  }
  if (daemon_ != Daemon::kSilent) {
    report_(LogLevel::kWarning, "the daemon does not answer, so no GPU is healthy: " + said.error().message());
    daemon_ = Daemon::kSilent;
  }
  for (auto* list : {&gpus_.shared, &gpus_.whole}) {
    for (SharedGpu& gpu : *list) gpu.is_healthy = false;
  }
  gpus_.seats.clear();
  return gpus_;
}

void NodeGpusTracker::take(const api_client::Snapshot& snapshot) {
  gpus_.shared.clear();
  gpus_.whole.clear();
  gpus_.seats.clear();
  for (const api_client::Gpu& gpu : snapshot.gpus) {
    const std::string& why = gpu.refused.empty() ? gpu.sick : gpu.refused;
    report_health(gpu.uuid, why);
    auto& list = whole_.count(gpu.uuid) != 0 ? gpus_.whole : gpus_.shared;
    list.push_back({gpu.uuid, why.empty(), numa_node_(gpu.pci_bus_id)});
    gpus_.seats[gpu.uuid] = static_cast<std::uint32_t>(gpu.seats.size());
  }
  std::set<std::string> missing = whole_;
  for (const SharedGpu& gpu : gpus_.whole) missing.erase(gpu.id);
  for (const std::string& gpu : missing) {
    if (missing_.count(gpu) == 0)
      report_(LogLevel::kWarning, "--whole " + gpu + ": the daemon serves no such GPU; see gpumux status");
  }
  missing_ = std::move(missing);
}

void NodeGpusTracker::report_health(const std::string& gpu, const std::string& why) {
  std::string& known = sick_[gpu];
  if (known == why) return;
  known = why;
  if (why.empty()) {
    report_(LogLevel::kInfo, gpu + " is healthy again");
  } else {
    report_(LogLevel::kWarning, gpu + " is not healthy: " + why);
  }
}

std::optional<std::int64_t> numa_node_of(const std::string& pci_bus_id) {
  std::ifstream file("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  std::int64_t node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace gpumux::kubernetes
