// SPDX-License-Identifier: Apache-2.0
// A kubelet always finds the plugin again: after its own restart, after the plugin's, whatever it removes.
//
// Method: a kubelet of the test's own, which does with its folder and its socket what the real one does.
#include "kubernetes/device_plugin/plugin.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "kubernetes/kubelet_api/device_plugin.grpc.pb.h"
#include "kubernetes/kubelet_api/socket_server.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::kubernetes {
namespace {

namespace fs = std::filesystem;

// Bounds a failure, not a speed.
constexpr auto kLongest = std::chrono::seconds(30);

class TestKubelet final : public v1beta1::Registration::Service {
 public:
  explicit TestKubelet(std::string folder) : folder_(std::move(folder)) {}
  ~TestKubelet() override { kill(); }

  // As the real one: whatever is in the folder goes first.
  void start() {
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
    serve();
  }

  void serve() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + folder_ + "/kubelet.sock", grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  void kill() {
    {
      const std::lock_guard lock(mutex_);
      if (stream_) stream_->TryCancel();
    }
    if (reader_.joinable()) reader_.join();
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    const std::lock_guard lock(mutex_);
    plugin_.reset();
    stream_.reset();
    list_.Clear();
    registrations_ = 0;
  }

  void restart() {
    kill();
    start();
  }

  void refuse_registrations(bool refuse) {
    const std::lock_guard lock(mutex_);
    refuses_ = refuse;
  }

  grpc::Status Register(grpc::ServerContext* /*context*/, const v1beta1::RegisterRequest* request,
                        v1beta1::Empty* /*answer*/) override {
    const std::lock_guard lock(mutex_);
    ++attempts_;
    changed_.notify_all();
    if (refuses_) return {grpc::StatusCode::INVALID_ARGUMENT, "the resource is taken"};
    ++registrations_;
    request_ = *request;
    return grpc::Status::OK;
  }

  template <class Condition>
  bool wait_for(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLongest, [&] { return condition(); });
  }

  bool wait_until_registered(int times = 1) {
    return wait_for([&] { return registrations_ >= times; });
  }
  bool wait_for_attempts(int more) {
    int before = 0;
    {
      const std::lock_guard lock(mutex_);
      before = attempts_;
    }
    return wait_for([&] { return attempts_ >= before + more; });
  }

  // Listens to the plugin that has registered, and waits until it has as many healthy devices.
  bool watch_until_healthy(int devices) {
    if (!reader_.joinable()) {
      reader_ = std::thread([this, plugin = &this->plugin()] { stream_of(*plugin); });
    }
    return wait_for([&] {
      return std::count_if(list_.devices().begin(), list_.devices().end(),
                           [](const auto& device) { return device.health() == "Healthy"; }) == devices;
    });
  }

  v1beta1::DevicePlugin::Stub& plugin() {
    const std::lock_guard lock(mutex_);
    if (!plugin_) plugin_ = v1beta1::DevicePlugin::NewStub(channel_to(folder_ + "/" + request_.endpoint()));
    return *plugin_;
  }

  v1beta1::RegisterRequest request() {
    const std::lock_guard lock(mutex_);
    return request_;
  }
  v1beta1::ListAndWatchResponse list() {
    const std::lock_guard lock(mutex_);
    return list_;
  }

 private:
  void stream_of(v1beta1::DevicePlugin::Stub& plugin) {
    auto context = std::make_shared<grpc::ClientContext>();
    {
      const std::lock_guard lock(mutex_);
      stream_ = context;
    }
    const auto lists = plugin.ListAndWatch(context.get(), v1beta1::Empty());
    v1beta1::ListAndWatchResponse list;
    while (lists->Read(&list)) {
      const std::lock_guard lock(mutex_);
      list_ = list;
      changed_.notify_all();
    }
    lists->Finish();
  }

