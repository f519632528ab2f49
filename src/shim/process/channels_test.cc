// SPDX-License-Identifier: Apache-2.0
// Goal: exactly the channels that exist are frozen and thawed, each through a descriptor of its own client. Method: the
// test plays libcuda, whose calls are seen, and the kernel module, which answers the calls that Channels makes.
#include "shim/process/test_channels.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/resource_manager_abi.h"
#include "os/file_descriptor.h"

namespace gpumux::shim {
namespace {

using namespace gpumux::cuda;
using Key = std::pair<std::uint32_t, std::uint32_t>;  // client and object
using Outcome = Channels::Outcome;

constexpr std::uint32_t kHopper = 0xc86f;
constexpr std::uint32_t kClientClass = 0x41;
constexpr std::uint32_t kMemoryClass = 0x40;  // ends in nothing that a channel's ends in

struct Call {
  int descriptor = -1;
  std::uint32_t client = 0;
  std::uint32_t subdevice = 0;
  bool disables = false;
  std::vector<Key> channels;
};

// The kernel module, as far as Channels calls it.
class Module {
 public:
  Module() { the_module = this; }
  ~Module() { the_module = nullptr; }

  static int ioctl(int descriptor, unsigned long request, void* argument) {
    EXPECT_EQ(request, kRmControl);
    return the_module->control(descriptor, *static_cast<NVOS54_PARAMETERS*>(argument));
  }

  std::map<Key, std::uint32_t> gpus;  // of each subdevice
  std::set<Key> disabled;
  std::vector<Call> calls;         // that disable or enable
  std::size_t refuse_after = ~0u;  // that disable: so many are done, and the others refused
  bool fails = false;              // all calls
  bool refuses_to_enable = false;
  std::optional<Key> unknown;      // each call that names this channel is refused
  std::atomic<bool> holds{false};  // a call is held
  std::atomic<bool> is_held{false};

 private:
  int control(int descriptor, NVOS54_PARAMETERS& call) {
    while (holds) is_held = true;
    if (fails) return -1;
    const auto gpu = gpus.find({call.hClient, call.hObject});
    if (gpu == gpus.end()) return call.status = NV_ERR_INVALID_OBJECT_HANDLE, 0;
    if (call.cmd == NV2080_CTRL_CMD_GPU_GET_ID) {
      EXPECT_EQ(call.paramsSize, sizeof(NV2080_CTRL_GPU_GET_ID_PARAMS));
      reinterpret_cast<NV2080_CTRL_GPU_GET_ID_PARAMS*>(call.params)->gpuId = gpu->second;
      return 0;
    }
    EXPECT_EQ(call.cmd, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS);
    EXPECT_EQ(call.paramsSize, sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS));
    const auto& list = *reinterpret_cast<const NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS*>(call.params);
    EXPECT_GT(list.numChannels, 0u);
    EXPECT_LE(list.numChannels, NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES);
    Call made{descriptor, call.hClient, call.hObject, list.bDisable != 0, {}};
    for (std::uint32_t i = 0; i < list.numChannels; ++i)
      made.channels.emplace_back(list.hClientList[i], list.hChannelList[i]);
    calls.push_back(made);
    if (made.disables && refuse_after-- == 0) return refuse_after = 0, call.status = NV_ERR_NOT_SUPPORTED, 0;
    if (!made.disables && refuses_to_enable) return call.status = NV_ERR_NOT_SUPPORTED, 0;
    if (unknown && std::find(made.channels.begin(), made.channels.end(), *unknown) != made.channels.end())
      return call.status = NV_ERR_INVALID_OBJECT_HANDLE, 0;
    for (const Key& channel : made.channels) {
      if (made.disables) disabled.insert(channel);
      if (!made.disables) disabled.erase(channel);
    }
    return 0;
  }

  static inline Module* the_module = nullptr;
};

class ChannelsTest : public ::testing::Test {
 protected:
  // A file that stands for the module's. All openings of a device look alike; those of these files do not.
  static os::FileDescriptor open_file() { return os::FileDescriptor(::memfd_create("module", MFD_CLOEXEC)); }

