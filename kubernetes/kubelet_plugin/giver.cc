// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/giver.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/version.h"
#include "kubernetes/cdi/specification.h"

namespace gpumux::kubernetes {
namespace {

const Owner kNode{Owner::Kind::kContainer, "node"};

}  // namespace

Giver::Giver(settings::KubeletSettings settings, std::string runtime_dir)
    : settings_(std::move(settings)),
      runtime_dir_(std::move(runtime_dir)),
      places_(usual_places(settings_.cdi_folder)) {}

base::Status Giver::prepare(bool is_simulated) {
  is_simulated_ = is_simulated;
  if (settings_.inject == settings::Inject::kEnv) return {};
  const auto made = injection();
  if (!made) return tl::unexpected(made.error());
  const auto device = write(*made);
  if (!device) return tl::unexpected(device.error());
  return {};
}

base::Result<v1beta1::ContainerAllocateResponse> Giver::give(const ContainerGpus& gpus) {
  const auto made = injection();
  if (!made) return tl::unexpected(made.error());
  const DriverSource source = driver_source(settings_, is_simulated_, places_, gpus);
  if (settings_.inject == settings::Inject::kEnv) return given_by_environment(gpus, *made, source);
  const auto device = write(*made);
  if (!device) return tl::unexpected(device.error());
  return given_by_cdi(gpus, *device, source);
}

base::Result<Injection> Giver::injection() const {
  Node node{settings_.libraries, base::version(), runtime_dir_, std::nullopt};
  if (is_simulated_) node.simulated = SimulatedDriver{settings_.sim_libraries, settings_.sim_dir};
  return make_injection(node);
}

// The device's name, once its specification is there. A file that is there as it was written last stays.
base::Result<std::string> Giver::write(const Injection& injection) {
  const auto text = specification(kNode, injection, settings_.hook);
  if (!text) return tl::unexpected(text.error());
  const std::lock_guard lock(mutex_);
  auto folder = SpecificationFolder::open(settings_.cdi_folder);
  if (!folder) return tl::unexpected(folder.error());
  const auto owners = folder->owners();
  if (!owners) return tl::unexpected(owners.error());
  if (*text == written_ && std::find(owners->begin(), owners->end(), kNode) != owners->end()) return device_name(kNode);
  auto device = folder->write(kNode, injection, settings_.hook);
  if (device) written_ = *text;
  return device;
}

}  // namespace gpumux::kubernetes
