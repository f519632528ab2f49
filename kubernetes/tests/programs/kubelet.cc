// SPDX-License-Identifier: Apache-2.0
// A kubelet as device plugins see it, for scenarios: `kubelet FOLDER COMMANDS`. It does with its folder, its socket and
// its plugins what the real one does, and prints a line for each thing that it sees:
//
//   serving                       after each start: plugins may register
//   registered RESOURCE
//   list RESOURCE {"ID": true}    what a plugin lists, and whether it is healthy
//   gone RESOURCE                 its stream has ended
//   answer JSON                   to each command
//
// COMMANDS is a FIFO; each line of it is an object:
//
//   {"do": "restart"}
//   {"do": "prefer", "resource": R, "available": [ID], "must": [ID], "size": N}
//   {"do": "allocate", "resource": R, "containers": [[ID]]}
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "kubernetes/kubelet_api/device_plugin.grpc.pb.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr auto kCallLimit = std::chrono::seconds(30);

void say(const std::string& line) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// One plugin that has registered, and the thread that reads its list.
class Plugin {
 public:
  Plugin(const std::string& socket, std::string resource) : resource_(std::move(resource)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1beta1::DevicePlugin::NewStub(
        grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments));
    reader_ = std::thread([this] { read(); });
  }
  ~Plugin() {
    context_.TryCancel();
    reader_.join();
  }
  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  v1beta1::DevicePlugin::Stub& stub() { return *stub_; }

 private:
  void read() {
    const auto lists = stub_->ListAndWatch(&context_, v1beta1::Empty());
    v1beta1::ListAndWatchResponse list;
    while (lists->Read(&list)) {
      Json devices = Json::object();
      for (const auto& device : list.devices()) devices[device.id()] = device.health() == "Healthy";
      say("list " + resource_ + " " + devices.dump());
    }
    lists->Finish();
    say("gone " + resource_);
  }

  const std::string resource_;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub_;
  grpc::ClientContext context_;
  std::thread reader_;
};

class Kubelet final : public v1beta1::Registration::Service {
 public:
  explicit Kubelet(std::string folder) : folder_(std::move(folder)) {}

  bool start() {
    for (const auto& entry : fs::directory_iterator(folder_)) fs::remove_all(entry.path());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + folder_ + "/kubelet.sock", grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    say(server_ ? "serving" : "failed");
    return server_ != nullptr;
  }

  void stop() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    plugins_.clear();
    current_.clear();
  }

  grpc::Status Register(grpc::ServerContext* /*context*/, const v1beta1::RegisterRequest* request,
                        v1beta1::Empty* /*answer*/) override {
    const std::lock_guard lock(mutex_);
    say("registered " + request->resource_name());
    plugins_.emplace_back(folder_ + "/" + request->endpoint(), request->resource_name());
    current_[request->resource_name()] = &plugins_.back();
    return grpc::Status::OK;
  }

  Json answer(const Json& command) {
    Plugin* plugin = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = current_.find(command.at("resource").get<std::string>());
      if (found == current_.end()) return {{"error", "no such resource"}};
      plugin = found->second;
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    return command.at("do") == "prefer" ? prefer(plugin->stub(), context, command)
                                        : allocate(plugin->stub(), context, command);
  }

 private:
  static Json prefer(v1beta1::DevicePlugin::Stub& plugin, grpc::ClientContext& context, const Json& command) {
    v1beta1::PreferredAllocationRequest request;
    auto& container = *request.add_container_requests();
    for (const std::string id : command.at("available")) container.add_available_deviceids(id);
    for (const std::string id : command.at("must")) container.add_must_include_deviceids(id);
    container.set_allocation_size(command.at("size"));
    v1beta1::PreferredAllocationResponse response;
    const grpc::Status status = plugin.GetPreferredAllocation(&context, request, &response);
    if (!status.ok()) return {{"error", status.error_message()}};
    const auto& ids = response.container_responses(0).deviceids();
    return {{"ids", std::vector<std::string>(ids.begin(), ids.end())}};
  }

  static Json allocate(v1beta1::DevicePlugin::Stub& plugin, grpc::ClientContext& context, const Json& command) {
    v1beta1::AllocateRequest request;
    for (const Json& ids : command.at("containers")) {
      auto& container = *request.add_container_requests();
      for (const std::string id : ids) container.add_devices_ids(id);
    }
    v1beta1::AllocateResponse response;
    const grpc::Status status = plugin.Allocate(&context, request, &response);
    if (!status.ok()) return {{"error", status.error_message()}};
    Json containers = Json::array();
    for (const auto& container : response.container_responses()) {
      Json given{{"env", Json::array()}, {"mounts", Json::array()}, {"cdi", Json::array()}};
      for (const auto& [name, value] : container.envs()) given["env"].push_back(name + "=" + value);
      for (const auto& mount : container.mounts()) {
        given["mounts"].push_back({{"hostPath", mount.host_path()},
                                   {"containerPath", mount.container_path()},
                                   {"options", {mount.read_only() ? "ro" : "rw", "bind", "rprivate"}}});
      }
      for (const auto& device : container.cdi_devices()) given["cdi"].push_back(device.name());
      containers.push_back(std::move(given));
    }
    return {{"containers", containers}};
  }

  const std::string folder_;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  // From here on guarded by mutex_, while the server runs. A plugin that has registered again leaves its old stream.
  std::list<Plugin> plugins_;
  std::map<std::string, Plugin*> current_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Kubelet kubelet(argv[1]);
  if (!kubelet.start()) return 1;
  std::fstream commands(argv[2]);  // for reading and writing: it has no end
  for (std::string line; std::getline(commands, line);) {
    const Json command = Json::parse(line);
    if (command.at("do") == "restart") {
      kubelet.stop();
      if (!kubelet.start()) return 1;
      say("answer {}");
    } else {
      say("answer " + kubelet.answer(command).dump());
    }
  }
  return 0;
}
