// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/channels.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>

#include "cuda/resource_manager_abi.h"
#include "os/file_descriptor.h"
#include "sim/cuda/process.h"
#include "sim/cuda/resource_manager.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

constexpr std::uint32_t kChannelClass = 0xc86f;         // Hopper's
constexpr std::uint32_t kUnknownChannelClass = 0x1234;  // of no generation

// Of 20 channels the first group has 8, and each of the others 4.
constexpr std::uint32_t kCopyGroups = 3;
constexpr std::uint32_t kKernelPercent = 40;

class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = kept_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  const int kept_ = errno;
};

// The process's client, and what lies below it for each GPU. Never destroyed, as the process's other state.
struct Client {
  std::mutex mutex;
  bool is_tried = false;
  os::FileDescriptor module;
  std::uint32_t handle = 0;                        // 0: there is none
  std::map<std::uint32_t, std::uint32_t> devices;  // by GPU
};

Client& the_client() {
  static auto* client = new Client;
  return *client;
}

// The new object's handle; 0: the module refuses, or is not there.
std::uint32_t make_object(int module, std::uint32_t client, std::uint32_t parent, std::uint32_t kind,
                          const void* parameters = nullptr, std::uint32_t bytes = 0) {
  NVOS64_PARAMETERS call{};
  call.hRoot = client;
  call.hObjectParent = parent;
  call.hClass = kind;
  call.pAllocParms = reinterpret_cast<std::uint64_t>(parameters);
  call.paramsSize = bytes;
  if (::ioctl(module, kRmAllocWithRights, &call) != 0 || call.status != NV_OK) return 0;
  return call.hObjectNew;
}

// REQUIRES: the client's mutex is held.
bool open_client(Client& client, const Machine& machine) {
  if (client.is_tried) return client.handle != 0;
  client.is_tried = true;
  client.module = os::FileDescriptor(::open(machine.state_path().c_str(), O_RDWR | O_CLOEXEC));
  if (client.module) client.handle = make_object(client.module.get(), 0, 0, NV01_ROOT_CLIENT);
  if (client.handle == 0) client.module = os::FileDescriptor();
  return client.handle != 0;
}

// REQUIRES: the client's mutex is held. 0: there is none.
std::uint32_t device_of(Client& client, std::uint32_t gpu) {
  std::uint32_t& device = client.devices[gpu];
  if (device != 0) return device;
  const DeviceParameters parameters{gpu};
  const int module = client.module.get();
  device = make_object(module, client.handle, client.handle, NV01_DEVICE_0, &parameters, sizeof parameters);
  if (device != 0) make_object(module, client.handle, device, NV20_SUBDEVICE_0);
  return device;
}

}  // namespace

void Channels::make(Process& process, std::uint32_t gpu, Freezer& kernels, Freezer& copies) {
  const KeepErrno kept;
  const Settings& settings = process.machine().settings();
  const std::uint32_t kind = settings.interrupts == Interrupts::kUnknown ? kUnknownChannelClass : kChannelClass;
  Client& client = the_client();
  const std::lock_guard lock(client.mutex);
  if (!open_client(client, process.machine())) return;
  device_ = device_of(client, gpu);
  if (device_ == 0) return;
  std::uint32_t left = settings.channels;
  for (std::uint32_t i = 0; i <= kCopyGroups; ++i) {
    GroupParameters parameters{.described = {}, .freezer = i == 0 ? &kernels : &copies};
    parameters.described.engineType = i == 0 ? NV2080_ENGINE_TYPE_GR0 : NV2080_ENGINE_TYPE_COPY0 + i - 1;
    const std::uint32_t group = make_object(client.module.get(), client.handle, device_, KEPLER_CHANNEL_GROUP_A,
                                            &parameters, sizeof parameters);
    if (group == 0) return;
    groups_.push_back(group);
    const std::uint32_t here =
        i == 0 ? std::max(settings.channels * kKernelPercent / 100, 1u) : left / (kCopyGroups + 1 - i);
    for (std::uint32_t n = 0; n < here; ++n) make_object(client.module.get(), client.handle, group, kind);
    left -= here;
  }
}

void Channels::free() {
  const KeepErrno kept;
  Client& client = the_client();
  const std::lock_guard lock(client.mutex);
  for (const std::uint32_t group : groups_) {
    NVOS00_PARAMETERS call{};
    call.hRoot = client.handle;
    call.hObjectParent = device_;
    call.hObjectOld = group;
    ::ioctl(client.module.get(), kRmFree, &call);
  }
  groups_.clear();
}

}  // namespace gpumux::sim