  const std::string folder_;
  std::unique_ptr<grpc::Server> server_;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // From here on guarded by mutex_.
  bool refuses_ = false;
  int attempts_ = 0;
  int registrations_ = 0;
  v1beta1::RegisterRequest request_;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> plugin_;
  std::shared_ptr<grpc::ClientContext> stream_;
  v1beta1::ListAndWatchResponse list_;
};

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() { settings_.folder = temporary_.path(); }
  ~PluginTest() override { stop_plugin(); }

  void start_plugin() {
    plugin_ = std::make_unique<DevicePlugin>(
        settings_, [](const ContainerGpus& gpus) { return give(gpus); },
        [this](const std::string& sentence) {
          const std::lock_guard lock(mutex_);
          reports_.push_back(sentence);
          reported_.notify_all();
        });
    plugin_->set_gpus(gpus_);
    thread_ = std::thread([this] { EXPECT_TRUE(plugin_->run()); });
  }

  void stop_plugin() {
    if (!plugin_) return;
    plugin_->stop();
    thread_.join();
    plugin_.reset();
  }

  // The reports that have these words. REQUIRES: mutex_ is held.
  std::ptrdiff_t count_reports(const std::string& words) const {
    return std::count_if(reports_.begin(), reports_.end(),
                         [&](const std::string& report) { return report.find(words) != std::string::npos; });
  }
  std::ptrdiff_t reports_with(const std::string& words) {
    const std::lock_guard lock(mutex_);
    return count_reports(words);
  }
  bool wait_for_report(const std::string& words) {
    std::unique_lock lock(mutex_);
    return reported_.wait_for(lock, kLongest, [&] { return count_reports(words) != 0; });
  }

  static base::Result<v1beta1::ContainerAllocateResponse> give(const ContainerGpus& gpus) {
    v1beta1::ContainerAllocateResponse given;
    for (const auto& [gpu, shares] : gpus) {
      if (gpu == "GPU-broken") return base::fail(base::Code::kUnavailable, "GPU-broken cannot be given");
      given.add_cdi_devices()->set_name("nvidia.com/gpu=" + gpu + "*" + std::to_string(shares));
    }
    return given;
  }

  TemporaryDirectory temporary_;
  DevicePluginSettings settings_;
  const std::vector<SharedGpu> gpus_{{"GPU-a", true, 0}, {"GPU-b", true, 1}};
  TestKubelet kubelet_{temporary_.path()};
  std::mutex mutex_;
  std::condition_variable reported_;
  std::vector<std::string> reports_;  // guarded by mutex_
  std::unique_ptr<DevicePlugin> plugin_;
  std::thread thread_;
};

TEST_F(PluginTest, RegistersItselfAndItsShares) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  EXPECT_EQ(kubelet_.request().version(), "v1beta1");
  EXPECT_EQ(kubelet_.request().endpoint(), "gpumux.sock");
  EXPECT_EQ(kubelet_.request().resource_name(), "gpumux.io/gpu");
  EXPECT_TRUE(kubelet_.request().options().get_preferred_allocation_available());
  EXPECT_FALSE(kubelet_.request().options().pre_start_required());
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
  EXPECT_EQ(kubelet_.list().devices(0).id(), "GPU-a::0");

  grpc::ClientContext context;
  v1beta1::DevicePluginOptions options;
  ASSERT_TRUE(kubelet_.plugin().GetDevicePluginOptions(&context, v1beta1::Empty(), &options).ok());
  EXPECT_TRUE(options.get_preferred_allocation_available());
}

TEST_F(PluginTest, TheKubeletHearsOfSickAndRecoveredGpus) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
  plugin_->set_gpus({{"GPU-a", true, 0}, {"GPU-b", false, 1}});
  ASSERT_TRUE(kubelet_.watch_until_healthy(10));
  EXPECT_EQ(kubelet_.list().devices_size(), 20);
  plugin_->set_gpus(gpus_);
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
}

TEST_F(PluginTest, TenRestartsOfTheKubelet) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  for (int restart = 0; restart < 10; ++restart) {
    if (restart % 2 == 0) {
      ASSERT_TRUE(kubelet_.watch_until_healthy(20));
    }
    kubelet_.restart();
    ASSERT_TRUE(kubelet_.wait_until_registered()) << "restart " << restart;
  }
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
}

TEST_F(PluginTest, AKubeletThatLeavesOurSocket) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  kubelet_.kill();
  kubelet_.serve();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
}

TEST_F(PluginTest, AKubeletThatComesLater) {
  start_plugin();
  ASSERT_TRUE(wait_for_report("waiting for it"));
  kubelet_.start();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
}

