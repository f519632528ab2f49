// SPDX-License-Identifier: Apache-2.0
// The kubelet finds the driver, and its calls reach the claims, whatever starts again.
#include "kubernetes/dra/driver.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "kubernetes/dra/claim_fixture.h"
#include "kubernetes/kubelet_api/dra.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_health.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_v1beta1.grpc.pb.h"
#include "kubernetes/kubelet_api/plugin_registration.grpc.pb.h"
#include "kubernetes/kubelet_api/socket_server.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;
namespace dra = ::k8s::io::kubelet::pkg::apis::dra;

constexpr auto kLongest = std::chrono::seconds(60);

// Acts as a kubelet that finds a socket.
class TestKubelet {
 public:
  explicit TestKubelet(const DriverSettings& settings) : settings_(settings) {}

  // As a kubelet that has just started: whether the driver was found, with its services.
  bool register_driver() {
    for (const auto limit = std::chrono::steady_clock::now() + kLongest; std::chrono::steady_clock::now() < limit;) {
      const auto registration = pluginregistration::Registration::NewStub(channel_to(settings_.registration_socket()));
      grpc::ClientContext context;
      context.set_wait_for_ready(false);
      if (!registration->GetInfo(&context, {}, &info_).ok()) {
        std::this_thread::yield();
        continue;
      }
      pluginregistration::RegistrationStatus status;
      status.set_plugin_registered(true);
      pluginregistration::RegistrationStatusResponse answer;
      grpc::ClientContext notification;
      return registration->NotifyRegistrationStatus(&notification, status, &answer).ok();
    }
    return false;
  }

  template <class Api>
  std::string prepare(const std::string& uid) {
    dra::v1::NodePrepareResourcesRequest request;
    name(*request.add_claims(), uid);
    grpc::ClientContext context;
    const grpc::Status status =
        Api::NewStub(channel_to(info_.endpoint()))->NodePrepareResources(&context, request, &prepared_);
    if (!status.ok()) return status.error_message();
    if (prepared_.claims().count(uid) == 0) return "no answer for the claim";
    return prepared_.claims().at(uid).error();
  }

  template <class Api>
  std::string unprepare(const std::string& uid) {
    dra::v1::NodeUnprepareResourcesRequest request;
    name(*request.add_claims(), uid);
    dra::v1::NodeUnprepareResourcesResponse answer;
    grpc::ClientContext context;
    const grpc::Status status =
        Api::NewStub(channel_to(info_.endpoint()))->NodeUnprepareResources(&context, request, &answer);
    if (!status.ok()) return status.error_message();
    if (answer.claims().count(uid) == 0) return "no answer for the claim";
    return answer.claims().at(uid).error();
  }

  const pluginregistration::PluginInfo& info() const { return info_; }
  const dra::v1::NodePrepareResourceResponse& prepared(const std::string& uid) { return prepared_.claims().at(uid); }

 private:
  static void name(dra::v1::Claim& claim, const std::string& uid) {
    claim.set_namespace_("default");
    claim.set_name("claim-" + uid);
    claim.set_uid(uid);
  }

  const DriverSettings settings_;
  pluginregistration::PluginInfo info_;
  dra::v1::NodePrepareResourcesResponse prepared_;
};

class DriverTest : public ::testing::Test {
 protected:
  ~DriverTest() override { stop(); }

  void start() {
    auto claims = Claims::open(
        {settings_.claims_folder(), temporary_.file("cdi"), "/hook", "node-1"},
        [](const ClaimName& claim) -> base::Result<std::string> {
          if (claim.uid == "none") return base::fail(base::Code::kNotFound, "there is no such claim");
          return a_claim(claim.uid, {a_share("a", "gpu-a", "1Gi", "10"), a_share("b", "gpu-b", "1Gi", "10")}).dump();
        },
        [](const Grant& grant) -> base::Result<Claims::Given> {
          auto injection = make_injection({"/usr/lib/gpumux/containers", "1", "/run/gpumux", {}}, variables_of(grant));
          if (!injection) return tl::unexpected(injection.error());
          return Claims::Given{*injection, std::vector<std::vector<std::string>>(grant.shares.size())};
        },
        [](const std::string&) {});
    ASSERT_TRUE(claims) << claims.error().message();
    claims_ = std::move(*claims);
    driver_ = std::make_unique<Driver>(settings_, *claims_, [](const std::string&) {});
    thread_ = std::thread([this] { EXPECT_TRUE(driver_->run()); });
  }
  void stop() {
    if (!driver_) return;
    driver_->stop();
    thread_.join();
    driver_.reset();
  }

  TemporaryDirectory temporary_;
  const DriverSettings settings_{temporary_.file("kubelet"), "node-1"};
  TestKubelet kubelet_{settings_};
  std::unique_ptr<Claims> claims_;
  std::unique_ptr<Driver> driver_;
  std::thread thread_;
};

