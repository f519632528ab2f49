// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/nvidia.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace gpumux::kubernetes {
namespace {

constexpr char kKind[] = "nvidia.com/gpu";

// NVIDIA's specification of a node with 16 GPUs has some 100 KiB. A longer file is none.
constexpr std::size_t kMaxSpecificationBytes = 4 << 20;

// The values of a key of JSON or of YAML, in each place where it stands, quoted or not. Both have `key: value`.
std::vector<std::string_view> values_of(std::string_view text, std::string_view key) {
  constexpr std::string_view kSpace = " \t";
  constexpr std::string_view kEnd = "\"',}]\r\n \t";
  std::vector<std::string_view> values;
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    // A longer word that ends or begins with the key is another key.
    if (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0 || text[at - 1] == '.')) continue;
    std::string_view rest = text.substr(at + key.size());
    if (rest.starts_with('"') || rest.starts_with('\'')) rest.remove_prefix(1);
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
    if (!rest.starts_with(':')) continue;
    rest.remove_prefix(1);
    rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
    if (rest.starts_with('"') || rest.starts_with('\'')) rest.remove_prefix(1);
    values.push_back(rest.substr(0, std::min(rest.find_first_of(kEnd), rest.size())));
  }
  return values;
}

std::set<std::string> devices_in(const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  std::set<std::string> devices;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const fs::path extension = entry->path().extension();
      if (extension != ".json" && extension != ".yaml") continue;
      const auto size = entry->file_size(error);
      if (error || size > kMaxSpecificationBytes) continue;
      std::ifstream file(entry->path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      devices.merge(nvidia_devices(text));
    }
  }
  return devices;
}

}  // namespace

std::set<std::string> nvidia_devices(std::string_view specification) {
  const auto kinds = values_of(specification, "kind");
  if (std::find(kinds.begin(), kinds.end(), kKind) == kinds.end()) return {};
  const auto names = values_of(specification, "name");
  return {names.begin(), names.end()};
}

NvidiaPlaces usual_places(const std::string& cdi_folder) {
  return {{"/etc/cdi", cdi_folder},
          {"/usr/bin/nvidia-container-runtime", "/usr/local/nvidia/toolkit/nvidia-container-runtime"}};
}

DriverSource driver_source(const settings::KubeletSettings& settings, bool is_simulated, const NvidiaPlaces& places,
                           const ContainerGpus& gpus) {
  if (is_simulated) return DriverSource::kSimulated;
  switch (settings.nvidia) {
    case settings::Nvidia::kCdi: return DriverSource::kCdi;
    case settings::Nvidia::kEnv: return DriverSource::kVariable;
    case settings::Nvidia::kAuto: break;
  }
  if (settings.inject == settings::Inject::kCdi) {
    const std::set<std::string> known = devices_in(places.specifications);
    if (std::all_of(gpus.begin(), gpus.end(), [&](const auto& gpu) { return known.count(gpu.first) != 0; }))
      return DriverSource::kCdi;
  }
  if (std::any_of(places.runtimes.begin(), places.runtimes.end(),
                  [](const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }))
    return DriverSource::kVariable;
  return DriverSource::kNone;
}

}  // namespace gpumux::kubernetes
