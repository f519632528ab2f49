// SPDX-License-Identifier: Apache-2.0
// How NVIDIA's driver gets into this node's containers: what its container toolkit has installed here.
//
// Plain functions; any thread.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kubernetes/device_plugin/answers.h"
#include "settings/structs.gen.h"

namespace gpumux::kubernetes {

// Names of the devices of a CDI specification (JSON or YAML) whose kind is nvidia.com/gpu; empty for any other text.
std::set<std::string> nvidia_devices(std::string_view specification);

struct NvidiaPlaces {
  std::vector<std::string> specifications;  // folders
  std::vector<std::string> runtimes;        // paths of nvidia-container-runtime
};

// `cdi_folder`: where specifications that do not last are.
NvidiaPlaces usual_places(const std::string& cdi_folder);

// The way for a container with these GPUs.
DriverSource driver_source(const settings::KubeletSettings& settings, bool is_simulated, const NvidiaPlaces& places,
                           const ContainerGpus& gpus);

}  // namespace gpumux::kubernetes
