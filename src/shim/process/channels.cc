// SPDX-License-Identifier: Apache-2.0
#include "shim/process/channels.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "cuda/resource_manager_abi.h"
#include "os/imported_function.h"

namespace gpumux::shim {
namespace {

int call_kernel(int descriptor, unsigned long request, void* argument) {
  return ::ioctl(descriptor, request, argument);
}

constinit Channels g_channels(call_kernel);
static_assert(std::is_trivially_destructible_v<Channels>, "libcuda makes and frees objects until the process is gone");
constinit std::atomic<Channels::Ioctl> g_ioctl{call_kernel};

// libcuda calls this for ioctl.
int drivers_ioctl(int descriptor, unsigned long request, void* argument) {
  channels().coming(request, argument);
  // acquire: pairs with the release in watch_channels.
  const int result = g_ioctl.load(std::memory_order_acquire)(descriptor, request, argument);
  const int error = errno;
  channels().seen(descriptor, request, argument, result);
  errno = error;
  return result;
}

bool matters(std::uint32_t kind) {
  return kind == cuda::NV01_DEVICE_0 || kind == cuda::NV20_SUBDEVICE_0 || kind == cuda::KEPLER_CHANNEL_GROUP_A ||
         cuda::is_channel_class(kind);
}

bool is_kernels_group(const cuda::NVOS21_PARAMETERS& made) {
  if (made.hClass != cuda::KEPLER_CHANNEL_GROUP_A || made.pAllocParms == 0) return false;
  const auto* const group = reinterpret_cast<const cuda::NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS*>(made.pAllocParms);
  return group->engineType >= cuda::NV2080_ENGINE_TYPE_GR0 && group->engineType <= cuda::NV2080_ENGINE_TYPE_GR7;
}

}  // namespace

Channels& channels() { return g_channels; }

void watch_channels(const cuda::Driver& driver) {
  if (driver.cuInit == nullptr) return;
  // Before the first call is seen: a thread may fork in the middle of it.
  if (::pthread_atfork(nullptr, nullptr, [] { channels().forget(); }) != 0) return;
  const auto inside = reinterpret_cast<const void*>(driver.cuInit);
  const auto former = os::replace_import(inside, "ioctl", reinterpret_cast<const void*>(drivers_ioctl));
  // A tool that has been there before us, or a driver that plays the kernel module itself, goes on seeing the calls.
  if (!former || former->function == nullptr) return;
  if (former->function == reinterpret_cast<const void*>(drivers_ioctl)) return;
  const auto call = reinterpret_cast<Channels::Ioctl>(reinterpret_cast<std::uintptr_t>(former->function));
  g_ioctl.store(call, std::memory_order_release);
  channels().set_call(call);
}

std::uint32_t gpu_id(const cuda::Driver& driver, cuda::CUdevice device) {
  char name[32] = {};  // domain:bus:device.function, in hexadecimal digits
  if (driver.cuDeviceGetPCIBusId == nullptr ||
      driver.cuDeviceGetPCIBusId(name, sizeof name, device) != cuda::CUDA_SUCCESS)
    return 0;
  constexpr int kHexadecimal = 16;
  char* at = name;
  std::uint32_t numbers[3] = {};
  for (std::uint32_t& number : numbers) {
    number = static_cast<std::uint32_t>(std::strtoul(at, &at, kHexadecimal));
    if (*at != 0) ++at;
  }
  return (numbers[0] & 0xffff) << 16 | (numbers[1] & 0xff) << 8 | (numbers[2] & 0xff);
}

// ---- objects ------------------------------------------------------------------------------------

void Channels::coming(unsigned long request, const void* argument) {
  if (static_cast<std::uint32_t>(request) != static_cast<std::uint32_t>(cuda::kRmFree) || argument == nullptr) return;
  const auto& going = *static_cast<const cuda::NVOS00_PARAMETERS*>(argument);
  freed(going.hRoot, going.hObjectOld);
}

void Channels::seen(int descriptor, unsigned long request, const void* argument, int result) {
  if (result != 0 || argument == nullptr) return;
  // The kernel takes 32 bits of it; a program that keeps it in an int has the others set.
  const auto number = static_cast<std::uint32_t>(request);
  if (number == static_cast<std::uint32_t>(cuda::kRmAlloc) ||
      number == static_cast<std::uint32_t>(cuda::kRmAllocWithRights)) {
    const auto& made_one = *static_cast<const cuda::NVOS21_PARAMETERS*>(argument);  // both begin so
    const std::uint32_t status = number == static_cast<std::uint32_t>(cuda::kRmAlloc)
                                     ? made_one.status
                                     : static_cast<const cuda::NVOS64_PARAMETERS*>(argument)->status;
    if (status != cuda::NV_OK || !matters(made_one.hClass)) return;
    made(descriptor,
         {made_one.hRoot, made_one.hObjectParent, made_one.hObjectNew, made_one.hClass, is_kernels_group(made_one)});
  }
}

void Channels::made(int descriptor, const Object& object) {
  const Change change(*this);
  const auto is_its = [&](const Client& client) { return client.number == object.client; };
  if (std::none_of(lists().clients.begin(), lists().clients.end(), is_its))
    lists().clients.push_back(
        {object.client, os::KeptDescriptor(os::FileDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0))), descriptor});
  lists().objects.push_back(object);
  if (const Object* const group = find(object.client, object.parent); group != nullptr && group->is_for_kernels)
    lists().objects.back().is_for_kernels = true;
  if (object.kind == cuda::NV20_SUBDEVICE_0) return learn_gpu(object);
  if (!cuda::is_channel_class(object.kind)) return;
  Gpu* const gpu = gpu_of(object);
  if (gpu == nullptr) return;
  has_seen_channels_ = true;
  if (!gpu->is_frozen) return;
  // If that is refused, work of this one channel may run while the others stand still. It has none yet, and only a
  // thread that is inside the gate already could give it some.
  cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS parameters{};
  parameters.bDisable = 1;
  parameters.numChannels = 1;
  parameters.hClientList[0] = object.client;
  parameters.hChannelList[0] = object.number;
  static_cast<void>(control(*gpu, cuda::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &parameters, sizeof parameters));
}

