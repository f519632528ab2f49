// SPDX-License-Identifier: Apache-2.0
// Quantities are Kubernetes', and the slice is what the API server accepts: each bound of a request policy holds.
#include "kubernetes/dra/slice.h"

#include <gtest/gtest.h>

#include "kubernetes/dra/quantity.h"

namespace gpumux::kubernetes {
namespace {

using nlohmann::json;

TEST(QuantityTest, IsReadAsKubernetesWritesIt) {
  for (const auto& [text, value] :
       std::vector<std::pair<const char*, std::uint64_t>>{{"0", 0},
                                                          {"20Gi", 20ull << 30},
                                                          {"1500M", 1'500'000'000},
                                                          {"1.5Gi", 3ull << 29},
                                                          {"0.5", 0},
                                                          {"1500m", 1},
                                                          {"1e3", 1000},
                                                          {"12E", 12'000'000'000'000'000'000u},
                                                          {"2e-1", 0},
                                                          {"+7k", 7000},
                                                          {".5Ki", 512}}) {
    const auto parsed = parse_quantity(text);
    ASSERT_TRUE(parsed) << text << ": " << parsed.error().message();
    EXPECT_EQ(*parsed, value) << text;
  }
  for (const char* bad : {"", "-1", "1.2.3", "Gi", "1GB", "1 Gi", "20Ei", "1e", "1e999", "1e99", "9999999999999999999",
                          "0x10", "1Gi\n", "."})
    EXPECT_FALSE(parse_quantity(bad)) << bad;
}

TEST(QuantityTest, IsWrittenInItsShortestForm) {
  EXPECT_EQ(format_quantity(80ull << 30), "80Gi");
  EXPECT_EQ(format_quantity(81559ull << 20), "81559Mi");
  EXPECT_EQ(format_quantity(100), "100");
  EXPECT_EQ(format_quantity(0), "0");
}

DraGpu a_gpu() {
  DraGpu gpu{"GPU-4D7B", "NVIDIA H100 80GB HBM3", "0000:01:00.0", "pci0000:00", "580.159.04", "13.0", 81559ull << 20,
             ""};
  gpu.architecture = "Hopper";
  gpu.compute_capability = "9.0";
  return gpu;
}

TEST(SliceTest, IsWhatTheApiServerExpects) {
  const auto devices = slice_devices({a_gpu()}, {"node-1", 150, 4}, "v1");
  ASSERT_TRUE(devices);
  const json expected = json::parse(R"({
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
    "metadata": {"name": "node-1-gpumux.io", "ownerReferences": [
      {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n1", "controller": true}]},
    "spec": {"driver": "gpumux.io", "nodeName": "node-1",
      "pool": {"name": "node-1", "generation": 7, "resourceSliceCount": 1},
      "devices": [{
        "name": "gpu-4d7b",
        "allowMultipleAllocations": true,
        "attributes": {
          "type": {"string": "gpu"}, "uuid": {"string": "GPU-4D7B"},
          "productName": {"string": "NVIDIA H100 80GB HBM3"},
          "architecture": {"string": "Hopper"}, "cudaComputeCapability": {"version": "9.0.0"},
          "driverVersion": {"version": "580.159.4"}, "cudaDriverVersion": {"version": "13.0.0"},
          "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
          "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}},
        "capacity": {
          "memory": {"value": "122338Mi", "requestPolicy": {"default": "30584Mi",
            "validRange": {"min": "1Mi", "max": "122338Mi", "step": "1Mi"}}},
          "cores": {"value": "100", "requestPolicy": {"default": "25",
            "validRange": {"min": "1", "max": "100", "step": "1"}}}}}]}})");
  EXPECT_EQ(resource_slices(*devices, {"node-1", 150, 4}, "v1", 7, "n1"), std::vector<json>{expected})
      << devices->dump(1);
}

TEST(SliceTest, ASickGpuIsTainted) {
  DraGpu gpu = a_gpu();
  gpu.sick = "it needs a reset";
  const auto devices = slice_devices({a_gpu(), gpu}, {"n"}, "v1");
  ASSERT_TRUE(devices);
  EXPECT_FALSE((*devices)[0].contains("taints"));
  EXPECT_EQ((*devices)[1]["taints"], json::parse(R"([{"key": "gpumux.io/sick", "effect": "NoSchedule"}])"));
}

TEST(SliceTest, TheOldestVersionHasAllButTheNameInBasic) {
  const auto devices = slice_devices({a_gpu()}, {"n"}, "v1beta1");
  ASSERT_TRUE(devices);
  EXPECT_EQ((*devices)[0].size(), 2u);
  EXPECT_EQ((*devices)[0]["basic"]["capacity"]["cores"]["value"], "100");
}

TEST(SliceTest, SmallGpusHaveSharesOfAtLeastAStep) {
  DraGpu gpu = a_gpu();
  gpu.memory_bytes = 3 << 20;
  const auto devices = slice_devices({gpu}, {"n", 100, 1000}, "v1");
  ASSERT_TRUE(devices);
  EXPECT_EQ((*devices)[0]["capacity"]["memory"]["requestPolicy"]["default"], "1Mi");
  EXPECT_EQ((*devices)[0]["capacity"]["cores"]["requestPolicy"]["default"], "1");
}

TEST(SliceTest, LeavesOutWhatIsNotKnown) {
  DraGpu gpu{"MIG-a", std::string(100, 'p'), "", "", "unknown", "", 1 << 30, ""};
  const auto devices = slice_devices({gpu}, {"n"}, "v1");
  ASSERT_TRUE(devices);
  EXPECT_EQ((*devices)[0]["attributes"], (json{{"type", {{"string", "mig"}}},
                                               {"uuid", {{"string", "MIG-a"}}},
                                               {"productName", {{"string", std::string(64, 'p')}}}}));
  gpu.memory_bytes = 0;
  EXPECT_FALSE(slice_devices({gpu}, {"n"}, "v1"));
  gpu = a_gpu();
  gpu.id = "GPU_" + std::string(100, 'a');
  EXPECT_FALSE(slice_devices({gpu}, {"n"}, "v1"));
}

TEST(SliceTest, APoolHasAsFewSlicesAsHoldItsDevices) {
  for (const auto& [gpus, sizes] : std::vector<std::pair<std::size_t, std::vector<std::size_t>>>{
           {0, {0}}, {kMostDevices, {kMostDevices}}, {kMostDevices + 1, {kMostDevices, 1}}}) {
    const auto devices = slice_devices(std::vector<DraGpu>(gpus, a_gpu()), {"n"}, "v1");
    ASSERT_TRUE(devices);
    const std::vector<json> slices = resource_slices(*devices, {"n"}, "v1", 3, "");
    ASSERT_EQ(slices.size(), sizes.size());
    for (std::size_t i = 0; i < slices.size(); ++i) {
      EXPECT_EQ(slices[i]["metadata"], (json{{"name", i == 0 ? "n-gpumux.io" : "n-gpumux.io-2"}})) << "and no owner";
      EXPECT_EQ(slices[i]["spec"]["devices"].size(), sizes[i]);
      EXPECT_EQ(slices[i]["spec"]["pool"],
                (json{{"name", "n"}, {"generation", 3}, {"resourceSliceCount", sizes.size()}}));
    }
  }
}

}  // namespace
}  // namespace gpumux::kubernetes
