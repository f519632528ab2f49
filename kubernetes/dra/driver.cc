// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/dra/driver.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <utility>

#include "kubernetes/dra/slice.h"
#include "kubernetes/kubelet_api/dra.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_health.grpc.pb.h"
#include "kubernetes/kubelet_api/dra_v1beta1.grpc.pb.h"
#include "kubernetes/kubelet_api/plugin_registration.grpc.pb.h"
#include "kubernetes/kubelet_api/socket_server.h"

namespace gpumux::kubernetes {
namespace {

namespace dra = ::k8s::io::kubelet::pkg::apis::dra;

constexpr char kPluginType[] = "DRAPlugin";
constexpr const char* kServices[] = {"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"};

// As kCallLimit in device_plugin/plugin.cc: an answer takes milliseconds, and longer while the other side starts.
constexpr auto kCallLimit = std::chrono::seconds(5);
// How often the sockets are looked for.
constexpr auto kLookEvery = std::chrono::seconds(1);
// How often an open stream is asked whether the kubelet has cancelled it.
constexpr auto kCancelledCheck = std::chrono::seconds(1);
// The kubelet takes a device's health for unknown 30 seconds after the last word of it.
constexpr auto kSayAgainAfter = std::chrono::seconds(10);
// The kubelet's limit for the reason.
constexpr std::size_t kMostReason = 1024;

ClaimName name_of(const dra::v1::Claim& claim) { return {claim.namespace_(), claim.name(), claim.uid()}; }

// Calls of v1 and v1beta1: they differ in their names only.
template <class Base>
class ClaimService final : public Base {
 public:
  explicit ClaimService(Claims& claims) : claims_(claims) {}

