// SPDX-License-Identifier: Apache-2.0
// A device plugin: answers the kubelet's calls on a socket in the kubelet's folder, and registers itself.
//
// The rule: the plugin is registered while two files are the same as before. They are its own socket, and the kubelet's
// socket at which it registered. If one of them is another file, the plugin begins anew. The reason: the kubelet
// empties the folder whenever it starts, and knows no plugin then. A plugin that does not notice has no devices on this
// node until it is started again itself.
//
// Threads: run() has its caller's. The kubelet's calls, and with them `give`, come on threads of gRPC. set_gpus(),
// set_seats() and stop() may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kubernetes/device_plugin/answers.h"

namespace gpumux::kubernetes {

struct DevicePluginSettings {
  std::string folder = "/var/lib/kubelet/device-plugins";
  std::string socket = "gpumux.sock";  // its name in the folder
  std::string resource = "gpumux.io/gpu";
  std::uint32_t shares_per_gpu = 10;
  Placement placement = Placement::kSpread;
  SameGpu same_gpu = SameGpu::kRefuse;
};

class DevicePlugin {
 public:
  // The answer for a container with these GPUs (given_by_cdi(), given_by_environment()). An error fails the pod, and
  // its message is for the pod's author.
  using Give = std::function<base::Result<v1beta1::ContainerAllocateResponse>(const ContainerGpus& gpus)>;
  // A sentence for the log of the plugin's process, from run()'s thread.
  using Report = std::function<void(const std::string& sentence)>;

  DevicePlugin(DevicePluginSettings settings, Give give, Report report);
  ~DevicePlugin();
  DevicePlugin(const DevicePlugin&) = delete;
  DevicePlugin& operator=(const DevicePlugin&) = delete;

  // Serves until stop(). The plugin reports each failure, once as long as it stays the same, and tries again. An error:
  // it cannot even begin.
  base::Status run();
  void stop();

  // The kubelet gets the new list at once.
  void set_gpus(std::vector<SharedGpu> gpus);
  void set_seats(Seats seats);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

// Whether a plugin with these settings answers calls. kUnavailable: it does not.
base::Status ask_device_plugin(const DevicePluginSettings& settings);

}  // namespace gpumux::kubernetes
