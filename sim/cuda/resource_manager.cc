// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/resource_manager.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/resource_manager_abi.h"
#include "sim/cuda/device_facts.h"
#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

// More of the module's answers (nvstatuscodes.h).
constexpr std::uint32_t NV_ERR_INSERT_DUPLICATE_NAME = 0x19;
constexpr std::uint32_t NV_ERR_INVALID_ARGUMENT = 0x1f;
constexpr std::uint32_t NV_ERR_INVALID_CLIENT = 0x23;
constexpr std::uint32_t NV_ERR_INVALID_COMMAND = 0x24;
constexpr std::uint32_t NV_ERR_INVALID_OBJECT_PARENT = 0x36;
constexpr std::uint32_t NV_ERR_INVALID_PARAM_STRUCT = 0x3a;

// Handles that the module chooses count up from these, as with the real one.
constexpr std::uint32_t kFirstClient = 0xc1d00001;
constexpr std::uint32_t kFirstObject = 0x5c000001;

using Key = std::pair<std::uint32_t, std::uint32_t>;  // client and object; a client is an object of itself

struct Object {
  std::uint32_t kind = 0;  // its class
  std::uint32_t parent = 0;
  std::uint32_t gpu = 0;       // of a device, and of all below it
  Freezer* freezer = nullptr;  // of a group, and of its channels; may be null
  bool is_channel = false;     // below a group
  bool is_disabled = false;
};

class ResourceManager {
 public:
  explicit ResourceManager(Machine& machine) : settings_(machine.settings()) {}

  // The status is at different places in the two forms.
  template <class Parameters>
  void alloc(Parameters& call) {
    const std::lock_guard lock(mutex_);
    call.status = make(call.hRoot, call.hObjectParent, call.hObjectNew, call.hClass, call.pAllocParms);
  }
  void free(NVOS00_PARAMETERS& call) {
    const std::lock_guard lock(mutex_);
    call.status = remove({call.hRoot, call.hObjectOld});
  }
  void control(NVOS54_PARAMETERS& call) {
    const std::lock_guard lock(mutex_);
    call.status = run(call);
  }

 private:
  std::uint32_t make(std::uint32_t& client, std::uint32_t parent, std::uint32_t& handle, std::uint32_t kind,
                     std::uint64_t parameters);
  std::uint32_t remove(Key key);
  std::uint32_t run(NVOS54_PARAMETERS& call);
  std::uint32_t disable(const Object& subdevice, const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS& list);
  bool all_disabled(const Freezer* freezer) const;

  const Settings& settings_;
  std::mutex mutex_;
  std::map<Key, Object> objects_;
  std::uint32_t clients_ = 0;  // made so far
  std::uint32_t others_ = 0;
};

std::uint32_t ResourceManager::make(std::uint32_t& client, std::uint32_t parent, std::uint32_t& handle,
                                    std::uint32_t kind, std::uint64_t parameters) {
  const bool is_client = kind == NV01_ROOT_CLIENT;
  Object made;
  made.kind = kind;
  made.parent = parent;
  if (!is_client) {
    if (objects_.count({client, client}) == 0) return NV_ERR_INVALID_CLIENT;
    const auto above = objects_.find({client, parent});
    if (above == objects_.end()) return NV_ERR_INVALID_OBJECT_PARENT;
    made.gpu = above->second.gpu;
    made.freezer = above->second.freezer;
    made.is_channel = above->second.kind == KEPLER_CHANNEL_GROUP_A;
  }
  if (kind == NV01_DEVICE_0) {
    if (parameters == 0) return NV_ERR_INVALID_PARAM_STRUCT;
    made.gpu = reinterpret_cast<const DeviceParameters*>(parameters)->gpu;
    if (made.gpu >= settings_.gpus) return NV_ERR_INVALID_ARGUMENT;
  }
  if (kind == KEPLER_CHANNEL_GROUP_A && parameters != 0)
    made.freezer = reinterpret_cast<const GroupParameters*>(parameters)->freezer;
  std::uint32_t number = handle;
  if (number == 0) number = is_client ? kFirstClient + clients_++ : kFirstObject + others_++;
  const Key key{is_client ? number : client, number};
  if (!objects_.emplace(key, made).second) return NV_ERR_INSERT_DUPLICATE_NAME;
  if (is_client) client = number;
  handle = number;
  return NV_OK;
}

std::uint32_t ResourceManager::remove(Key key) {
  if (objects_.count(key) == 0) return NV_ERR_INVALID_OBJECT_HANDLE;
  std::vector<Key> doomed{key};
  for (std::size_t i = 0; i < doomed.size(); ++i) {
    for (const auto& [other, object] : objects_) {
      const bool is_client = other.first == other.second;
      if (!is_client && other.first == doomed[i].first && object.parent == doomed[i].second) doomed.push_back(other);
    }
  }
  for (const Key& each : doomed) {
    const auto found = objects_.find(each);
    Freezer* const freezer = found->second.freezer;
    objects_.erase(found);
    // Work without channels is none, and nothing could thaw it.
    if (freezer != nullptr && freezer->is_frozen() && !all_disabled(freezer)) freezer->thaw();
  }
  return NV_OK;
}