  void alloc(std::uint32_t client, std::uint32_t parent, std::uint32_t number, std::uint32_t kind,
             const void* parameters = nullptr, std::uint32_t status = NV_OK, int result = 0) {
    NVOS64_PARAMETERS call{};
    call.hRoot = client;
    call.hObjectParent = parent;
    call.hObjectNew = number;
    call.hClass = kind;
    call.pAllocParms = reinterpret_cast<std::uint64_t>(parameters);
    call.status = status;
    channels.seen(file.get(), kRmAllocWithRights, &call, result);
  }
  // The shorter form, with a request number whose upper half is set, as if it had been in an int.
  void alloc_short(std::uint32_t client, std::uint32_t parent, std::uint32_t number, std::uint32_t kind,
                   std::uint32_t status = NV_OK) {
    NVOS21_PARAMETERS call{};
    call.hRoot = client;
    call.hObjectParent = parent;
    call.hObjectNew = number;
    call.hClass = kind;
    call.status = status;
    channels.seen(file.get(), static_cast<unsigned long>(static_cast<int>(kRmAlloc)), &call, 0);
  }
  void free(std::uint32_t client, std::uint32_t number) {
    NVOS00_PARAMETERS call{};
    call.hRoot = client;
    call.hObjectOld = number;
    channels.coming(kRmFree, &call);
    channels.seen(file.get(), kRmFree, &call, 0);
  }

  // Each client numbers its objects by itself: a device, its subdevice below it, and groups and channels.
  void make_device(std::uint32_t client, std::uint32_t device, std::uint32_t gpu) {
    module.gpus[{client, device + 1}] = gpu;
    alloc(client, client, device, NV01_DEVICE_0);
    alloc(client, device, device + 1, NV20_SUBDEVICE_0);
  }
  void make_group(std::uint32_t client, std::uint32_t device, std::uint32_t group,
                  std::uint32_t engine = NV2080_ENGINE_TYPE_COPY0) {
    NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS parameters{};
    parameters.engineType = engine;
    alloc(client, device, group, KEPLER_CHANNEL_GROUP_A, &parameters);
  }
  void make_channels(std::uint32_t client, std::uint32_t group, std::uint32_t first, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) alloc(client, group, first + i, kHopper);
  }
  // The channels that freezing this GPU disables. It is thawed again.
  std::set<Key> frozen(std::uint32_t gpu) {
    EXPECT_EQ(channels.freeze(gpu), Outcome::kDone);
    const std::set<Key> found = module.disabled;
    EXPECT_EQ(channels.thaw(gpu), Outcome::kDone);
    EXPECT_TRUE(module.disabled.empty());
    return found;
  }

  Module module;
  TestChannels channels{&Module::ioctl};
  os::FileDescriptor file = open_file();
};

constexpr std::uint32_t kClient = 0xc1d00001;
constexpr std::uint32_t kOther = 0xc1d00002;
constexpr std::uint32_t kGpu = 0x1900;
constexpr std::uint32_t kGpu2 = 0x10003b00;

TEST_F(ChannelsTest, WithoutChannelsNothingIsDone) {
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kNoChannels);
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20);
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kNoChannels);
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kNoChannels);
  EXPECT_TRUE(module.calls.empty());
}

TEST_F(ChannelsTest, AChannelThatIsMadeAfterNoneWasThereRuns) {
  make_device(kClient, 10, kGpu);
  ASSERT_EQ(channels.freeze(kGpu), Outcome::kNoChannels);
  alloc(kClient, 10, 21, kHopper);
  EXPECT_TRUE(module.disabled.empty());
}

TEST_F(ChannelsTest, ChannelsLieBelowAGroupOrTheDevice) {
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20);
  make_channels(kClient, 20, 21, 2);
  alloc(kClient, 10, 30, kHopper);
  alloc(kClient, 99, 31, kHopper);       // below something unknown
  alloc(kClient, 10, 32, kMemoryClass);  // no channel
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}, {kClient, 22}, {kClient, 30}}));
}

TEST_F(ChannelsTest, BothFormsOfTheCallAreSeen) {
  module.gpus[{kClient, 11}] = kGpu;
  alloc_short(kClient, kClient, 10, NV01_DEVICE_0);
  alloc_short(kClient, 10, 11, NV20_SUBDEVICE_0);
  alloc_short(kClient, 10, 20, KEPLER_CHANNEL_GROUP_A);
  alloc_short(kClient, 20, 21, kHopper);
  alloc(kClient, 20, 22, kHopper);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}, {kClient, 22}}));
}

TEST_F(ChannelsTest, CallsThatFailedMakeNothing) {
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20);
  make_channels(kClient, 20, 21, 1);
  alloc(kClient, 20, 22, kHopper, nullptr, NV_ERR_NOT_SUPPORTED);
  alloc(kClient, 20, 23, kHopper, nullptr, NV_OK, -1);
  alloc_short(kClient, 20, 24, kHopper, NV_ERR_NOT_SUPPORTED);
  for (const unsigned long request : {kRmAlloc, kRmFree, 0x5401ul}) {  // the last one is another file's
    channels.coming(request, nullptr);
    channels.seen(file.get(), request, nullptr, 0);
  }
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}}));
}

