// SPDX-License-Identifier: Apache-2.0
// Goal: the driver makes the objects in the kernel module that the real one makes, and the module answers as the real
// one does. Method: this program's import `ioctl` leads to the simulated module, past a list of the objects. Machines
// with other settings are those of helper processes (test_process.cc).
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include "sim/cuda/device_facts.h"
#include "sim/cuda/process.h"
#include "sim/cuda/test_helper.h"
#include "sim/cuda/test_machine.h"
#include "sim/cuda/test_resource_manager.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

constexpr std::uint32_t kInvalidArgument = 0x1f;
constexpr std::uint32_t kInvalidCommand = 0x24;

class ChannelsTest : public SimTest {
 protected:
  void SetUp() override {
    if (!see_own_objects()) GTEST_SKIP() << "this program does not import ioctl";
    SimTest::SetUp();
  }
  void TearDown() override {
    if (!IsSkipped()) SimTest::TearDown();
    EXPECT_TRUE(seen_groups().empty());
    EXPECT_TRUE(seen_channels().empty());
  }
};

std::vector<std::size_t> sizes(const SeenObjects& groups) {
  std::vector<std::size_t> found;
  for (const SeenObject& group : groups) found.push_back(channels_of(group).size());
  return found;
}

TEST_F(ChannelsTest, EachContextHasFourGroups) {
  EXPECT_EQ(sizes(seen_groups()), (std::vector<std::size_t>{8, 4, 4, 4}));
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0));
  const SeenObjects groups = seen_groups();
  EXPECT_EQ(sizes(groups), (std::vector<std::size_t>{8, 4, 4, 4, 8, 4, 4, 4}));
  EXPECT_EQ(seen_channels().size(), 40u);
  for (const SeenObject& group : groups) {
    EXPECT_EQ(group.client, groups[0].client);
    EXPECT_EQ(group.parent, groups[0].parent) << "one device for a GPU";
  }
  EXPECT_CUDA(cuCtxDestroy_v2(second));
  EXPECT_EQ(sizes(seen_groups()), (std::vector<std::size_t>{8, 4, 4, 4}));
}

TEST_F(ChannelsTest, TheSubdeviceSaysWhichGpuItIs) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 1));
  const SeenObjects groups = seen_groups();
  ASSERT_EQ(groups.size(), 8u);
  for (const int device : {0, 1}) {
    const SeenObject subdevice = subdevice_of(groups[device == 0 ? 0 : 4]);
    ASSERT_NE(subdevice.handle, 0u);
    NV2080_CTRL_GPU_GET_ID_PARAMS id{};
    EXPECT_EQ(control(subdevice, NV2080_CTRL_CMD_GPU_GET_ID, &id), NV_OK);
    char name[32] = "";
    ASSERT_CUDA(cuDeviceGetPCIBusId(name, sizeof name, device));
    char expected[32] = "";
    std::snprintf(expected, sizeof expected, "%04x:%02x:%02x.0", id.gpuId >> 16, id.gpuId >> 8 & 0xff, id.gpuId & 0xff);
    EXPECT_STREQ(name, expected);
  }
  EXPECT_CUDA(cuCtxDestroy_v2(second));
}

TEST_F(ChannelsTest, FreedObjectsAreGone) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0));
  const SeenObjects groups = seen_groups();
  const SeenObjects gone = channels_of(groups[4]);
  const SeenObject subdevice = subdevice_of(groups[0]);
  const auto disable = [&](const SeenObject& channel) {
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS list{};
    list.numChannels = 1;
    list.hClientList[0] = channel.client;
    list.hChannelList[0] = channel.handle;
    return control(subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &list);
  };
  for (const SeenObject& channel : gone) EXPECT_EQ(disable(channel), NV_OK);
  EXPECT_CUDA(cuCtxDestroy_v2(second));
  for (const SeenObject& channel : gone) EXPECT_EQ(disable(channel), NV_ERR_INVALID_OBJECT_HANDLE);
  EXPECT_EQ(disable(groups[0]), NV_ERR_INVALID_OBJECT_HANDLE) << "a group is no channel";
}

TEST_F(ChannelsTest, ChannelsOfAnotherGpuAreRefused) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 1));
  const SeenObjects groups = seen_groups();
  const SeenObject theirs = channels_of(groups[4])[0];
  NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS list{};
  list.bDisable = 1;
  list.numChannels = 1;
  list.hClientList[0] = theirs.client;
  list.hChannelList[0] = theirs.handle;
  EXPECT_EQ(control(subdevice_of(groups[0]), NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &list),
            NV_ERR_INVALID_OBJECT_HANDLE);
  EXPECT_CUDA(cuCtxDestroy_v2(second));
}

