// SPDX-License-Identifier: Apache-2.0
// For tests of channels: sees which objects the driver makes in the simulated kernel module, and freezes channels.
//
// `see_objects_of` replaces the import `ioctl` of a program that links the driver, or of libcuda.so.1. Only contexts
// that are made after that have channels here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/resource_manager_abi.h"
#include "os/imported_function.h"
#include "sim/cuda/resource_manager.h"

namespace gpumux::sim {

struct SeenObject {
  int fd = -1;
  std::uint32_t client = 0;
  std::uint32_t parent = 0;
  std::uint32_t handle = 0;
  std::uint32_t kind = 0;  // its class
};
using SeenObjects = std::vector<SeenObject>;

// In the order in which they were made, without those that were freed. Never destroyed.
class ObjectList {
 public:
  static ObjectList& get() {
    static auto* list = new ObjectList;
    return *list;
  }

  // The objects that `is_wanted`.
  template <class Condition>
  SeenObjects find(Condition is_wanted) {
    const std::lock_guard lock(mutex_);
    SeenObjects found;
    std::copy_if(objects_.begin(), objects_.end(), std::back_inserter(found), is_wanted);
    return found;
  }
  void add(const SeenObject& object) {
    const std::lock_guard lock(mutex_);
    objects_.push_back(object);
  }
  void remove(std::uint32_t client, std::uint32_t handle) {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> gone{handle};
    for (std::size_t i = 0; i < gone.size(); ++i) {
      for (const SeenObject& object : objects_) {
        if (object.client == client && object.parent == gone[i]) gone.push_back(object.handle);
      }
    }
    std::erase_if(objects_, [&](const SeenObject& object) {
      return object.client == client && std::find(gone.begin(), gone.end(), object.handle) != gone.end();
    });
  }

 private:
  std::mutex mutex_;
  SeenObjects objects_;
};

// The calls that were seen go to this function. With libcuda.so.1 it is the former function of the import.
using Ioctl = int (*)(int, unsigned long, void*);
inline std::atomic<Ioctl> the_module{&resource_manager_ioctl};

inline int seeing_ioctl(int fd, unsigned long request, void* argument) {
  const int result = the_module.load()(fd, request, argument);
  if (result != 0) return result;
  if (request == cuda::kRmAllocWithRights) {
    const auto& call = *static_cast<const cuda::NVOS64_PARAMETERS*>(argument);
    if (call.status == cuda::NV_OK)
      ObjectList::get().add({fd, call.hRoot, call.hObjectParent, call.hObjectNew, call.hClass});
  }
  if (request == cuda::kRmFree) {
    const auto& call = *static_cast<const cuda::NVOS00_PARAMETERS*>(argument);
    if (call.status == cuda::NV_OK) ObjectList::get().remove(call.hRoot, call.hObjectOld);
  }
  return result;
}

// `inside`: any address of the program or library. Returns where the calls went before: in a program that links the
// driver's objects to the system, in libcuda.so.1 to the simulated module.
inline os::FormerImport see_objects_of(const void* inside) {
  const auto former = os::replace_import(inside, "ioctl", reinterpret_cast<const void*>(&seeing_ioctl));
  return former ? *former : os::FormerImport();
}
// Of this program. False: it does not import `ioctl`, as with a sanitizer that is linked into it.
inline bool see_own_objects() { return see_objects_of(reinterpret_cast<const void*>(&seeing_ioctl)).slots != 0; }

inline SeenObjects seen_groups() {
  return ObjectList::get().find([](const SeenObject& object) { return object.kind == cuda::KEPLER_CHANNEL_GROUP_A; });
}
inline SeenObjects seen_channels() {
  return ObjectList::get().find([](const SeenObject& object) { return cuda::is_channel_class(object.kind); });
}
inline SeenObjects channels_of(const SeenObject& group) {
  return ObjectList::get().find(
      [&group](const SeenObject& object) { return object.client == group.client && object.parent == group.handle; });
}
// Of a group or a channel.
inline SeenObject subdevice_of(const SeenObject& object) {
  const SeenObjects groups = seen_groups();
  const auto group = std::find_if(groups.begin(), groups.end(), [&object](const SeenObject& each) {
    return each.client == object.client && each.handle == object.parent;
  });
  const std::uint32_t device = group != groups.end() ? group->parent : object.parent;
  const SeenObjects found = ObjectList::get().find([&](const SeenObject& each) {
    return each.client == object.client && each.parent == device && each.kind == cuda::NV20_SUBDEVICE_0;
  });
  return found.empty() ? SeenObject() : found.front();
}

// A control call of an object: its status, or NV_ERR_NOT_SUPPORTED if there was none.
template <class Parameters>
std::uint32_t control(const SeenObject& object, std::uint32_t command, Parameters* parameters) {
  cuda::NVOS54_PARAMETERS call{};
  call.hClient = object.client;
  call.hObject = object.handle;
  call.cmd = command;
  call.params = reinterpret_cast<std::uint64_t>(parameters);
  call.paramsSize = sizeof *parameters;
  return the_module.load()(object.fd, cuda::kRmControl, &call) == 0 ? call.status : cuda::NV_ERR_NOT_SUPPORTED;
}

// Disables or enables channels of one GPU, in as many calls as it takes. The first status that is not NV_OK.
inline std::uint32_t set_disabled(const SeenObjects& channels, bool disable) {
  constexpr std::size_t kMost = cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES;
  for (std::size_t first = 0; first < channels.size(); first += kMost) {
    cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS list{};
    list.bDisable = disable ? 1 : 0;
    for (std::size_t i = first; i < std::min(first + kMost, channels.size()); ++i) {
      list.hClientList[list.numChannels] = channels[i].client;
      list.hChannelList[list.numChannels++] = channels[i].handle;
    }
    const SeenObject subdevice = subdevice_of(channels[first]);
    const std::uint32_t status = control(subdevice, cuda::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &list);
    if (status != cuda::NV_OK) return status;
  }
  return cuda::NV_OK;
}
inline std::uint32_t freeze(const SeenObjects& channels) { return set_disabled(channels, true); }
inline std::uint32_t thaw(const SeenObjects& channels) { return set_disabled(channels, false); }

}  // namespace gpumux::sim
