// SPDX-License-Identifier: Apache-2.0
// The plugin's answers are what the kubelet expects, for all GPUs and all containers of a request.
#include "kubernetes/device_plugin/answers.h"

#include <gtest/gtest.h>

namespace gpumux::kubernetes {
namespace {

using Ids = std::vector<std::string>;

v1beta1::ContainerPreferredAllocationRequest& add(v1beta1::PreferredAllocationRequest& request, const Ids& available,
                                                  int size) {
  auto& container = *request.add_container_requests();
  for (const std::string& id : available) container.add_available_deviceids(id);
  container.set_allocation_size(size);
  return container;
}

TEST(DeviceListTest, HasEachShareOfEachGpu) {
  const auto list = device_list({{"GPU-a", true, 1}, {"MIG-b", false, std::nullopt}}, 2);
  ASSERT_EQ(list.devices_size(), 4);
  const Ids expected{"GPU-a::0", "GPU-a::1", "MIG-b::0", "MIG-b::1"};
  for (int device = 0; device < 4; ++device) {
    EXPECT_EQ(list.devices(device).id(), expected[static_cast<std::size_t>(device)]);
    EXPECT_EQ(list.devices(device).health(), device < 2 ? "Healthy" : "Unhealthy");
    ASSERT_EQ(list.devices(device).topology().nodes_size(), device < 2 ? 1 : 0);
    if (device < 2) {
      EXPECT_EQ(list.devices(device).topology().nodes(0).id(), 1);
    }
  }
  EXPECT_EQ(device_list({}, 10).devices_size(), 0);
}

TEST(DeviceListTest, AGpuThatRecoversHasTheSameShares) {
  const auto sick = device_list({{"GPU-a", false, 0}}, 3), well = device_list({{"GPU-a", true, 0}}, 3);
  for (int device = 0; device < 3; ++device) EXPECT_EQ(sick.devices(device).id(), well.devices(device).id());
}

TEST(PreferredAllocationTest, AnswersEachContainer) {
  v1beta1::PreferredAllocationRequest request;
  add(request, {"a::0", "a::1", "b::0"}, 2);
  add(request, {"a::0", "a::1", "b::0", "b::1"}, 2).add_must_include_deviceids("b::1");
  add(request, {"a::0"}, 0);
  const auto answer = preferred_allocation(request, Placement::kSpread, {});
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->container_responses_size(), 3);
  const auto ids = [&](int container) {
    const auto& chosen = answer->container_responses(container).deviceids();
    return Ids(chosen.begin(), chosen.end());
  };
  EXPECT_EQ(ids(0), (Ids{"a::0", "b::0"}));
  EXPECT_EQ(ids(1), (Ids{"b::1", "a::0"}));
  EXPECT_EQ(ids(2), Ids{});
}

TEST(PreferredAllocationTest, UsesThePlacementAndTheSeats) {
  v1beta1::PreferredAllocationRequest request;
  add(request, {"a::0", "a::1", "b::0", "b::1", "c::0"}, 1);
  const auto first = [&](Placement placement, const Seats& seats) {
    const auto answer = preferred_allocation(request, placement, seats);
    return answer ? answer->container_responses(0).deviceids(0) : answer.error().message();
  };
  EXPECT_EQ(first(Placement::kSpread, {}), "a::0");
  EXPECT_EQ(first(Placement::kSpread, {{"a", 1}}), "b::0");
  EXPECT_EQ(first(Placement::kPacked, {}), "c::0");
}

TEST(PreferredAllocationTest, OneContainerThatCannotBeAnsweredFailsTheRequest) {
  for (const auto& spoil : std::vector<void (*)(v1beta1::PreferredAllocationRequest&)>{
           [](v1beta1::PreferredAllocationRequest& request) { add(request, {"a::0"}, 2); },
           [](v1beta1::PreferredAllocationRequest& request) { add(request, {"a::0"}, -1); },
           [](v1beta1::PreferredAllocationRequest& request) { add(request, {"nvidia"}, 1); },
       }) {
    v1beta1::PreferredAllocationRequest request;
    add(request, {"a::0"}, 1);
    spoil(request);
    const auto answer = preferred_allocation(request, Placement::kSpread, {});
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, base::Code::kInvalid);
  }
}