// Of all its channels, and there are some.
bool ResourceManager::all_disabled(const Freezer* freezer) const {
  bool any = false;
  for (const auto& [key, object] : objects_) {
    if (!object.is_channel || object.freezer != freezer) continue;
    if (!object.is_disabled) return false;
    any = true;
  }
  return any;
}

std::uint32_t ResourceManager::run(NVOS54_PARAMETERS& call) {
  const auto found = objects_.find({call.hClient, call.hObject});
  if (found == objects_.end()) return NV_ERR_INVALID_OBJECT_HANDLE;
  const Object& object = found->second;
  if (object.kind != NV20_SUBDEVICE_0) return NV_ERR_INVALID_COMMAND;
  switch (call.cmd) {
    case NV2080_CTRL_CMD_GPU_GET_ID: {
      if (call.params == 0 || call.paramsSize != sizeof(NV2080_CTRL_GPU_GET_ID_PARAMS))
        return NV_ERR_INVALID_PARAM_STRUCT;
      unsigned domain = 0;
      unsigned bus = 0;
      unsigned device = 0;
      if (std::sscanf(pci_bus_id_of(object.gpu).c_str(), "%x:%x:%x", &domain, &bus, &device) != 3)
        return NV_ERR_INVALID_ARGUMENT;
      reinterpret_cast<NV2080_CTRL_GPU_GET_ID_PARAMS*>(call.params)->gpuId = domain << 16 | bus << 8 | device;
      return NV_OK;
    }
    case NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:
      if (call.params == 0 || call.paramsSize != sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS))
        return NV_ERR_INVALID_PARAM_STRUCT;
      return disable(object, *reinterpret_cast<const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS*>(call.params));
    default: return NV_ERR_INVALID_COMMAND;
  }
}

std::uint32_t ResourceManager::disable(const Object& subdevice, const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS& list) {
  const base::TimePoint start = now();
  if (settings_.interrupts == Interrupts::kRefused) return NV_ERR_NOT_SUPPORTED;
  if (list.numChannels > NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES) return NV_ERR_INVALID_ARGUMENT;
  std::vector<Object*> channels;
  for (std::uint32_t i = 0; i < list.numChannels; ++i) {
    const auto found = objects_.find({list.hClientList[i], list.hChannelList[i]});
    if (found == objects_.end() || !found->second.is_channel || found->second.gpu != subdevice.gpu)
      return NV_ERR_INVALID_OBJECT_HANDLE;
    channels.push_back(&found->second);
  }
  const bool disables = list.bDisable != 0;
  // The work goes on at the end of a thaw, and stands still before the end of a freeze.
  if (!disables) sleep_until(start + base::Duration(settings_.thaw_nanoseconds));
  std::vector<Freezer*> freezers;
  for (Object* channel : channels) {
    channel->is_disabled = disables;
    const bool is_new = std::find(freezers.begin(), freezers.end(), channel->freezer) == freezers.end();
    if (channel->freezer != nullptr && is_new) freezers.push_back(channel->freezer);
  }
  for (Freezer* freezer : freezers) {
    if (!disables && freezer->is_frozen()) freezer->thaw();
    if (disables && all_disabled(freezer)) freezer->freeze();
  }
  if (!disables) return NV_OK;
  for (Freezer* freezer : freezers) {
    if (freezer->is_frozen()) freezer->wait_until_still();
  }
  sleep_until(start + base::Duration(settings_.freeze_nanoseconds));
  return NV_OK;
}

// Never destroyed: other threads may be in a call while the program's main returns.
ResourceManager& the_manager(Machine& machine) {
  static auto* manager = new ResourceManager(machine);
  return *manager;
}

}  // namespace

int resource_manager_ioctl(int fd, unsigned long request, void* argument) {
  Process* const process = Process::get();
  if (process == nullptr || !process->machine().is_state_file(fd))
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
  if (argument == nullptr) {
    errno = EFAULT;
    return -1;
  }
  ResourceManager& manager = the_manager(process->machine());
  switch (request) {
    case kRmAlloc: manager.alloc(*static_cast<NVOS21_PARAMETERS*>(argument)); return 0;
    case kRmAllocWithRights: manager.alloc(*static_cast<NVOS64_PARAMETERS*>(argument)); return 0;
    case kRmFree: manager.free(*static_cast<NVOS00_PARAMETERS*>(argument)); return 0;
    case kRmControl: manager.control(*static_cast<NVOS54_PARAMETERS*>(argument)); return 0;
    default: errno = EINVAL; return -1;
  }
}

}  // namespace gpumux::sim