TEST_F(DriverTest, SaysWhatItIs) {
  start();
  EXPECT_FALSE(driver_->is_registered());
  ASSERT_TRUE(kubelet_.register_driver());
  EXPECT_TRUE(driver_->is_registered());
  EXPECT_EQ(kubelet_.info().type(), "DRAPlugin");
  EXPECT_EQ(kubelet_.info().name(), "gpumux.io");
  EXPECT_EQ(kubelet_.info().endpoint(), settings_.service_socket());
  ASSERT_EQ(kubelet_.info().supported_versions_size(), 3);
  EXPECT_EQ(kubelet_.info().supported_versions(0), "v1.DRAPlugin");
  EXPECT_EQ(kubelet_.info().supported_versions(1), "v1beta1.DRAPlugin");
  EXPECT_EQ(kubelet_.info().supported_versions(2), "v1alpha1.DRAResourceHealth");
  EXPECT_TRUE(ask_driver(settings_));
  stop();
  EXPECT_FALSE(fs::exists(settings_.registration_socket()));
  EXPECT_FALSE(ask_driver(settings_));
}

TEST_F(DriverTest, PreparesAndUnpreparesInBothVersions) {
  start();
  ASSERT_TRUE(kubelet_.register_driver());
  EXPECT_EQ(kubelet_.prepare<dra::v1::DRAPlugin>("u1"), "");
  ASSERT_EQ(kubelet_.prepared("u1").devices_size(), 2);
  const auto& device = kubelet_.prepared("u1").devices(1);
  EXPECT_EQ(device.request_names(0), "b");
  EXPECT_EQ(device.pool_name(), "node-1");
  EXPECT_EQ(device.device_name(), "gpu-b");
  ASSERT_EQ(device.cdi_device_ids_size(), 1);
  EXPECT_EQ(device.cdi_device_ids(0), "gpumux.io/claim=id-u1");
  EXPECT_EQ(device.share_id(), kShareId);
  EXPECT_EQ(kubelet_.prepare<dra::v1beta1::DRAPlugin>("u2"), "");
  EXPECT_EQ(claims_->uids().size(), 2u);
  EXPECT_EQ(kubelet_.unprepare<dra::v1beta1::DRAPlugin>("u1"), "");
  EXPECT_EQ(kubelet_.unprepare<dra::v1::DRAPlugin>("u2"), "");
  EXPECT_EQ(kubelet_.unprepare<dra::v1::DRAPlugin>("u2"), "");
  EXPECT_TRUE(claims_->uids().empty());
  EXPECT_EQ(kubelet_.prepare<dra::v1::DRAPlugin>("none"), "there is no such claim");
}

TEST_F(DriverTest, TenKubeletsFindIt) {
  start();
  for (int restart = 0; restart < 10; ++restart) {
    TestKubelet kubelet(settings_);
    ASSERT_TRUE(kubelet.register_driver());
    ASSERT_EQ(kubelet.prepare<dra::v1::DRAPlugin>("u1"), "");
  }
  EXPECT_EQ(claims_->uids().size(), 1u);
}

TEST_F(DriverTest, ADriverThatStartsAgainKnowsItsClaims) {
  start();
  ASSERT_TRUE(kubelet_.register_driver());
  ASSERT_EQ(kubelet_.prepare<dra::v1::DRAPlugin>("u1"), "");
  stop();
  std::ofstream(settings_.service_socket()) << "what a killed driver has left";
  start();
  ASSERT_TRUE(kubelet_.register_driver());
  EXPECT_EQ(claims_->uids(), std::vector<std::string>{"u1"});
  EXPECT_EQ(kubelet_.unprepare<dra::v1::DRAPlugin>("u1"), "");
  EXPECT_TRUE(fs::is_empty(temporary_.file("cdi")));
}

TEST_F(DriverTest, SocketsThatAreRemovedAreMadeAgain) {
  start();
  for (const std::string& path : {settings_.registration_socket(), settings_.service_socket()}) {
    ASSERT_TRUE(kubelet_.register_driver());
    ASSERT_TRUE(fs::remove(path));
    for (const auto limit = std::chrono::steady_clock::now() + kLongest;
         !fs::exists(path) && std::chrono::steady_clock::now() < limit;)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(kubelet_.register_driver());
    EXPECT_EQ(kubelet_.prepare<dra::v1::DRAPlugin>("u1"), "");
  }
}

TEST_F(DriverTest, TheKubeletHearsOfSickAndRecoveredGpus) {
  start();
  driver_->set_health({{"gpu-a", ""}, {"gpu-b", "it needs a reset"}});
  ASSERT_TRUE(kubelet_.register_driver());
  grpc::ClientContext context;
  const auto lists =
      v1alpha1::DRAResourceHealth::NewStub(channel_to(settings_.service_socket()))->NodeWatchResources(&context, {});
  v1alpha1::NodeWatchResourcesResponse list;
  ASSERT_TRUE(lists->Read(&list));
  ASSERT_EQ(list.devices_size(), 2);
  EXPECT_EQ(list.devices(0).device().pool_name(), "node-1");
  EXPECT_EQ(list.devices(0).device().device_name(), "gpu-a");
  EXPECT_EQ(list.devices(0).health(), v1alpha1::HEALTHY);
  EXPECT_GT(list.devices(0).last_updated_time(), 0);
  EXPECT_EQ(list.devices(1).health(), v1alpha1::UNHEALTHY);
  EXPECT_EQ(list.devices(1).message(), "it needs a reset");
  driver_->set_health({{"gpu-a", ""}, {"gpu-b", ""}});
  ASSERT_TRUE(lists->Read(&list));
  EXPECT_EQ(list.devices(1).health(), v1alpha1::HEALTHY);
  stop();
  EXPECT_FALSE(lists->Read(&list)) << "the stream ends with the driver";
  lists->Finish();
}

}  // namespace
}  // namespace gpumux::kubernetes