TEST_F(ChannelsTest, AnObjectGoesWithAllBelowIt) {
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20);
  make_group(kClient, 10, 30);
  make_channels(kClient, 20, 21, 3);
  make_channels(kClient, 30, 31, 3);
  free(kClient, 22);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}, {kClient, 23}, {kClient, 31}, {kClient, 32}, {kClient, 33}}));
  free(kClient, 20);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 31}, {kClient, 32}, {kClient, 33}}));
  free(kClient, 20);  // once more: nothing is left of it
  free(kClient, 77);  // never seen
  free(kClient, 10);
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kNoneNow);
  // The numbers are used again.
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20);
  make_channels(kClient, 20, 21, 1);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}}));
}

// The module frees it only after that, and may then give its number to another object.
TEST_F(ChannelsTest, AnObjectIsForgottenBeforeItIsFreed) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 2);
  NVOS00_PARAMETERS call{};
  call.hRoot = kClient;
  call.hObjectOld = 21;
  channels.coming(kRmFree, &call);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 22}}));
  make_channels(kClient, 10, 21, 1);
  channels.seen(file.get(), kRmFree, &call, 0);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}, {kClient, 22}}));
}

TEST_F(ChannelsTest, WithItsSubdeviceAGpuCannotBeReachedAnyMore) {
  make_device(kClient, 10, kGpu);
  alloc(kClient, 10, 21, kHopper);
  free(kClient, 11);
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kNoneNow);
  module.gpus[{kClient, 12}] = kGpu;
  alloc(kClient, 10, 12, NV20_SUBDEVICE_0);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}}));
}

TEST_F(ChannelsTest, AClientGoesWithAllThatItHas) {
  for (const std::uint32_t client : {kClient, kOther}) {
    alloc(0, 0, client, kClientClass);
    make_device(client, 10, kGpu);
    make_channels(client, 10, 21, 1);
  }
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}, {kOther, 21}})) << "both have an object of this number";
  free(kClient, kClient);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kOther, 21}}));
}

TEST_F(ChannelsTest, OtherGpusGoOn) {
  make_device(kClient, 10, kGpu);
  make_device(kClient, 40, kGpu2);
  make_group(kClient, 10, 20);
  make_group(kClient, 40, 50);
  make_channels(kClient, 20, 21, 2);
  make_channels(kClient, 50, 51, 2);
  EXPECT_EQ(frozen(kGpu), (std::set<Key>{{kClient, 21}, {kClient, 22}}));
  module.calls.clear();
  EXPECT_EQ(frozen(kGpu2), (std::set<Key>{{kClient, 51}, {kClient, 52}}));
  for (const Call& call : module.calls) EXPECT_EQ(call.subdevice, 41u);
}

TEST_F(ChannelsTest, ManyChannelsTakeSeveralCallsKernelsFirst) {
  constexpr std::uint32_t kMost = NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES;
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 1000, NV2080_ENGINE_TYPE_COPY0);
  make_group(kClient, 10, 2000, NV2080_ENGINE_TYPE_GR0);
  make_group(kClient, 10, 3000, NV2080_ENGINE_TYPE_GR7);
  make_channels(kClient, 1000, 1001, kMost);
  make_channels(kClient, 2000, 2001, kMost);
  make_channels(kClient, 3000, 3001, 2);
  ASSERT_EQ(channels.freeze(kGpu), Outcome::kDone);
  EXPECT_EQ(module.disabled.size(), 2 * kMost + 2);
  ASSERT_EQ(module.calls.size(), 3u);
  const auto are_for_kernels = [](const Call& call) {
    return std::all_of(call.channels.begin(), call.channels.end(), [](const Key& key) { return key.second > 2000; });
  };
  EXPECT_TRUE(are_for_kernels(module.calls[0]));
  EXPECT_EQ(module.calls[0].channels.size(), kMost);
  EXPECT_TRUE(are_for_kernels(module.calls[1]));
  EXPECT_EQ(module.calls[1].channels.size(), 2u);
  EXPECT_EQ(module.calls[2].channels.size(), kMost);
  ASSERT_EQ(channels.thaw(kGpu), Outcome::kDone);
  EXPECT_TRUE(module.disabled.empty());
}