void Channels::freed(std::uint32_t client, std::uint32_t number) {
  const Change change(*this);
  if (client == number) {  // the client itself, and so all that it has
    std::erase_if(lists().objects, [&](const Object& object) { return object.client == client; });
    std::erase_if(lists().gpus, [&](const Gpu& gpu) { return gpu.client == client; });
    std::erase_if(lists().clients, [&](const Client& one) { return one.number == client; });
    return;
  }
  // An object goes with all below it. Parents are made before their children.
  std::vector<std::uint32_t> gone{number};
  std::erase_if(lists().objects, [&](const Object& object) {
    if (object.client != client) return false;
    const bool goes = std::find(gone.begin(), gone.end(), object.parent) != gone.end() || object.number == number;
    if (goes) gone.push_back(object.number);
    return goes;
  });
  std::erase_if(lists().gpus, [&](const Gpu& gpu) {
    return gpu.client == client && std::find(gone.begin(), gone.end(), gpu.subdevice) != gone.end();
  });
}

const Channels::Object* Channels::find(std::uint32_t client, std::uint32_t number) const {
  for (const Object& object : lists().objects) {
    if (object.client == client && object.number == number) return &object;
  }
  return nullptr;
}

// A channel is below a group or its device, and a group below its device.
Channels::Gpu* Channels::gpu_of(const Object& channel) {
  const Object* above = find(channel.client, channel.parent);
  if (above != nullptr && above->kind == cuda::KEPLER_CHANNEL_GROUP_A) above = find(above->client, above->parent);
  if (above == nullptr || above->kind != cuda::NV01_DEVICE_0) return nullptr;
  for (Gpu& gpu : lists().gpus) {
    if (gpu.client == above->client && gpu.device == above->number) return &gpu;
  }
  return nullptr;
}

int Channels::descriptor_of(std::uint32_t client) const {
  for (const Client& one : lists().clients) {
    if (one.number != client) continue;
    if (const int kept = one.kept.get(); kept >= 0) return kept;
    return one.kept.is_lost() && one.kept.is_same(one.drivers) ? one.drivers : -1;
  }
  return -1;
}

void Channels::learn_gpu(const Object& subdevice) {
  cuda::NV2080_CTRL_GPU_GET_ID_PARAMS id{};
  Gpu gpu{.id = 0,
          .client = subdevice.client,
          .device = subdevice.parent,
          .subdevice = subdevice.number,
          .is_frozen = false};
  if (!control(gpu, cuda::NV2080_CTRL_CMD_GPU_GET_ID, &id, sizeof id)) return;
  gpu.id = id.gpuId;
  // Another client of the process may have the same GPU.
  gpu.is_frozen = std::any_of(lists().gpus.begin(), lists().gpus.end(),
                              [&](const Gpu& other) { return other.id == gpu.id && other.is_frozen; });
  lists().gpus.push_back(gpu);
}

// The one of this process, made when there is something to remember.
Channels::Lists& Channels::lists() const {
  if (lists_ == nullptr) lists_ = new Lists;
  return *lists_;
}

