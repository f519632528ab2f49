// SPDX-License-Identifier: Apache-2.0
// This node's GPUs, as the daemon says.
//
// The daemon knows which GPUs it serves, their health and their tenants. So the plugin needs no NVML, and a GPU that
// the daemon does not serve gets no pods. While the daemon does not answer, the GPUs are those that it named last, and
// none of them is healthy.
//
// One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api_client/types.h"
#include "base/result.h"
#include "kubernetes/device_plugin/answers.h"
#include "kubernetes/kubelet_plugin/log.h"

namespace gpumux::kubernetes {

struct NodeGpus {
  std::vector<SharedGpu> shared;
  std::vector<SharedGpu> whole;  // served whole
  Seats seats;
  bool is_simulated = false;
};

class NodeGpusTracker {
 public:
  using Report = std::function<void(LogLevel level, const std::string& sentence)>;
  // Of a GPU with this PCI address; none: the system does not say.
  using NumaNode = std::function<std::optional<std::int64_t>(const std::string& pci_bus_id)>;

  // `whole`: UUIDs of GPUs that are served whole.
  NodeGpusTracker(std::set<std::string> whole, NumaNode numa_node, Report report);

  // `said`: the daemon's answer now, or why there is none. Each change is reported once.
  const NodeGpus& update(const base::Result<api_client::Snapshot>& said, bool is_simulated);

 private:
  void take(const api_client::Snapshot& snapshot);
  void report_health(const std::string& gpu, const std::string& why);

  const std::set<std::string> whole_;
  const NumaNode numa_node_;
  const Report report_;
  NodeGpus gpus_;
  std::map<std::string, std::string> sick_;  // why
  std::set<std::string> missing_;            // of whole_, and reported
  enum class Daemon { kUnknown, kAnswers, kSilent } daemon_ = Daemon::kUnknown;
};

// From /sys.
std::optional<std::int64_t> numa_node_of(const std::string& pci_bus_id);

}  // namespace gpumux::kubernetes