TEST_F(ChannelsTest, FreezingAndThawingTwiceDoesNoHarm) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 2);
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kDone);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(channels.freeze(kGpu), Outcome::kDone);
  EXPECT_EQ(module.disabled.size(), 2u);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(channels.thaw(kGpu), Outcome::kDone);
  EXPECT_TRUE(module.disabled.empty());
}

TEST_F(ChannelsTest, ARefusalUndoesWhatWasFrozen) {
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20, NV2080_ENGINE_TYPE_GR0);
  make_channels(kClient, 20, 21, 3);
  make_channels(kClient, 10, 31, 3);
  for (const std::size_t done : {std::size_t{0}, std::size_t{1}}) {
    module.refuse_after = done;
    EXPECT_EQ(channels.freeze(kGpu), Outcome::kRefused);
    EXPECT_TRUE(module.disabled.empty());
    make_channels(kClient, 20, 40 + static_cast<std::uint32_t>(done), 1);
    EXPECT_TRUE(module.disabled.empty()) << "it was made as if all were frozen";
  }
  module.refuse_after = ~0u;
  EXPECT_EQ(frozen(kGpu).size(), 8u);
  module.fails = true;
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kRefused);
}

// Otherwise it would refuse to thaw all the others, for ever.
TEST_F(ChannelsTest, AChannelThatIsGoneUnseenKeepsNoOtherFrozen) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 3);
  ASSERT_EQ(frozen(kGpu).size(), 3u);
  ASSERT_EQ(channels.freeze(kGpu), Outcome::kDone);
  module.unknown = Key{kClient, 22};
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kDone);
  EXPECT_EQ(module.disabled, (std::set<Key>{{kClient, 22}}));
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kDone) << "it is named no more";
}

TEST_F(ChannelsTest, AFreezeThatIsHalfDoneAndCannotBeUndoneIsSaid) {
  make_device(kClient, 10, kGpu);
  make_group(kClient, 10, 20, NV2080_ENGINE_TYPE_GR0);
  make_channels(kClient, 20, 21, 3);
  make_channels(kClient, 10, 31, 3);
  module.refuse_after = 1;
  module.refuses_to_enable = true;
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kStuck);
  EXPECT_EQ(module.disabled.size(), 3u);
  module.refuses_to_enable = false;
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kDone);
  EXPECT_TRUE(module.disabled.empty());
}

TEST_F(ChannelsTest, ASubdeviceThatDoesNotSayItsGpuIsNone) {
  alloc(kClient, kClient, 10, NV01_DEVICE_0);
  alloc(kClient, 10, 11, NV20_SUBDEVICE_0);  // the module does not know it
  alloc(kClient, 10, 21, kHopper);
  EXPECT_EQ(channels.freeze(0), Outcome::kNoChannels);
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kNoChannels);
}

TEST_F(ChannelsTest, AChannelThatIsMadeMeanwhileIsFrozenBeforeLibcudaKnowsOfIt) {
  make_device(kClient, 10, kGpu);
  make_device(kClient, 40, kGpu2);
  make_channels(kClient, 10, 21, 1);
  ASSERT_EQ(channels.freeze(kGpu), Outcome::kDone);
  make_channels(kClient, 10, 22, 1);
  EXPECT_TRUE(module.disabled.contains({kClient, 22}));
  make_channels(kClient, 40, 51, 1);
  EXPECT_FALSE(module.disabled.contains({kClient, 51})) << "its GPU is not frozen";
  // Another client of the process comes to the GPU.
  make_device(kOther, 10, kGpu);
  make_group(kOther, 10, 20);
  make_channels(kOther, 20, 21, 1);
  EXPECT_TRUE(module.disabled.contains({kOther, 21}));
  EXPECT_EQ(module.calls.back().client, kOther);
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kDone);
  EXPECT_TRUE(module.disabled.empty());
  make_channels(kClient, 10, 23, 1);
  EXPECT_TRUE(module.disabled.empty());
}

// ---- descriptors

int descriptor_used(Module& module, Channels& channels) {
  module.calls.clear();
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kDone);
  return module.calls.empty() ? -1 : module.calls[0].descriptor;
}

TEST_F(ChannelsTest, AKeptDescriptorIsUsedWhenLibcudasIsClosed) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 1);
  const int kept = descriptor_used(module, channels);
  EXPECT_NE(kept, file.get());
  EXPECT_NE(::fcntl(kept, F_GETFD) & FD_CLOEXEC, 0);
  file.reset();
  EXPECT_EQ(descriptor_used(module, channels), kept);
}

