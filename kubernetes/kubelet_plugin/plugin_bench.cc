// SPDX-License-Identifier: Apache-2.0
// How long the kubelet waits for an answer on a large node: 1,000 shares of 100 GPUs, and 110 pods. Each call goes over
// a unix socket, as the kubelet's does.
//
// Baseline: a call that asks for nothing.
#include <benchmark/benchmark.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kubernetes/device_plugin/plugin.h"
#include "kubernetes/kubelet_api/device_plugin.grpc.pb.h"
#include "kubernetes/kubelet_plugin/giver.h"

namespace {

using namespace gpumux;

constexpr int kGpus = 100;
constexpr int kPods = 110;

std::string gpu_id(int gpu) { return "GPU-4d7b2a1c-93f0-4c0e-8a57-5b1f2e6d" + std::to_string(7000 + gpu); }

// A plugin that serves, and a client of it.
class Node {
 public:
  Node() {
    std::string made = "/tmp/gpumux-bench-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) std::abort();
    folder_ = made;
    settings::KubeletSettings settings;
    settings.nvidia = settings::Nvidia::kCdi;
    settings.cdi_folder = folder_ + "/cdi";
    giver_ = std::make_unique<kubernetes::Giver>(settings, "/run/gpumux");
    kubernetes::DevicePluginSettings plugin;
    plugin.folder = folder_;
    plugin_ = std::make_unique<kubernetes::DevicePlugin>(
        plugin, [this](const kubernetes::ContainerGpus& gpus) { return giver_->give(gpus); },
        [](const std::string&) {});
    std::vector<kubernetes::SharedGpu> gpus;
    for (int gpu = 0; gpu < kGpus; ++gpu) gpus.push_back({gpu_id(gpu), true, 0});
    plugin_->set_gpus(std::move(gpus));
    thread_ = std::thread([this] { static_cast<void>(plugin_->run()); });
    while (!kubernetes::ask_device_plugin(plugin)) {
    }
    stub_ = v1beta1::DevicePlugin::NewStub(
        grpc::CreateChannel("unix:" + folder_ + "/gpumux.sock", grpc::InsecureChannelCredentials()));
  }
  ~Node() {
    plugin_->stop();
    thread_.join();
    std::filesystem::remove_all(folder_);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  v1beta1::DevicePlugin::Stub& stub() { return *stub_; }

 private:
  std::string folder_;
  std::unique_ptr<kubernetes::Giver> giver_;
  std::unique_ptr<kubernetes::DevicePlugin> plugin_;
  std::thread thread_;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub_;
};

void expect(benchmark::State& state, bool good) {
  if (!good) state.SkipWithError("the plugin does not answer");
}

void options(benchmark::State& state) {
  Node node;
  for (auto _ : state) {
    grpc::ClientContext context;
    v1beta1::DevicePluginOptions answer;
    expect(state, node.stub().GetDevicePluginOptions(&context, v1beta1::Empty(), &answer).ok());
  }
}
BENCHMARK(options)->UseRealTime();

void list_and_watch(benchmark::State& state) {
  Node node;
  for (auto _ : state) {
    grpc::ClientContext context;
    const auto lists = node.stub().ListAndWatch(&context, v1beta1::Empty());
    v1beta1::ListAndWatchResponse list;
    expect(state, lists->Read(&list) && list.devices_size() == 10 * kGpus);
    state.PauseTiming();
    context.TryCancel();
    lists->Finish();
    state.ResumeTiming();
  }
}
BENCHMARK(list_and_watch)->UseRealTime()->Iterations(50);

void preferred_allocation(benchmark::State& state) {
  Node node;
  v1beta1::PreferredAllocationRequest request;
  auto& container = *request.add_container_requests();
  for (int share = 0; share < 10 * kGpus; ++share)
    container.add_available_deviceids(
        kubernetes::share_id({gpu_id(share % kGpus), static_cast<std::uint32_t>(share / kGpus)}));
  container.set_allocation_size(8);
  for (auto _ : state) {
    grpc::ClientContext context;
    v1beta1::PreferredAllocationResponse answer;
    expect(state, node.stub().GetPreferredAllocation(&context, request, &answer).ok());
  }
}
BENCHMARK(preferred_allocation)->UseRealTime();

// One pod after the other, with 8 GPUs each.
void allocate(benchmark::State& state) {
  Node node;
  int pod = 0;
  for (auto _ : state) {
    v1beta1::AllocateRequest request;
    auto& container = *request.add_container_requests();
    for (int gpu = 0; gpu < 8; ++gpu)
      container.add_devices_ids(kubernetes::share_id({gpu_id((8 * pod + gpu) % kGpus), 0}));
    pod = (pod + 1) % kPods;
    grpc::ClientContext context;
    v1beta1::AllocateResponse answer;
    expect(state, node.stub().Allocate(&context, request, &answer).ok());
  }
}
BENCHMARK(allocate)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
