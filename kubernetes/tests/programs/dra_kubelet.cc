// SPDX-License-Identifier: Apache-2.0
// A kubelet as drivers of dynamic resource allocation see it, for scenarios: `dra_kubelet FOLDER COMMANDS`. COMMANDS is
// a FIFO; each line of it is an object, and is answered with a line "answer JSON":
//
//   {"do": "register"}                   {"name": N, "services": [S]}, or {} if there is no driver
//   {"do": "prepare", "uids": [UID]}     {UID: {"error": E, "devices": [{"device": D, "request": R, "cdi": [C]}]}}
//   {"do": "unprepare", "uids": [UID]}   {UID: {"error": E}}
//   {"do": "health"}                     {DEVICE: whether it is healthy}
//
// The claim with uid U is default/claim-U. Each command is a kubelet that has just started: it registers the driver
// first.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kubernetes/kubelet_api/dra.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_health.grpc.pb.h"
#include "kubernetes/kubelet_api/plugin_registration.grpc.pb.h"

namespace {

namespace dra = ::k8s::io::kubelet::pkg::apis::dra::v1;
using Json = nlohmann::json;

constexpr auto kCallLimit = std::chrono::seconds(30);

std::shared_ptr<grpc::Channel> channel_to(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
}

template <class Request>
Request request_for(const Json& command) {
  Request request;
  for (const std::string uid : command.at("uids")) {
    auto& claim = *request.add_claims();
    claim.set_namespace_("default");
    claim.set_name("claim-" + uid);
    claim.set_uid(uid);
  }
  return request;
}

Json prepare(dra::DRAPlugin::Stub& driver, grpc::ClientContext& context, const Json& command) {
  dra::NodePrepareResourcesResponse response;
  const grpc::Status status =
      driver.NodePrepareResources(&context, request_for<dra::NodePrepareResourcesRequest>(command), &response);
  if (!status.ok()) return {{"failed", status.error_message()}};
  Json answer = Json::object();
  for (const auto& [uid, claim] : response.claims()) {
    Json devices = Json::array();
    for (const auto& device : claim.devices()) {
      devices.push_back(
          {{"device", device.device_name()},
           {"request", device.request_names(0)},
           {"cdi", std::vector<std::string>(device.cdi_device_ids().begin(), device.cdi_device_ids().end())}});
    }
    answer[uid] = {{"error", claim.error()}, {"devices", devices}};
  }
  return answer;
}

Json unprepare(dra::DRAPlugin::Stub& driver, grpc::ClientContext& context, const Json& command) {
  dra::NodeUnprepareResourcesResponse response;
  const grpc::Status status =
      driver.NodeUnprepareResources(&context, request_for<dra::NodeUnprepareResourcesRequest>(command), &response);
  if (!status.ok()) return {{"failed", status.error_message()}};
  Json answer = Json::object();
  for (const auto& [uid, claim] : response.claims()) answer[uid] = {{"error", claim.error()}};
  return answer;
}

Json health(const std::string& endpoint, grpc::ClientContext& context) {
  const auto lists = v1alpha1::DRAResourceHealth::NewStub(channel_to(endpoint))->NodeWatchResources(&context, {});
  v1alpha1::NodeWatchResourcesResponse list;
  Json answer = Json::object();
  if (lists->Read(&list)) {
    for (const auto& device : list.devices())
      answer[device.device().device_name()] = device.health() == v1alpha1::HEALTHY;
  }
  context.TryCancel();
  lists->Finish();
  return answer;
}

Json answer_to(const std::string& folder, const Json& command) {
  const auto deadline = std::chrono::system_clock::now() + kCallLimit;
  grpc::ClientContext asked, context;
  asked.set_deadline(deadline);
  context.set_deadline(deadline);
  pluginregistration::PluginInfo info;
  const auto registration =
      pluginregistration::Registration::NewStub(channel_to(folder + "/plugins_registry/gpumux.io-reg.sock"));
  if (!registration->GetInfo(&asked, {}, &info).ok()) return Json::object();
  grpc::ClientContext notified;
  notified.set_deadline(deadline);
  pluginregistration::RegistrationStatus status;
  status.set_plugin_registered(true);
  pluginregistration::RegistrationStatusResponse nothing;
  registration->NotifyRegistrationStatus(&notified, status, &nothing);
  if (command.at("do") == "register") {
    return {{"name", info.name()},
            {"services", std::vector<std::string>(info.supported_versions().begin(), info.supported_versions().end())}};
  }
  if (command.at("do") == "health") return health(info.endpoint(), context);
  const auto driver = dra::DRAPlugin::NewStub(channel_to(info.endpoint()));
  return command.at("do") == "prepare" ? prepare(*driver, context, command) : unprepare(*driver, context, command);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::printf("serving\n");
  std::fflush(stdout);
  std::fstream commands(argv[2]);  // for reading and writing: it has no end
  for (std::string line; std::getline(commands, line);) {
    std::printf("answer %s\n", answer_to(argv[1], Json::parse(line)).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}
