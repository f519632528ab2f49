// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/plugin.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "kubernetes/kubelet_api/device_plugin.grpc.pb.h"
#include "kubernetes/kubelet_api/socket_server.h"
#include "os/file_descriptor.h"

namespace gpumux::kubernetes {
namespace {

constexpr char kVersion[] = "v1beta1";
constexpr char kKubeletSocket[] = "kubelet.sock";

// A call is answered within milliseconds. A kubelet that is just starting may take longer.
constexpr auto kCallLimit = std::chrono::seconds(5);
// How often an open stream is asked whether the kubelet has cancelled it.
constexpr auto kCancelledCheck = std::chrono::seconds(1);
// Changes of the folder wake run() at once. It looks this often all the same: the folder itself may be replaced.
constexpr int kLookEveryMs = 1000;
// After a failure. A guess: a kubelet that is starting listens soon, and each try is one call.
constexpr int kRetryEveryMs = 200;

grpc::Status to_grpc(const base::Error& error) {
  const auto code = error.code == base::Code::kInvalid     ? grpc::StatusCode::INVALID_ARGUMENT
                    : error.code == base::Code::kExhausted ? grpc::StatusCode::RESOURCE_EXHAUSTED
                                                           : grpc::StatusCode::UNAVAILABLE;
  return {code, error.message()};
}

// The GPUs and seats that the plugin knows of, for the threads of gRPC.
struct Knowledge {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<SharedGpu> gpus;  // from here on guarded by mutex
  std::uint64_t version = 1;    // of gpus
  Seats seats;
};

class Service final : public v1beta1::DevicePlugin::Service {
 public:
  Service(const DevicePluginSettings& settings, const DevicePlugin::Give& give, Knowledge& knowledge)
      : settings_(settings), give_(give), knowledge_(knowledge) {}

  // Ends the streams at once. A server's shutdown alone ends them after its limit, and the kubelet waits.
  void close() {
    const std::lock_guard lock(knowledge_.mutex);
    is_closed_ = true;
    knowledge_.changed.notify_all();
  }

  grpc::Status GetDevicePluginOptions(grpc::ServerContext* /*context*/, const v1beta1::Empty* /*request*/,
                                      v1beta1::DevicePluginOptions* options) override {
    options->set_get_preferred_allocation_available(true);
    return grpc::Status::OK;
  }

