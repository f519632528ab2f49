// SPDX-License-Identifier: Apache-2.0
// The part of the ABI between libcuda and NVIDIA's kernel module that interrupts need. Names and values are those of
// NVIDIA's open kernel modules (github.com/NVIDIA/open-gpu-kernel-modules: nvos.h, nv_escape.h, ctrl2080fifo.h,
// ctrl2080gpu.h, and the classes' headers).
//
// libcuda makes *objects* in the module, each below another one: a client, below it a device (a GPU), below that a
// subdevice and channel groups, and below a group its channels. All work goes to the GPU through channels. An object is
// named by its client's number and its own.
#pragma once

#include <linux/ioctl.h>

#include <cstddef>
#include <cstdint>

namespace gpumux::cuda {

inline constexpr std::uint32_t NV_OK = 0;
inline constexpr std::uint32_t NV_ERR_INVALID_OBJECT_HANDLE = 0x33;
inline constexpr std::uint32_t NV_ERR_NOT_SUPPORTED = 0x56;

// ---- calls ------------------------------------------------------------------------------------------------

inline constexpr unsigned NV_IOCTL_MAGIC = 'F';
inline constexpr unsigned NV_ESC_RM_FREE = 0x29;
inline constexpr unsigned NV_ESC_RM_CONTROL = 0x2a;
inline constexpr unsigned NV_ESC_RM_ALLOC = 0x2b;

// An object and all below it go.
struct NVOS00_PARAMETERS {
  std::uint32_t hRoot;
  std::uint32_t hObjectParent;
  std::uint32_t hObjectOld;
  std::uint32_t status;
};
static_assert(sizeof(NVOS00_PARAMETERS) == 16);

// An object is made. There is a second, longer form (NVOS64_PARAMETERS), which begins in the same way and ends with
// the status, too.
struct NVOS21_PARAMETERS {
  std::uint32_t hRoot;
  std::uint32_t hObjectParent;
  std::uint32_t hObjectNew;  // 0: the module has chosen, and writes it here
  std::uint32_t hClass;
  std::uint64_t pAllocParms;
  std::uint32_t paramsSize;
  std::uint32_t status;
};
static_assert(sizeof(NVOS21_PARAMETERS) == 32);

struct NVOS64_PARAMETERS {
  std::uint32_t hRoot;
  std::uint32_t hObjectParent;
  std::uint32_t hObjectNew;
  std::uint32_t hClass;
  std::uint64_t pAllocParms;
  std::uint64_t pRightsRequested;
  std::uint32_t paramsSize;
  std::uint32_t flags;
  std::uint32_t status;
};
static_assert(sizeof(NVOS64_PARAMETERS) == 48 && offsetof(NVOS64_PARAMETERS, status) == 40);

// A control call of an object.
struct NVOS54_PARAMETERS {
  std::uint32_t hClient;
  std::uint32_t hObject;
  std::uint32_t cmd;
  std::uint32_t flags;
  std::uint64_t params;  // a pointer
  std::uint32_t paramsSize;
  std::uint32_t status;  // NV_OK, or why not
};
static_assert(sizeof(NVOS54_PARAMETERS) == 32);

template <class Parameters>
constexpr unsigned long rm_request(unsigned escape) {
  return _IOC(_IOC_READ | _IOC_WRITE, NV_IOCTL_MAGIC, escape, sizeof(Parameters));
}
inline constexpr unsigned long kRmFree = rm_request<NVOS00_PARAMETERS>(NV_ESC_RM_FREE);
inline constexpr unsigned long kRmControl = rm_request<NVOS54_PARAMETERS>(NV_ESC_RM_CONTROL);
inline constexpr unsigned long kRmAlloc = rm_request<NVOS21_PARAMETERS>(NV_ESC_RM_ALLOC);
inline constexpr unsigned long kRmAllocWithRights = rm_request<NVOS64_PARAMETERS>(NV_ESC_RM_ALLOC);

// ---- classes of objects -----------------------------------------------------------------------------------

inline constexpr std::uint32_t NV01_DEVICE_0 = 0x80;
inline constexpr std::uint32_t NV20_SUBDEVICE_0 = 0x2080;
inline constexpr std::uint32_t KEPLER_CHANNEL_GROUP_A = 0xa06c;
// Each generation has a class of channels of its own, all of which end alike: c46f Turing, c56f Ampere, c86f Hopper,
// c96f and ca6f Blackwell.
constexpr bool is_channel_class(std::uint32_t number) { return (number & 0xff) == 0x6f && number > 0xff; }

// With which a group is made: pAllocParms of that call.
struct NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS {
  std::uint32_t hObjectError;
  std::uint32_t hObjectEccError;
  std::uint32_t hVASpace;
  std::uint32_t engineType;  // that all of its channels are for
  std::uint8_t bIsCallingContextVgpuPlugin;
};
static_assert(sizeof(NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS) == 20);
// Kernels run there; the numbers above are for copies and others.
inline constexpr std::uint32_t NV2080_ENGINE_TYPE_GR0 = 1;
inline constexpr std::uint32_t NV2080_ENGINE_TYPE_GR7 = 8;
inline constexpr std::uint32_t NV2080_ENGINE_TYPE_COPY0 = 9;

// ---- controls of a subdevice ------------------------------------------------------------------------------

// Which GPU it is: 16 bits of its PCI domain, 8 of the bus, 8 of the device.
inline constexpr std::uint32_t NV2080_CTRL_CMD_GPU_GET_ID = 0x20800142;
struct NV2080_CTRL_GPU_GET_ID_PARAMS {
  std::uint32_t gpuId;
};

// Takes channels off the GPU, whatever they run, and keeps them off until they are enabled. The state of running
// kernels is saved as at the end of a time slice. The call returns when none of the channels runs.
inline constexpr std::uint32_t NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS = 0x2080110b;
inline constexpr std::uint32_t NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES = 64;
struct NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS {
  std::uint8_t bDisable;
  std::uint32_t numChannels;
  std::uint8_t bOnlyDisableScheduling;
  std::uint8_t bRewindGpPut;
  alignas(8) std::uint64_t pRunlistPreemptEvent;
  std::uint32_t hClientList[NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES];
  std::uint32_t hChannelList[NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES];
};
static_assert(sizeof(NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS) == 536);

}  // namespace gpumux::cuda
