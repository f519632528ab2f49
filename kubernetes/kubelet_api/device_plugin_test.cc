// SPDX-License-Identifier: Apache-2.0
// The messages have the numbers and types of the published API: bytes that are written here by hand are read, and made
// again, by the generated code.
#include "kubernetes/kubelet_api/device_plugin.pb.h"

#include <gtest/gtest.h>

#include <string>

#include "kubernetes/kubelet_api/bytes.h"

namespace gpumux::kubernetes {
namespace {

TEST(DevicePluginApiTest, Registration) {
  const auto request = expect_same_bytes<v1beta1::RegisterRequest>(
      field(1, "v1beta1") + field(2, "gpumux.sock") + field(3, "gpumux.io/gpu") + field(4, field(2, '\1')));
  EXPECT_EQ(request.version(), "v1beta1");
  EXPECT_EQ(request.endpoint(), "gpumux.sock");
  EXPECT_EQ(request.resource_name(), "gpumux.io/gpu");
  EXPECT_TRUE(request.options().get_preferred_allocation_available());
  EXPECT_FALSE(request.options().pre_start_required());
}

TEST(DevicePluginApiTest, TheListOfDevices) {
  const auto list = expect_same_bytes<v1beta1::ListAndWatchResponse>(
      field(1, field(1, "GPU-a::0") + field(2, "Healthy") + field(3, field(1, field(1, '\1')))) +
      field(1, field(1, "GPU-a::1") + field(2, "Unhealthy")));
  ASSERT_EQ(list.devices_size(), 2);
  EXPECT_EQ(list.devices(0).id(), "GPU-a::0");
  EXPECT_EQ(list.devices(0).health(), "Healthy");
  EXPECT_EQ(list.devices(0).topology().nodes(0).id(), 1);
  EXPECT_EQ(list.devices(1).health(), "Unhealthy");
}

TEST(DevicePluginApiTest, ThePreferredAllocation) {
  const auto request = expect_same_bytes<v1beta1::PreferredAllocationRequest>(
      field(1, field(1, "a") + field(1, "b") + field(2, "b") + field(3, '\2')) + field(1, field(3, '\1')));
  ASSERT_EQ(request.container_requests_size(), 2);
  EXPECT_EQ(request.container_requests(0).available_deviceids_size(), 2);
  EXPECT_EQ(request.container_requests(0).must_include_deviceids(0), "b");
  EXPECT_EQ(request.container_requests(0).allocation_size(), 2);
  const auto answer = expect_same_bytes<v1beta1::PreferredAllocationResponse>(field(1, field(1, "a")));
  EXPECT_EQ(answer.container_responses(0).deviceids(0), "a");
}

TEST(DevicePluginApiTest, TheAllocation) {
  const auto request = expect_same_bytes<v1beta1::AllocateRequest>(field(1, field(1, "a") + field(1, "b")));
  EXPECT_EQ(request.container_requests(0).devices_ids(1), "b");
  const auto answer = expect_same_bytes<v1beta1::AllocateResponse>(
      field(1, field(1, field(1, "LD_PRELOAD") + field(2, "/l.so")) +
                   field(2, field(1, "/inside") + field(2, "/host") + field(3, '\1')) +
                   field(3, field(1, "/dev/a") + field(2, "/dev/b") + field(3, "rw")) +
                   field(4, field(1, "key") + field(2, "value")) + field(5, field(1, "gpumux.io/claim=id-1"))));
  const auto& container = answer.container_responses(0);
  EXPECT_EQ(container.envs().at("LD_PRELOAD"), "/l.so");
  EXPECT_EQ(container.mounts(0).container_path(), "/inside");
  EXPECT_EQ(container.mounts(0).host_path(), "/host");
  EXPECT_TRUE(container.mounts(0).read_only());
  EXPECT_EQ(container.devices(0).container_path(), "/dev/a");
  EXPECT_EQ(container.devices(0).host_path(), "/dev/b");
  EXPECT_EQ(container.devices(0).permissions(), "rw");
  EXPECT_EQ(container.annotations().at("key"), "value");
  EXPECT_EQ(container.cdi_devices(0).name(), "gpumux.io/claim=id-1");
}

TEST(DevicePluginApiTest, AFieldOfANewerKubeletIsNoError) {
  v1beta1::AllocateRequest request;
  EXPECT_TRUE(request.ParseFromString(field(1, field(1, "a") + field(9, "new"))));
  EXPECT_EQ(request.container_requests(0).devices_ids_size(), 1);
}

}  // namespace
}  // namespace gpumux::kubernetes
