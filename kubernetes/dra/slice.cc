// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/slice.h"

#include <algorithm>
#include <cctype>

#include "kubernetes/dra/quantity.h"

namespace gpumux::kubernetes {
namespace {

using nlohmann::json;

// Capacities are whole multiples of it.
constexpr std::uint64_t kMemoryStep = 1 << 20;
// Of a name by RFC 1123, as Kubernetes wants it.
constexpr std::uint64_t kMostLabel = 63;
// Of an attribute's text.
constexpr std::size_t kMostText = 64;

// The API wants semantic versions: three numbers without leading zeros. "580.159.04" becomes "580.159.4". Empty: it is
// no version.
std::string semantic(const std::string& version) {
  std::string made;
  std::size_t at = 0;
  for (int part = 0; part < 3; ++part) {
    std::string number;
    while (at < version.size() && std::isdigit(static_cast<unsigned char>(version[at])) != 0) number += version[at++];
    if (part == 0 && number.empty()) return {};
    number.erase(0, std::min(number.find_first_not_of('0'), number.size()));
    made += (part == 0 ? "" : ".") + (number.empty() ? "0" : number);
    if (at < version.size() && version[at] == '.') ++at;
  }
  return at == version.size() ? made : std::string();
}

void add_text(json& attributes, const char* name, const std::string& text) {
  if (!text.empty()) attributes[name] = {{"string", text.substr(0, kMostText)}};
}

void add_version(json& attributes, const char* name, const std::string& version) {
  if (const std::string made = semantic(version); !made.empty()) attributes[name] = {{"version", made}};
}

json attributes_of(const DraGpu& gpu) {
  json attributes{{"type", {{"string", gpu.id.starts_with("MIG-") ? "mig" : "gpu"}}}};
  add_text(attributes, "uuid", gpu.id);
  add_text(attributes, "productName", gpu.product);
  add_text(attributes, "architecture", gpu.architecture);
  add_version(attributes, "cudaComputeCapability", gpu.compute_capability);
  add_version(attributes, "driverVersion", gpu.driver_version);
  add_version(attributes, "cudaDriverVersion", gpu.cuda_version);
  // Names that other drivers have, too: a claim can ask for devices that are near to each other.
  add_text(attributes, "resource.kubernetes.io/pciBusID", gpu.pci_bus_id);
  add_text(attributes, "resource.kubernetes.io/pcieRoot", gpu.pcie_root);
  return attributes;
}

json capacity_of(std::uint64_t whole, std::uint64_t step, std::uint64_t wanted) {
  const std::uint64_t usual = std::max(step, wanted / step * step);
  return {{"value", format_quantity(whole)},
          {"requestPolicy",
           {{"default", format_quantity(usual)},
            {"validRange",
             {{"min", format_quantity(step)}, {"max", format_quantity(whole)}, {"step", format_quantity(step)}}}}}};
}

bool is_label(const std::string& name) {
  const auto is_inside = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !name.empty() && name.size() <= kMostLabel && std::all_of(name.begin(), name.end(), is_inside) &&
         name.front() != '-' && name.back() != '-';
}

std::string slice_name(const std::string& node, std::size_t number) {
  return node + "-" + kDraDriver + (number == 0 ? "" : "-" + std::to_string(number + 1));
}

}  // namespace

std::string device_name_of(const std::string& gpu_id) {
  std::string name = gpu_id;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

base::Result<json> slice_devices(const std::vector<DraGpu>& gpus, const SliceSettings& settings,
                                 const std::string& version) {
  json devices = json::array();
  for (const DraGpu& gpu : gpus) {
    const std::string name = device_name_of(gpu.id);
    if (!is_label(name)) return base::fail(base::Code::kInvalid, "'" + gpu.id + "' cannot be the name of a device");
    const std::uint64_t memory = gpu.memory_bytes / kMemoryStep * settings.memory_percent / 100 * kMemoryStep;
    if (memory == 0)
      return base::fail(base::Code::kInvalid, "the daemon does not say how much memory " + gpu.id + " has");
    json device{{"attributes", attributes_of(gpu)},
                {"allowMultipleAllocations", true},
                {"capacity",
                 {{"memory", capacity_of(memory, kMemoryStep, memory / settings.shares)},
                  {"cores", capacity_of(kAllCores, 1, kAllCores / settings.shares)}}}};
    if (!gpu.sick.empty()) device["taints"] = {{{"key", std::string(kDraDriver) + "/sick"}, {"effect", "NoSchedule"}}};
    if (version == "v1beta1") device = {{"basic", device}};
    device["name"] = name;
    devices.push_back(std::move(device));
  }
  return devices;
}

std::vector<json> resource_slices(const json& devices, const SliceSettings& settings, const std::string& version,
                                  std::int64_t generation, const std::string& node_uid) {
  const std::size_t count = std::max<std::size_t>(1, (devices.size() + kMostDevices - 1) / kMostDevices);
  std::vector<json> slices;
  for (std::size_t number = 0; number < count; ++number) {
    const std::size_t first = number * kMostDevices;
    const std::size_t last = std::min(devices.size(), first + kMostDevices);
    json metadata{{"name", slice_name(settings.node, number)}};
    // As the drivers of Kubernetes' own library have it.
    if (!node_uid.empty())
      metadata["ownerReferences"] = {
          {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", settings.node}, {"uid", node_uid}, {"controller", true}}};
    slices.push_back({{"apiVersion", "resource.k8s.io/" + version},
                      {"kind", "ResourceSlice"},
                      {"metadata", std::move(metadata)},
                      {"spec",
                       {{"driver", kDraDriver},
                        {"nodeName", settings.node},
                        {"pool", {{"name", settings.node}, {"generation", generation}, {"resourceSliceCount", count}}},
                        {"devices", json::array_t(devices.begin() + static_cast<std::ptrdiff_t>(first),
                                                  devices.begin() + static_cast<std::ptrdiff_t>(last))}}}});
  }
  return slices;
}

}  // namespace gpumux::kubernetes
