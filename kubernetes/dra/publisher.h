// SPDX-License-Identifier: Apache-2.0
// Keeps the node's ResourceSlices at the API server.
//
// The rule: the slices of ours that the API server has for this node are those that were written last. Otherwise all
// are written, in a new generation, and others of ours are removed. The publisher looks every kLookEvery, and at once
// when the GPUs change. So a slice that vanishes comes back: the kubelet deletes a node's slices whenever it starts.
// The publisher compares resource versions, not contents, of slices, for servers drop fields that they do not know.
//
// The slices' owner is the Node. Kubernetes removes them when it removes the Node. The Node's uid is read with each
// write, for a Node that comes back has another one.
//
// Threads: run() has its caller's. set_gpus() and stop() may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/api_server/client.h"
#include "kubernetes/dra/slice.h"

namespace gpumux::kubernetes {

// The version of resource.k8s.io that we speak with this server: the newest one that both know. kUnsupported: none.
base::Result<std::string> find_resource_version(ApiServer& server);

class SlicePublisher {
 public:
  // How long a slice may be gone. A look is one call, answered from the server's memory.
  static constexpr auto kLookEvery = std::chrono::seconds(5);
  // How long after a failure.
  static constexpr auto kRetryEvery = std::chrono::seconds(1);

  using Report = std::function<void(const std::string& sentence)>;

  SlicePublisher(ApiServerSettings server, SliceSettings settings, Report report);

  // Before the first call nothing is published.
  void set_gpus(std::vector<DraGpu> gpus);

  // Until stop(). A failed look is reported, once as long as its error stays the same, and tried again.
  void run();
  void stop();

  // One look. For tests, and run().
  base::Status look(const std::vector<DraGpu>& gpus);

 private:
  using Versions = std::map<std::string, std::string>;  // of slices, by name
  struct Written {
    Versions versions;
    nlohmann::json devices;
  };
  // `found`: the slices of ours that are there.
  base::Status write(const std::string& path, Versions found, const nlohmann::json& devices, std::int64_t generation);
  // Empty: the server does not tell.
  base::Result<std::string> node_uid();

  ApiServer server_;
  const SliceSettings settings_;
  const Report report_;
  std::string version_;             // of the API; empty: not known yet
  std::optional<Written> written_;  // by this publisher
  std::string no_owner_;            // why the slices have no owner, as it was reported; empty: they have one
  std::mutex mutex_;
  std::condition_variable changed_;
  // From here on guarded by mutex_.
  std::optional<std::vector<DraGpu>> gpus_;
  bool is_new_ = false;
  bool is_stopped_ = false;
};

}  // namespace gpumux::kubernetes