  grpc::Status ListAndWatch(grpc::ServerContext* context, const v1beta1::Empty* /*request*/,
                            grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) override {
    std::uint64_t sent = 0;
    while (!context->IsCancelled()) {
      v1beta1::ListAndWatchResponse list;
      {
        std::unique_lock lock(knowledge_.mutex);
        if (!knowledge_.changed.wait_for(lock, kCancelledCheck,
                                         [&] { return is_closed_ || knowledge_.version != sent; }))
          continue;
        if (is_closed_) break;
        sent = knowledge_.version;
        list = device_list(knowledge_.gpus, settings_.shares_per_gpu);
      }
      if (!writer->Write(list)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status GetPreferredAllocation(grpc::ServerContext* /*context*/,
                                      const v1beta1::PreferredAllocationRequest* request,
                                      v1beta1::PreferredAllocationResponse* answer) override {
    Seats seats;
    {
      const std::lock_guard lock(knowledge_.mutex);
      seats = knowledge_.seats;
    }
    auto preferred = preferred_allocation(*request, settings_.placement, seats);
    if (!preferred) return to_grpc(preferred.error());
    *answer = std::move(*preferred);
    return grpc::Status::OK;
  }

  grpc::Status Allocate(grpc::ServerContext* /*context*/, const v1beta1::AllocateRequest* request,
                        v1beta1::AllocateResponse* answer) override {
    for (const auto& container : request->container_requests()) {
      const auto gpus =
          shares_by_gpu({container.devices_ids().begin(), container.devices_ids().end()}, settings_.same_gpu);
      if (!gpus) return to_grpc(gpus.error());
      auto given = give_(*gpus);
      if (!given) return to_grpc(given.error());
      *answer->add_container_responses() = std::move(*given);
    }
    return grpc::Status::OK;
  }

  grpc::Status PreStartContainer(grpc::ServerContext* /*context*/, const v1beta1::PreStartContainerRequest* /*request*/,
                                 v1beta1::PreStartContainerResponse* /*answer*/) override {
    return grpc::Status::OK;  // nothing is asked for
  }

 private:
  const DevicePluginSettings& settings_;
  const DevicePlugin::Give& give_;
  Knowledge& knowledge_;
  bool is_closed_ = false;  // guarded by the knowledge's mutex
};

// The service behind its socket.
struct Serving {
  Serving(const DevicePluginSettings& settings, const DevicePlugin::Give& give, Knowledge& knowledge)
      : service(settings, give, knowledge) {}
  ~Serving() {
    service.close();
    socket.reset();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  Service service;
  std::unique_ptr<SocketServer> socket;
};

}  // namespace

class DevicePlugin::Implementation {
 public:
  Implementation(DevicePluginSettings settings, Give give, Report report)
      : settings_(std::move(settings)),
        give_(std::move(give)),
        report_(std::move(report)),
        stopped_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  base::Status run() {
    if (!stopped_) return base::fail_errno(ENFILE, "cannot make an event to be stopped by");
    if (settings_.shares_per_gpu == 0 || settings_.shares_per_gpu > kMaxSharesPerGpu)
      return base::fail(base::Code::kInvalid, std::to_string(settings_.shares_per_gpu) + " shares of a GPU: 1 to " +
                                                  std::to_string(kMaxSharesPerGpu) + " are possible");
    while (true) {
      watch_folder();
      const base::Status step = look();
      if (!step && step.error().message() != last_failure_) report_(step.error().message());
      last_failure_ = step ? "" : step.error().message();
      if (wait(step ? kLookEveryMs : kRetryEveryMs)) break;
    }
    serving_.reset();
    return {};
  }

  void stop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t wrote = ::write(stopped_.get(), &one, sizeof one);
  }

  void set_gpus(std::vector<SharedGpu> gpus) {
    const std::lock_guard lock(knowledge_.mutex);
    knowledge_.gpus = std::move(gpus);
    ++knowledge_.version;
    knowledge_.changed.notify_all();
  }

  void set_seats(Seats seats) {
    const std::lock_guard lock(knowledge_.mutex);
    knowledge_.seats = std::move(seats);
  }

 private:
  std::string kubelet_socket() const { return settings_.folder + "/" + kKubeletSocket; }

  // Begins what the rule says is missing.
  base::Status look() {
    if (!serving_ || !serving_->socket->is_there()) {
      // Shut down first: its end removes the name that the next one takes.
      serving_.reset();
      registered_at_.reset();
      auto serving = std::make_unique<Serving>(settings_, give_, knowledge_);
      auto socket = SocketServer::begin(settings_.folder + "/" + settings_.socket, {&serving->service});
      if (!socket) return tl::unexpected(socket.error());
      serving->socket = std::move(*socket);
      serving_ = std::move(serving);
    }
    const auto kubelet = identity_of(kubelet_socket());
    if (!kubelet)
      return base::fail(base::Code::kUnavailable, "no kubelet listens on " + kubelet_socket() + "; waiting for it");
    if (registered_at_ == kubelet) return {};
    GPUMUX_TRY(register_at_kubelet());
    registered_at_ = kubelet;
    report_("registered " + settings_.resource + " at the kubelet");
    return {};
  }

  base::Status register_at_kubelet() {
    const auto kubelet = v1beta1::Registration::NewStub(channel_to(kubelet_socket()));
    v1beta1::RegisterRequest request;
    request.set_version(kVersion);
    request.set_endpoint(settings_.socket);
    request.set_resource_name(settings_.resource);
    request.mutable_options()->set_get_preferred_allocation_available(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    v1beta1::Empty answer;
    const grpc::Status status = kubelet->Register(&context, request, &answer);
    if (status.ok()) return {};
    return base::fail(base::Code::kUnavailable, "the kubelet does not register " + settings_.resource + ": " +
                                                    status.error_message() + "; trying again");
  }

  // A watch of a folder that was replaced tells nothing, so it is made afresh. Without one run() looks by time.
  void watch_folder() {
    const auto folder = identity_of(settings_.folder);
    if (watch_ && folder && watched_ino_ == folder->inode) return;
    watch_ = os::FileDescriptor(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    watched_ino_ = folder ? folder->inode : 0;
    if (::inotify_add_watch(watch_.get(), settings_.folder.c_str(), IN_CREATE | IN_DELETE | IN_MOVE | IN_ATTRIB) < 0)
      watch_.reset();
  }

  // Until the folder changes, or the time is up. Whether stop() was called.
  bool wait(int limit_ms) {
    pollfd waiting[2] = {{stopped_.get(), POLLIN, 0}, {watch_ ? watch_.get() : -1, POLLIN, 0}};
    ::poll(waiting, 2, limit_ms);
    char events[4096];
    while (watch_ && ::read(watch_.get(), events, sizeof events) > 0) {
    }
    return waiting[0].revents != 0;
  }

  const DevicePluginSettings settings_;
  const Give give_;
  const Report report_;
  const os::FileDescriptor stopped_;
  Knowledge knowledge_;
  os::FileDescriptor watch_;
  ino_t watched_ino_ = 0;
  std::unique_ptr<Serving> serving_;
  std::optional<FileIdentity> registered_at_;
  std::string last_failure_;
};

DevicePlugin::DevicePlugin(DevicePluginSettings settings, Give give, Report report)
    : implementation_(std::make_unique<Implementation>(std::move(settings), std::move(give), std::move(report))) {}

DevicePlugin::~DevicePlugin() = default;

base::Status DevicePlugin::run() { return implementation_->run(); }

void DevicePlugin::stop() { implementation_->stop(); }

void DevicePlugin::set_gpus(std::vector<SharedGpu> gpus) { implementation_->set_gpus(std::move(gpus)); }

void DevicePlugin::set_seats(Seats seats) { implementation_->set_seats(std::move(seats)); }

base::Status ask_device_plugin(const DevicePluginSettings& settings) {
  const std::string path = settings.folder + "/" + settings.socket;
  const auto plugin = v1beta1::DevicePlugin::NewStub(channel_to(path));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
  v1beta1::DevicePluginOptions options;
  const grpc::Status status = plugin->GetDevicePluginOptions(&context, v1beta1::Empty(), &options);
  if (status.ok()) return {};
  return base::fail(base::Code::kUnavailable, "the plugin of " + settings.resource + " does not answer on " + path +
                                                  ": " + status.error_message());
}

}  // namespace gpumux::kubernetes
