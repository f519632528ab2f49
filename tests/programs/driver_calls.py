# SPDX-License-Identifier: Apache-2.0
"""A program of the CUDA driver API that does what standard input says, line by line, and says the code of each call.

    init             cuInit
    context GPU      makes one, with the kernels
    spin SECONDS     launches a kernel that runs for so long
    fault            launches a kernel that touches what is not mapped
    sync             waits for all of it
"""

import ctypes
import sys

PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry gpumux_spin(.param .u64 nanoseconds) { ret; }
.visible .entry gpumux_fill(.param .u64 dst, .param .u64 count, .param .u32 value) { ret; }
"""

driver = ctypes.CDLL("libcuda.so.1")
module = ctypes.c_void_p()


def make_context(gpu):
    return driver.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, int(gpu)) \
        or driver.cuModuleLoadData(ctypes.byref(module), PTX)


def launch(name, *parameters):
    function = ctypes.c_void_p()
    pointers = (ctypes.c_void_p * len(parameters))(*[ctypes.addressof(one) for one in parameters])
    return driver.cuModuleGetFunction(ctypes.byref(function), module, name) \
        or driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)


CALLS = {
    "init": lambda: driver.cuInit(0),
    "context": make_context,
    "spin": lambda seconds: launch(b"gpumux_spin", ctypes.c_uint64(int(float(seconds) * 1e9))),
    "fault": lambda: launch(b"gpumux_fill", ctypes.c_uint64(4096), ctypes.c_uint64(1), ctypes.c_uint32(1)),
    "sync": driver.cuCtxSynchronize,
}

for line in sys.stdin:
    command, *arguments = line.split()
    print(command, CALLS[command](*arguments), flush=True)
