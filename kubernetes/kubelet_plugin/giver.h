// SPDX-License-Identifier: Apache-2.0
// The answer for a container of this node, and the node's one CDI specification.
//
// The specification names no GPU, so all containers have the same. A GPU is named by NVIDIA's device or by a variable.
//
// Any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "base/result.h"
#include "kubernetes/cdi/injection.h"
#include "kubernetes/device_plugin/answers.h"
#include "kubernetes/kubelet_plugin/nvidia.h"
#include "settings/structs.gen.h"

namespace gpumux::kubernetes {

class Giver {
 public:
  Giver(settings::KubeletSettings settings, std::string runtime_dir);

  // Writes the specification, if the file differs from it. Containers that start again need it, too. `is_simulated`:
  // the daemon's GPUs are, from now on.
  base::Status prepare(bool is_simulated);

  // Errors are for the pod's author.
  base::Result<v1beta1::ContainerAllocateResponse> give(const ContainerGpus& gpus);

 private:
  base::Result<Injection> injection() const;
  base::Result<std::string> write(const Injection& injection);

  const settings::KubeletSettings settings_;
  const std::string runtime_dir_;
  const NvidiaPlaces places_;
  std::atomic<bool> is_simulated_ = false;
  std::mutex mutex_;     // one writer of the folder at a time
  std::string written_;  // guarded by mutex_
};

}  // namespace gpumux::kubernetes