const ContainerGpus kGpus{{"GPU-b", 1}, {"GPU-a", 1}};
constexpr char kDevice[] = "gpumux.io/container=id-1";

Injection an_injection(std::vector<Variable> variables = {}) {
  return make_injection({"/usr/lib/gpumux/containers", "0.1.0", "/run/gpumux", SimulatedDriver{"/sim", "/machine"}},
                        std::move(variables))
      .value_or(Injection{});
}

TEST(GivenTest, ByCdiOursComesNextToNvidias) {
  const auto given = given_by_cdi(kGpus, kDevice, DriverSource::kCdi);
  ASSERT_TRUE(given);
  ASSERT_EQ(given->cdi_devices_size(), 3);
  EXPECT_EQ(given->cdi_devices(0).name(), "nvidia.com/gpu=GPU-b");
  EXPECT_EQ(given->cdi_devices(1).name(), "nvidia.com/gpu=GPU-a");
  EXPECT_EQ(given->cdi_devices(2).name(), kDevice);
  EXPECT_TRUE(given->envs().empty());
}

TEST(GivenTest, WithoutNvidiasSpecificationAVariableNamesTheGpusInOrder) {
  const auto given = given_by_cdi(kGpus, kDevice, DriverSource::kVariable);
  ASSERT_TRUE(given);
  ASSERT_EQ(given->cdi_devices_size(), 1);
  EXPECT_EQ(given->cdi_devices(0).name(), kDevice);
  EXPECT_EQ(given->envs().at("NVIDIA_VISIBLE_DEVICES"), "GPU-b,GPU-a");
}

TEST(GivenTest, SimulatedGpusAreNamedToTheirDriver) {
  const auto given = given_by_cdi(kGpus, kDevice, DriverSource::kSimulated);
  ASSERT_TRUE(given);
  EXPECT_EQ(given->envs().at("CUDA_VISIBLE_DEVICES"), "GPU-b,GPU-a");
}

TEST(GivenTest, ByTheEnvironmentItIsAllInTheAnswer) {
  const auto given = given_by_environment(kGpus, an_injection(), DriverSource::kVariable);
  ASSERT_TRUE(given) << given.error().message();
  EXPECT_EQ(given->cdi_devices_size(), 0);
  EXPECT_EQ(given->envs().at("NVIDIA_VISIBLE_DEVICES"), "GPU-b,GPU-a");
  EXPECT_EQ(given->envs().at("LD_PRELOAD"), "/usr/lib/gpumux/containers/0.1.0/libgpumux.so");
  EXPECT_EQ(given->envs().at("GPUMUX_RUNTIME_DIR"), "/run/gpumux");
  ASSERT_EQ(given->mounts_size(), 4);
  EXPECT_EQ(given->mounts(1).host_path(), "/run/gpumux/tenants");
  EXPECT_EQ(given->mounts(1).container_path(), "/run/gpumux/tenants");
  for (int mount = 0; mount < 4; ++mount) {
    EXPECT_EQ(given->mounts(mount).read_only(), given->mounts(mount).host_path() != "/machine");
  }
}

TEST(GivenTest, NoContainerStartsWithoutADriver) {
  for (const auto& given : {given_by_cdi(kGpus, kDevice, DriverSource::kNone),
                            given_by_environment(kGpus, an_injection(), DriverSource::kNone)}) {
    ASSERT_FALSE(given);
    EXPECT_EQ(given.error().code, base::Code::kUnavailable);
    EXPECT_NE(given.error().message().find("install NVIDIA's container toolkit"), std::string::npos);
  }
}

TEST(GivenTest, TheInjectionDoesNotNameOtherGpus) {
  const auto given =
      given_by_environment(kGpus, an_injection({{"NVIDIA_VISIBLE_DEVICES", "all"}}), DriverSource::kVariable);
  ASSERT_FALSE(given);
  EXPECT_EQ(given.error().code, base::Code::kInvalid);
  EXPECT_FALSE(given_by_environment(kGpus, an_injection({{"LD_PRELOAD", "/x.so"}}), DriverSource::kVariable));
}

}  // namespace
}  // namespace gpumux::kubernetes