// ---- controls -----------------------------------------------------------------------------------

bool Channels::control(const Gpu& gpu, std::uint32_t command, void* parameters, std::uint32_t size) const {
  const int descriptor = descriptor_of(gpu.client);
  if (descriptor < 0) return false;
  cuda::NVOS54_PARAMETERS call{.hClient = gpu.client,
                               .hObject = gpu.subdevice,
                               .cmd = command,
                               .flags = 0,
                               .params = reinterpret_cast<std::uintptr_t>(parameters),
                               .paramsSize = size,
                               .status = cuda::NV_OK};
  return call_(descriptor, cuda::kRmControl, &call) == 0 && call.status == cuda::NV_OK;
}

Channels::Outcome Channels::freeze(std::uint32_t gpu) {
  Progress freezing, undoing;
  const Outcome outcome = set_enabled(gpu, false, freezing);
  if (outcome == Outcome::kDone) return outcome;
  // A part may be frozen. And channels that are made later must not be frozen at birth.
  const bool is_undone = set_enabled(gpu, true, undoing) != Outcome::kRefused;
  return freezing.accepted && !is_undone ? Outcome::kStuck : outcome;
}

Channels::Outcome Channels::thaw(std::uint32_t gpu) {
  Progress progress;
  return set_enabled(gpu, true, progress);
}

Channels::Outcome Channels::set_enabled(std::uint32_t id, bool enabled, Progress& progress) {
  const Change change(*this);
  for (Gpu& gpu : lists().gpus) {
    if (gpu.id == id) gpu.is_frozen = !enabled;
  }
  bool is_done = set_enabled(id, enabled, true, progress);
  if (is_done || enabled) is_done = set_enabled(id, enabled, false, progress) && is_done;
  if (!is_done) return Outcome::kRefused;
  if (progress.any) return Outcome::kDone;
  return has_seen_channels_ ? Outcome::kNoneNow : Outcome::kNoChannels;
}

// Where the module refuses to enable several at once, one of them may be gone without our knowing. If it enables any of
// them alone, those that it refuses are forgotten.
bool Channels::enable_each(const Gpu& through, const cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS& all,
                           std::vector<Object>& gone) const {
  std::vector<Object> refused;
  for (std::uint32_t i = 0; i < all.numChannels; ++i) {
    cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS one{};
    one.numChannels = 1;
    one.hClientList[0] = all.hClientList[i];
    one.hChannelList[0] = all.hChannelList[i];
    if (!control(through, cuda::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &one, sizeof one))
      refused.push_back({all.hClientList[i], 0, all.hChannelList[i], 0});
  }
  if (refused.size() == all.numChannels) return false;
  gone.insert(gone.end(), refused.begin(), refused.end());
  return true;
}

// As many calls as it takes. Freezing ends with the first one that is refused.
bool Channels::set_enabled(std::uint32_t id, bool enabled, bool for_kernels, Progress& progress) {
  cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS parameters{};
  parameters.bDisable = enabled ? 0 : 1;
  const Gpu* through = nullptr;
  std::vector<Object> gone;
  bool is_done = true;
  const auto call = [&] {
    if (parameters.numChannels == 0) return;
    const auto accepted = [&] {
      return control(*through, cuda::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &parameters, sizeof parameters);
    };
    if (accepted() || (enabled && enable_each(*through, parameters, gone))) {
      progress.accepted = true;
    } else {
      is_done = false;
    }
    parameters.numChannels = 0;
  };
  for (const Object& object : lists().objects) {
    if (!cuda::is_channel_class(object.kind) || object.is_for_kernels != for_kernels) continue;
    const Gpu* const gpu = gpu_of(object);
    if (gpu == nullptr || gpu->id != id) continue;
    progress.any = true;
    through = gpu;
    parameters.hClientList[parameters.numChannels] = object.client;
    parameters.hChannelList[parameters.numChannels++] = object.number;
    if (parameters.numChannels == cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES) call();
    if (!is_done && !enabled) return false;
  }
  call();
  for (const Object& lost : gone) {
    std::erase_if(lists().objects,
                  [&](const Object& object) { return object.client == lost.client && object.number == lost.number; });
  }
  return is_done;
}

void Channels::forget() {
  // If a thread was in the middle of a change when the program forked, the lists are left as they are.
  if (!is_changing_.load(std::memory_order_relaxed)) delete lists_;
  lists_ = nullptr;
  has_seen_channels_ = false;
  is_changing_.store(false, std::memory_order_relaxed);
  mutex_.reset_after_fork();
}

}  // namespace gpumux::shim