TEST_F(PluginTest, ASocketThatIsRemovedIsMadeAgain) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  fs::remove(temporary_.file("gpumux.sock"));
  ASSERT_TRUE(kubelet_.wait_until_registered(2));
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
}

TEST_F(PluginTest, APluginThatStartsAgainTakesItsNameBack) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  stop_plugin();
  std::ofstream(temporary_.file("gpumux.sock")) << "what a killed plugin has left";
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered(2));
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
}

TEST_F(PluginTest, ARefusedRegistrationIsReportedOnceAndTriedAgain) {
  kubelet_.refuse_registrations(true);
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_for_attempts(3));
  EXPECT_EQ(reports_with("the resource is taken"), 1);
  kubelet_.refuse_registrations(false);
  ASSERT_TRUE(kubelet_.wait_until_registered());
}

TEST_F(PluginTest, StopsWhileTheKubeletListens) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  ASSERT_TRUE(kubelet_.watch_until_healthy(20));
  stop_plugin();
  EXPECT_FALSE(fs::exists(temporary_.file("gpumux.sock")));
}

TEST_F(PluginTest, PrefersDifferentGpusAndRefusesTheSame) {
  kubelet_.start();
  start_plugin();
  ASSERT_TRUE(kubelet_.wait_until_registered());
  plugin_->set_seats({{"GPU-a", 1}});
  v1beta1::PreferredAllocationRequest preference;
  auto& wish = *preference.add_container_requests();
  for (const char* id : {"GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b::1"}) wish.add_available_deviceids(id);
  wish.set_allocation_size(2);
  v1beta1::PreferredAllocationResponse preferred;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(kubelet_.plugin().GetPreferredAllocation(&context, preference, &preferred).ok());
  }
  ASSERT_EQ(preferred.container_responses(0).deviceids_size(), 2);
  EXPECT_EQ(preferred.container_responses(0).deviceids(0), "GPU-b::0");
  EXPECT_EQ(preferred.container_responses(0).deviceids(1), "GPU-a::0");

  const auto allocate = [&](const std::vector<std::vector<std::string>>& containers,
                            v1beta1::AllocateResponse& answer) {
    v1beta1::AllocateRequest request;
    for (const auto& ids : containers) {
      auto& container = *request.add_container_requests();
      for (const std::string& id : ids) container.add_devices_ids(id);
    }
    grpc::ClientContext context;
    return kubelet_.plugin().Allocate(&context, request, &answer);
  };
  v1beta1::AllocateResponse answer;
  ASSERT_TRUE(allocate({{"GPU-b::0", "GPU-a::0"}, {"GPU-a::1"}}, answer).ok());
  ASSERT_EQ(answer.container_responses_size(), 2);
  EXPECT_EQ(answer.container_responses(0).cdi_devices(0).name(), "nvidia.com/gpu=GPU-b*1");
  EXPECT_EQ(answer.container_responses(0).cdi_devices(1).name(), "nvidia.com/gpu=GPU-a*1");
  EXPECT_EQ(answer.container_responses(1).cdi_devices_size(), 1);

  const grpc::Status same = allocate({{"GPU-a::0", "GPU-a::1"}}, answer);
  EXPECT_EQ(same.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(same.error_message().find("2 of GPU-a"), std::string::npos) << same.error_message();
  EXPECT_EQ(allocate({{"GPU-broken::0"}}, answer).error_message(), "GPU-broken cannot be given");
  EXPECT_EQ(allocate({{"nonsense"}}, answer).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(SocketServerTest, AFolderThatIsNotThereIsOneErrorAndNoLinesOfGrpc) {
  testing::internal::CaptureStderr();
  const auto begun = SocketServer::begin("/nowhere/device-plugins/gpumux.sock", {});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().message(),
            "cannot serve on /nowhere/device-plugins/gpumux.sock (is the kubelet's folder there?): No such file or "
            "directory");
}

TEST_F(PluginTest, AnImpossibleNumberOfSharesIsRefused) {
  for (const std::uint32_t shares : {0u, kMaxSharesPerGpu + 1}) {
    settings_.shares_per_gpu = shares;
    DevicePlugin plugin(
        settings_, [](const ContainerGpus& gpus) { return give(gpus); }, [](const std::string&) {});
    EXPECT_FALSE(plugin.run());
  }
}

}  // namespace
}  // namespace gpumux::kubernetes
