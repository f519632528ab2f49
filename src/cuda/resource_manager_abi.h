// SPDX-License-Identifier: Apache-2.0
// The part of the ABI between libcuda and NVIDIA's kernel module that time slices need. Names and values are those of
// NVIDIA's open kernel modules (github.com/NVIDIA/open-gpu-kernel-modules: nvos.h, nv_escape.h, ctrla06c.h).
//
// Work of one context goes to the GPU through a channel group. Where several have work, the GPU runs one for its time
// slice and then the next one's. libcuda sets the slice of each group that it makes, by a control call of the kind that
// needs no privilege.
#pragma once

#include <linux/ioctl.h>

#include <cstdint>

namespace gpumux::cuda {

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

struct NVA06C_CTRL_TIMESLICE_PARAMS {
  std::uint64_t timesliceUs;
};

inline constexpr std::uint32_t NV_OK = 0;
inline constexpr std::uint32_t NVA06C_CTRL_CMD_SET_TIMESLICE = 0xa06c0103;
// The ioctl of a control call: NV_ESC_RM_CONTROL of NV_IOCTL_MAGIC.
inline constexpr unsigned long kRmControl = _IOWR('F', 0x2a, NVOS54_PARAMETERS);

}  // namespace gpumux::cuda
