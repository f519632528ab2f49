// SPDX-License-Identifier: Apache-2.0
// The channels through which this process's work goes to its GPUs, and taking them off a GPU.
//
// libcuda makes channels by ioctls of NVIDIA's kernel module. We see these calls pass (os/imported_function.h:
// libcuda's ioctl goes through us, no other code's does), and remember the objects that they make and free. To freeze
// the process's work on a GPU we make one more call of that kind, which needs no privilege. It disables all of the
// process's channels on that GPU: kernels stop in the middle and copies between two pieces, and both go on when the
// channels are enabled again (cuda/resource_manager_abi.h).
//
// Where the call is refused, or libcuda makes its channels in a way that we do not know, nothing is frozen, and nothing
// else is different.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/lock.h"
#include "cuda/driver.h"
#include "cuda/resource_manager_abi.h"
#include "os/kept_descriptor.h"

namespace gpumux::shim {

class Channels {
 public:
  using Ioctl = int (*)(int descriptor, unsigned long request, void* argument);

  enum class Outcome : std::uint8_t {
    kDone,
    kNoChannels,  // none was ever seen: a client of MPS has none of its own
    kNoneNow,     // its contexts on that GPU are gone, or going
    kStuck,       // refused, and so was undoing a part of it: to be thawed until that works
    kRefused,     // by the kernel module, or the program has closed its descriptor
  };

  // `call` makes the calls. Objects live as long as the process, and have no destructor.
  explicit constexpr Channels(Ioctl call) : call_(call) {}
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Where the calls go from now on. Before the first one is seen.
  void set_call(Ioctl call) { call_ = call; }

  // Any thread: libcuda is about to make this call. An object is forgotten before it is freed: the module refuses calls
  // that name a freed channel, and its number may be given to another object at once.
  void coming(unsigned long request, const void* argument);

  // Any thread: libcuda has made this call, with this result.
  void seen(int descriptor, unsigned long request, const void* argument, int result);

  // A GPU is named as the kernel module names it (NV2080_CTRL_CMD_GPU_GET_ID): see gpu_id. Freezing returns when
  // nothing of this process runs there, after about a millisecond. Kernels go first, so they are off after half of
  // that. Thawing takes half a millisecond. Either may wait for other calls into the kernel module, so not on a thread
  // that must answer. A channel that is made while its GPU is frozen is frozen before libcuda knows of it. Freezing
  // what is frozen, and thawing what is not, does no harm.
  Outcome freeze(std::uint32_t gpu);
  Outcome thaw(std::uint32_t gpu);

  // In a forked child: the objects are its parent's.
  void forget();

 private:
  struct Object {
    std::uint32_t client;
    std::uint32_t parent;
    std::uint32_t number;
    std::uint32_t kind;           // its class
    bool is_for_kernels = false;  // a group, and its channels
  };
  // The module knows a client by the opened file that made it. The program may close our number for it, or libcuda's:
  // as long as one is left, what is frozen can be thawed.
  struct Client {
    std::uint32_t number;
    os::KeptDescriptor kept;
    int drivers;
  };
  struct Gpu {
    std::uint32_t id;
    std::uint32_t client;
    std::uint32_t device;
    std::uint32_t subdevice;
    bool is_frozen;
  };

  struct Lists {
    std::vector<Client> clients;
    std::vector<Object> objects;  // of the classes that matter
    std::vector<Gpu> gpus;        // one for each subdevice
  };

  Lists& lists() const;
  void made(int descriptor, const Object& object);
  void freed(std::uint32_t client, std::uint32_t number);
  const Object* find(std::uint32_t client, std::uint32_t number) const;
  Gpu* gpu_of(const Object& channel);
  int descriptor_of(std::uint32_t client) const;
  void learn_gpu(const Object& subdevice);
  bool control(const Gpu& gpu, std::uint32_t command, void* parameters, std::uint32_t size) const;
  // Holds the lock, and tells a child that is forked in that time.
  class Change {
   public:
    explicit Change(Channels& channels) : locked_(channels.mutex_), is_changing_(channels.is_changing_) {
      is_changing_.exchange(true, std::memory_order_seq_cst);  // before the change, in the child's copy too
    }
    ~Change() { is_changing_.store(false, std::memory_order_release); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    const base::Locked locked_;
    std::atomic<bool>& is_changing_;
  };
  // How far a change has come.
  struct Progress {
    bool any = false;       // there are channels
    bool accepted = false;  // the module has taken a call
  };
  Outcome set_enabled(std::uint32_t gpu, bool enabled, Progress& progress);
  bool set_enabled(std::uint32_t gpu, bool enabled, bool for_kernels, Progress& progress);
  bool enable_each(const Gpu& through, const cuda::NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS& all,
                   std::vector<Object>& gone) const;

  Ioctl call_;
  base::Mutex mutex_;
  std::atomic<bool> is_changing_{false};
  mutable Lists* lists_ = nullptr;
  bool has_seen_channels_ = false;
};

// This process's.
Channels& channels();

// Once, when the driver is loaded and before a context is made: from now on that driver's calls are seen.
void watch_channels(const cuda::Driver& driver);

// The kernel module's name of a device. 0: the driver does not say where it is.
std::uint32_t gpu_id(const cuda::Driver& driver, cuda::CUdevice device);

}  // namespace gpumux::shim
