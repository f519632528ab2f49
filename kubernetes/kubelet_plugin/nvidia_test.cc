// SPDX-License-Identifier: Apache-2.0
// How NVIDIA's driver gets into containers is found from what its toolkit has installed.
#include "kubernetes/kubelet_plugin/nvidia.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

using Names = std::set<std::string>;

// As nvidia-ctk writes it.
constexpr char kYaml[] = R"(---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-a
kind: nvidia.com/gpu
)";

constexpr char kJson[] =
    R"({"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-a"},{"name": "GPU-b"}]})";

TEST(NvidiaDevicesTest, AreReadFromBothFormats) {
  const Names yaml = nvidia_devices(kYaml);
  EXPECT_EQ(yaml, (Names{"0", "GPU-a"}));
  EXPECT_EQ(nvidia_devices(kJson), (Names{"GPU-a", "GPU-b"}));
}

TEST(NvidiaDevicesTest, AreOfNoOtherKind) {
  EXPECT_TRUE(
      nvidia_devices(R"({"kind": "k8s.device-plugin.nvidia.com/gpu", "devices": [{"name": "GPU-a"}]})").empty());
  EXPECT_TRUE(nvidia_devices("kind: nvidia.com/gpu-imex\nname: GPU-a\n").empty());
  EXPECT_TRUE(nvidia_devices("# nvidia.com/gpu\nname: GPU-a\n").empty());
  for (const char* broken : {"", "kind", "kind:", "kind: ", "\"kind\"", "kind: \""})
    EXPECT_TRUE(nvidia_devices(broken).empty()) << broken;
}

class DriverSourceTest : public ::testing::Test {
 protected:
  DriverSource source(const ContainerGpus& gpus, bool is_simulated = false) {
    return driver_source(settings_, is_simulated, places_, gpus);
  }

  TemporaryDirectory temporary_;
  settings::KubeletSettings settings_;
  const NvidiaPlaces places_{{temporary_.path(), "/there/is/none"}, {temporary_.file("runtime")}};
};

TEST_F(DriverSourceTest, FollowsWhatIsThere) {
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kNone);
  std::ofstream(temporary_.file("runtime")) << "#!";
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kNone) << "it cannot be executed";
  ASSERT_EQ(::chmod(temporary_.file("runtime").c_str(), 0755), 0);
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kVariable);
  std::ofstream(temporary_.file("nvidia.yaml")) << kYaml;
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kCdi);
  EXPECT_EQ(source({{"GPU-a", 1}, {"GPU-b", 1}}), DriverSource::kVariable) << "one of them has no name there";
  std::ofstream(temporary_.file("more.json")) << kJson;
  EXPECT_EQ(source({{"GPU-a", 1}, {"GPU-b", 1}}), DriverSource::kCdi);
  EXPECT_EQ(source({{"GPU-a", 1}}, true), DriverSource::kSimulated);
}

TEST_F(DriverSourceTest, NamesNoDeviceToARuntimeWithoutCdi) {
  std::ofstream(temporary_.file("nvidia.yaml")) << kYaml;
  settings_.inject = settings::Inject::kEnv;
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kNone);
}

TEST_F(DriverSourceTest, IsAsItIsSet) {
  settings_.nvidia = settings::Nvidia::kCdi;
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kCdi);
  settings_.nvidia = settings::Nvidia::kEnv;
  EXPECT_EQ(source({{"GPU-a", 1}}), DriverSource::kVariable);
}

}  // namespace
}  // namespace gpumux::kubernetes