TEST_F(ChannelsTest, WrongCallsAreRefused) {
  const SeenObject subdevice = subdevice_of(seen_groups()[0]);
  NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS list{};
  list.numChannels = NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES + 1;
  EXPECT_EQ(control(subdevice, NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &list), kInvalidArgument);
  EXPECT_EQ(control(subdevice, 0x20801000, &list), kInvalidCommand);
  EXPECT_EQ(control(seen_channels()[0], NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, &list), kInvalidCommand);
  EXPECT_EQ(control(SeenObject{.fd = subdevice.fd, .client = subdevice.client, .handle = 1}, NV2080_CTRL_CMD_GPU_GET_ID,
                    &list),
            NV_ERR_INVALID_OBJECT_HANDLE);

  NVOS54_PARAMETERS call{};
  EXPECT_EQ(resource_manager_ioctl(subdevice.fd, kRmControl + 0x10, &call), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(resource_manager_ioctl(subdevice.fd, kRmControl, nullptr), -1);
  EXPECT_EQ(errno, EFAULT);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ASSERT_EQ(::write(pipe[1], "abc", 3), 3);
  int waiting = 0;
  EXPECT_EQ(resource_manager_ioctl(pipe[0], FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 3) << "the system's answer";
  ::close(pipe[0]);
  ::close(pipe[1]);
  EXPECT_EQ(resource_manager_ioctl(pipe[0], FIONREAD, &waiting), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(ChannelsTest, ACopyOfTheDescriptorWorksToo) {
  SeenObject subdevice = subdevice_of(seen_groups()[0]);
  subdevice.fd = ::dup(subdevice.fd);
  NV2080_CTRL_GPU_GET_ID_PARAMS id{};
  EXPECT_EQ(control(subdevice, NV2080_CTRL_CMD_GPU_GET_ID, &id), NV_OK);
  EXPECT_EQ(id.gpuId, pci_bus_of(0) << 8);
  ::close(subdevice.fd);
}

// The shorter form of the call, and handles that the caller chooses.
TEST_F(ChannelsTest, TheCallerMayNameObjects) {
  const SeenObject group = seen_groups()[0];
  NVOS21_PARAMETERS call{};
  call.hRoot = group.client;
  call.hObjectParent = group.handle;
  call.hObjectNew = 77;
  call.hClass = 0xc86f;
  EXPECT_EQ(resource_manager_ioctl(group.fd, kRmAlloc, &call), 0);
  EXPECT_EQ(call.status, NV_OK);
  EXPECT_EQ(call.hObjectNew, 77u);
  EXPECT_EQ(resource_manager_ioctl(group.fd, kRmAlloc, &call), 0);
  EXPECT_NE(call.status, NV_OK) << "it is taken";
  NVOS00_PARAMETERS free{};
  free.hRoot = group.client;
  free.hObjectOld = 77;
  EXPECT_EQ(resource_manager_ioctl(group.fd, kRmFree, &free), 0);
  EXPECT_EQ(free.status, NV_OK);
  EXPECT_EQ(resource_manager_ioctl(group.fd, kRmFree, &free), 0);
  EXPECT_EQ(free.status, NV_ERR_INVALID_OBJECT_HANDLE);
}

TEST_F(ChannelsTest, SettingsSayWhatAMachineCan) {
  const std::string directory = std::string(std::getenv("GPUMUX_SIM_DIR")) + "-other";
  const auto answers = [&directory](const std::string& setting) {
    std::filesystem::remove_all(directory);
    Helper helper({"GPUMUX_SIM_DIR=" + directory, setting});
    helper.get("context 0");
    const std::string channels = helper.get("channels");
    return channels + ", " + helper.get("freeze") + ' ' + helper.get("thaw");
  };
  EXPECT_EQ(answers("GPUMUX_SIM_INTERRUPTS=yes"), "20 4, 0 0");
  EXPECT_EQ(answers("GPUMUX_SIM_INTERRUPTS=refused"), "20 4, 86 86");
  EXPECT_EQ(answers("GPUMUX_SIM_INTERRUPTS=unknown"), "0 4, 0 0");
  EXPECT_EQ(answers("GPUMUX_SIM_CHANNELS=80"), "80 4, 0 0");
  EXPECT_EQ(answers("GPUMUX_SIM_CHANNELS=4"), "4 4, 0 0");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpumux::sim