TEST_F(ChannelsTest, LibcudasIsUsedWhenTheKeptOneIsClosedOrReplaced) {
  for (const bool is_replaced : {false, true}) {
    free(kClient, kClient);
    make_device(kClient, 10, kGpu);
    make_channels(kClient, 10, 21, 1);
    const int kept = descriptor_used(module, channels);
    const os::FileDescriptor others = open_file();
    if (is_replaced) {
      ASSERT_EQ(::dup2(others.get(), kept), kept);
    } else {
      ::close(kept);
    }
    EXPECT_EQ(descriptor_used(module, channels), file.get());
    if (is_replaced) {
      EXPECT_EQ(::close(kept), 0) << "it has become the program's";
    }
  }
}

TEST_F(ChannelsTest, WithoutADescriptorTheAnswerIsNo) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 1);
  ::close(descriptor_used(module, channels));
  const os::FileDescriptor others = open_file();
  ASSERT_EQ(::dup2(others.get(), file.get()), file.get());
  module.calls.clear();
  EXPECT_EQ(channels.freeze(kGpu), Outcome::kRefused);
  EXPECT_EQ(channels.thaw(kGpu), Outcome::kRefused);
  EXPECT_TRUE(module.calls.empty());
}

TEST_F(ChannelsTest, EachClientIsReachedThroughItsOwnDescriptor) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 1);
  const int first = descriptor_used(module, channels);
  free(kClient, kClient);
  EXPECT_EQ(::fcntl(first, F_GETFD), -1) << "it is closed with the client";
  file = open_file();
  make_device(kOther, 10, kGpu);
  make_channels(kOther, 10, 21, 1);
  struct stat used {};
  struct stat its {};
  ASSERT_EQ(::fstat(descriptor_used(module, channels), &used), 0);
  ASSERT_EQ(::fstat(file.get(), &its), 0);
  EXPECT_EQ(used.st_ino, its.st_ino);
}

// ---- forks

// The exit code of a child that forgets: 0 if it has no channels then.
int forget_in_child(Module& module, Channels& channels) {
  const pid_t child = ::fork();
  if (child == 0) {
    module.holds = false;
    module.calls.clear();
    channels.forget();
    const bool is_empty = channels.freeze(kGpu) == Outcome::kNoChannels && module.calls.empty();
    ::_exit(is_empty ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST_F(ChannelsTest, AForkedChildHasNone) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 1);
  EXPECT_EQ(forget_in_child(module, channels), 0);
  EXPECT_EQ(frozen(kGpu).size(), 1u) << "the parent's";
}

TEST_F(ChannelsTest, AChildThatIsForkedInTheMiddleOfACallHasNone) {
  make_device(kClient, 10, kGpu);
  make_channels(kClient, 10, 21, 1);
  module.holds = true;
  std::thread freezes([this] { EXPECT_EQ(channels.freeze(kGpu), Outcome::kDone); });
  while (!module.is_held) std::this_thread::yield();
  EXPECT_EQ(forget_in_child(module, channels), 0);
  module.holds = false;
  freezes.join();
  EXPECT_EQ(module.disabled.size(), 1u);
}

// ---- the names of GPUs

const char* g_bus_id = "";

Driver driver_with_bus_id() {
  Driver driver{};
  driver.cuDeviceGetPCIBusId = [](char* name, int bytes, CUdevice) {
    if (*g_bus_id == 0) return CUDA_ERROR_INVALID_DEVICE;
    std::strncpy(name, g_bus_id, static_cast<std::size_t>(bytes));
    return CUDA_SUCCESS;
  };
  return driver;
}

TEST(GpuIdTest, IsMadeOfWhereTheGpuIs) {
  const Driver driver = driver_with_bus_id();
  g_bus_id = "0000:19:00.0";
  EXPECT_EQ(gpu_id(driver, 0), kGpu);
  g_bus_id = "1000:3B:00.0";
  EXPECT_EQ(gpu_id(driver, 0), kGpu2);
  g_bus_id = "00000000:DB:1F.0";
  EXPECT_EQ(gpu_id(driver, 0), 0xdb1fu);
}

TEST(GpuIdTest, IsZeroIfTheDriverDoesNotSay) {
  g_bus_id = "";
  EXPECT_EQ(gpu_id(driver_with_bus_id(), 0), 0u);
  EXPECT_EQ(gpu_id(Driver{}, 0), 0u);
}

}  // namespace
}  // namespace gpumux::shim
