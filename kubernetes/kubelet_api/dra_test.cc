// SPDX-License-Identifier: Apache-2.0
// The messages of registration, allocation and health have the numbers and types of the published APIs.
#include "kubernetes/kubelet_api/dra.pb.h"

#include <gtest/gtest.h>

#include <string>

#include "kubernetes/kubelet_api/bytes.h"
#include "kubernetes/kubelet_api/dra_health.pb.h"
#include "kubernetes/kubelet_api/plugin_registration.pb.h"

namespace gpumux::kubernetes {
namespace {

namespace dra = ::k8s::io::kubelet::pkg::apis::dra::v1;

TEST(DraApiTest, Registration) {
  const auto info = expect_same_bytes<pluginregistration::PluginInfo>(field(1, "DRAPlugin") + field(2, "gpumux.io") +
                                                                      field(3, "/dra.sock") + field(4, "v1.DRAPlugin") +
                                                                      field(4, "v1alpha1.DRAResourceHealth"));
  EXPECT_EQ(info.type(), "DRAPlugin");
  EXPECT_EQ(info.name(), "gpumux.io");
  EXPECT_EQ(info.endpoint(), "/dra.sock");
  EXPECT_EQ(info.supported_versions(1), "v1alpha1.DRAResourceHealth");
  const auto status =
      expect_same_bytes<pluginregistration::RegistrationStatus>(field(1, '\1') + field(2, "no such version"));
  EXPECT_TRUE(status.plugin_registered());
  EXPECT_EQ(status.error(), "no such version");
}

TEST(DraApiTest, Prepare) {
  const auto request = expect_same_bytes<dra::NodePrepareResourcesRequest>(
      field(1, field(1, "default") + field(2, "5b1f") + field(3, "claim")));
  EXPECT_EQ(request.claims(0).namespace_(), "default");
  EXPECT_EQ(request.claims(0).uid(), "5b1f");
  EXPECT_EQ(request.claims(0).name(), "claim");
  const auto answer = expect_same_bytes<dra::NodePrepareResourcesResponse>(field(
      1, field(1, "5b1f") +
             field(2, field(1, field(1, "r") + field(2, "node") + field(3, "gpu-a") + field(4, "c") + field(5, "s")) +
                          field(2, "why"))));
  const auto& claim = answer.claims().at("5b1f");
  EXPECT_EQ(claim.devices(0).request_names(0), "r");
  EXPECT_EQ(claim.devices(0).pool_name(), "node");
  EXPECT_EQ(claim.devices(0).device_name(), "gpu-a");
  EXPECT_EQ(claim.devices(0).cdi_device_ids(0), "c");
  EXPECT_EQ(claim.devices(0).share_id(), "s");
  EXPECT_EQ(claim.error(), "why");
}

TEST(DraApiTest, Unprepare) {
  const auto request = expect_same_bytes<dra::NodeUnprepareResourcesRequest>(field(1, field(2, "5b1f")));
  EXPECT_EQ(request.claims(0).uid(), "5b1f");
  const auto answer =
      expect_same_bytes<dra::NodeUnprepareResourcesResponse>(field(1, field(1, "5b1f") + field(2, field(1, "why"))));
  EXPECT_EQ(answer.claims().at("5b1f").error(), "why");
}

TEST(DraApiTest, Health) {
  const auto list = expect_same_bytes<v1alpha1::NodeWatchResourcesResponse>(
      field(1, field(1, field(1, "node") + field(2, "gpu-a")) + field(2, '\2') + field(3, '\7') + field(4, '\5') +
                   field(5, "why")));
  EXPECT_EQ(list.devices(0).device().pool_name(), "node");
  EXPECT_EQ(list.devices(0).device().device_name(), "gpu-a");
  EXPECT_EQ(list.devices(0).health(), v1alpha1::UNHEALTHY);
  EXPECT_EQ(list.devices(0).last_updated_time(), 7);
  EXPECT_EQ(list.devices(0).health_check_timeout_seconds(), 5);
  EXPECT_EQ(list.devices(0).message(), "why");
}

}  // namespace
}  // namespace gpumux::kubernetes