  grpc::Status NodePrepareResources(grpc::ServerContext* /*context*/,
                                    const dra::v1::NodePrepareResourcesRequest* request,
                                    dra::v1::NodePrepareResourcesResponse* answer) override {
    for (const auto& claim : request->claims()) {
      auto& prepared = (*answer->mutable_claims())[claim.uid()];
      const auto devices = claims_.prepare(name_of(claim));
      if (!devices) {
        prepared.set_error(devices.error().message());
        continue;
      }
      for (const PreparedDevice& device : *devices) {
        auto& made = *prepared.add_devices();
        made.add_request_names(device.request);
        made.set_pool_name(device.pool);
        made.set_device_name(device.device);
        for (const std::string& name : device.cdi_devices) made.add_cdi_device_ids(name);
        if (!device.share_id.empty()) made.set_share_id(device.share_id);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status NodeUnprepareResources(grpc::ServerContext* /*context*/,
                                      const dra::v1::NodeUnprepareResourcesRequest* request,
                                      dra::v1::NodeUnprepareResourcesResponse* answer) override {
    for (const auto& claim : request->claims()) {
      auto& unprepared = (*answer->mutable_claims())[claim.uid()];
      if (const auto done = claims_.unprepare(name_of(claim)); !done) unprepared.set_error(done.error().message());
    }
    return grpc::Status::OK;
  }

 private:
  Claims& claims_;
};

// The health of devices as the driver knows it, for the threads of gRPC.
struct Health {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<DeviceState> devices;  // from here on guarded by mutex
  std::uint64_t version = 1;         // of devices
};

class HealthService final : public v1alpha1::DRAResourceHealth::Service {
 public:
  HealthService(const std::string& pool, Health& health) : pool_(pool), health_(health) {}

  // Ends the streams at once.
  void close() {
    const std::lock_guard lock(health_.mutex);
    is_closed_ = true;
    health_.changed.notify_all();
  }

  grpc::Status NodeWatchResources(grpc::ServerContext* context, const v1alpha1::NodeWatchResourcesRequest* /*request*/,
                                  grpc::ServerWriter<v1alpha1::NodeWatchResourcesResponse>* writer) override {
    std::uint64_t sent = 0;
    auto said = std::chrono::steady_clock::now();
    while (!context->IsCancelled()) {
      v1alpha1::NodeWatchResourcesResponse list;
      {
        std::unique_lock lock(health_.mutex);
        const bool is_new =
            health_.changed.wait_for(lock, kCancelledCheck, [&] { return is_closed_ || health_.version != sent; });
        if (is_closed_) break;
        if (!is_new && std::chrono::steady_clock::now() < said + kSayAgainAfter) continue;
        sent = health_.version;
        fill(list);
      }
      said = std::chrono::steady_clock::now();
      if (!writer->Write(list)) break;
    }
    return grpc::Status::OK;
  }

 private:
  // REQUIRES: the health's mutex is held.
  void fill(v1alpha1::NodeWatchResourcesResponse& list) const {
    for (const DeviceState& state : health_.devices) {
      auto& device = *list.add_devices();
      device.mutable_device()->set_pool_name(pool_);
      device.mutable_device()->set_device_name(state.device);
      device.set_health(state.sick.empty() ? v1alpha1::HEALTHY : v1alpha1::UNHEALTHY);
      device.set_last_updated_time(std::time(nullptr));
      device.set_message(state.sick.substr(0, kMostReason));
    }
  }

  const std::string& pool_;
  Health& health_;
  bool is_closed_ = false;  // guarded by the health's mutex
};

class RegistrationService final : public pluginregistration::Registration::Service {
 public:
  RegistrationService(std::string endpoint, const Driver::Report& report, std::atomic<bool>& is_registered)
      : endpoint_(std::move(endpoint)), report_(report), is_registered_(is_registered) {}

  grpc::Status GetInfo(grpc::ServerContext* /*context*/, const pluginregistration::InfoRequest* /*request*/,
                       pluginregistration::PluginInfo* info) override {
    info->set_type(kPluginType);
    info->set_name(kDraDriver);
    info->set_endpoint(endpoint_);
    for (const char* service : kServices) info->add_supported_versions(service);
    return grpc::Status::OK;
  }

  grpc::Status NotifyRegistrationStatus(grpc::ServerContext* /*context*/,
                                        const pluginregistration::RegistrationStatus* status,
                                        pluginregistration::RegistrationStatusResponse* /*answer*/) override {
    report_(status->plugin_registered()
                ? std::string("registered ") + kDraDriver + " at the kubelet"
                : std::string("the kubelet does not register ") + kDraDriver + ": " + status->error());
    is_registered_ = status->plugin_registered();
    return grpc::Status::OK;
  }

 private:
  const std::string endpoint_;
  const Driver::Report& report_;
  std::atomic<bool>& is_registered_;
};

// All that serves for one pair of sockets.
struct Serving {
  Serving(const DriverSettings& settings, Claims& claims, Health& health_state, const Driver::Report& report,
          std::atomic<bool>& is_registered)
      : v1(claims),
        v1beta1(claims),
        health(settings.pool, health_state),
        registration(settings.service_socket(), report, is_registered) {}
  ~Serving() {
    health.close();
    registration_socket.reset();
    service_socket.reset();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  // The services first: the kubelet calls them as soon as it finds the registration.
  base::Status begin(const DriverSettings& settings) {
    for (const std::string& socket : {settings.service_socket(), settings.registration_socket()}) {
      std::error_code failed;  // what fails is seen below
      std::filesystem::create_directories(std::filesystem::path(socket).parent_path(), failed);
    }
    auto served = SocketServer::begin(settings.service_socket(), {&v1, &v1beta1, &health});
    if (!served) return tl::unexpected(served.error());
    service_socket = std::move(*served);
    served = SocketServer::begin(settings.registration_socket(), {&registration});
    if (!served) return tl::unexpected(served.error());
    registration_socket = std::move(*served);
    return {};
  }
  bool is_there() const { return service_socket->is_there() && registration_socket->is_there(); }

  ClaimService<dra::v1::DRAPlugin::Service> v1;
  ClaimService<dra::v1beta1::DRAPlugin::Service> v1beta1;
  HealthService health;
  RegistrationService registration;
  std::unique_ptr<SocketServer> service_socket;
  std::unique_ptr<SocketServer> registration_socket;
};

}  // namespace

std::string DriverSettings::registration_socket() const {
  return kubelet + "/plugins_registry/" + kDraDriver + "-reg.sock";
}
std::string DriverSettings::service_socket() const { return kubelet + "/plugins/" + kDraDriver + "/dra.sock"; }
std::string DriverSettings::claims_folder() const { return kubelet + "/plugins/" + kDraDriver + "/claims"; }

class Driver::Implementation {
 public:
  Implementation(DriverSettings settings, Claims& claims, Report report)
      : settings_(std::move(settings)), claims_(claims), report_(std::move(report)) {}

  base::Status run() {
    std::string last_failure;
    std::unique_lock lock(mutex_);
    while (!is_stopped_) {
      lock.unlock();
      const base::Status step = look();
      if (!step && step.error().message() != last_failure) report_(step.error().message());
      last_failure = step ? "" : step.error().message();
      lock.lock();
      stopped_.wait_for(lock, kLookEvery, [&] { return is_stopped_; });
    }
    serving_.reset();
    return {};
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    stopped_.notify_all();
  }

  bool is_registered() const { return is_registered_; }

  void set_health(std::vector<DeviceState> devices) {
    const std::lock_guard lock(health_.mutex);
    if (health_.devices == devices) return;
    health_.devices = std::move(devices);
    ++health_.version;
    health_.changed.notify_all();
  }

 private:
  base::Status look() {
    if (serving_ && serving_->is_there()) return {};
    // Shut down first: its end removes the names that the next one takes.
    serving_.reset();
    auto serving = std::make_unique<Serving>(settings_, claims_, health_, report_, is_registered_);
    GPUMUX_TRY(serving->begin(settings_));
    serving_ = std::move(serving);
    return {};
  }

  const DriverSettings settings_;
  Claims& claims_;
  const Report report_;
  Health health_;
  std::atomic<bool> is_registered_ = false;
  std::unique_ptr<Serving> serving_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool is_stopped_ = false;  // guarded by mutex_
};

Driver::Driver(DriverSettings settings, Claims& claims, Report report)
    : implementation_(std::make_unique<Implementation>(std::move(settings), claims, std::move(report))) {}

Driver::~Driver() = default;

base::Status Driver::run() { return implementation_->run(); }

void Driver::stop() { implementation_->stop(); }

bool Driver::is_registered() const { return implementation_->is_registered(); }

void Driver::set_health(std::vector<DeviceState> devices) { implementation_->set_health(std::move(devices)); }

base::Status ask_driver(const DriverSettings& settings) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  const auto driver = dra::v1::DRAPlugin::NewStub(channel_to(settings.service_socket()));
  dra::v1::NodePrepareResourcesResponse answer;
  // A request for no claim.
  const grpc::Status status = driver->NodePrepareResources(&context, {}, &answer);
  if (status.ok()) return {};
  return base::fail(base::Code::kUnavailable,
                    "no driver answers on " + settings.service_socket() + ": " + status.error_message());
}

}  // namespace gpumux::kubernetes
