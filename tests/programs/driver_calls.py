# SPDX-License-Identifier: Apache-2.0
"""A program of the CUDA driver API that does what standard input says, line by line, and says the code of each call.

    init             cuInit
    context GPU      makes one, with the kernels
    opengl GPU       the same for OpenGL
    upload           makes an empty graph, instantiates it and uploads it
    kernel           loads the kernels as a library, and sets two properties of one of them
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

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
INSTANTIATE_FLAG_UPLOAD = 2

driver = ctypes.CDLL("libcuda.so.1")
module = ctypes.c_void_p()


def make_context(gpu, create=driver.cuCtxCreate_v2):
    return create(ctypes.byref(ctypes.c_void_p()), 0, int(gpu)) \
        or driver.cuModuleLoadData(ctypes.byref(module), PTX)


class InstantiateParams(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("stream", ctypes.c_void_p), ("node", ctypes.c_void_p),
                ("result", ctypes.c_int)]


def upload():
    graph, params = ctypes.c_void_p(), InstantiateParams(flags=INSTANTIATE_FLAG_UPLOAD)
    return driver.cuGraphCreate(ctypes.byref(graph), 0) \
        or driver.cuGraphInstantiateWithParams(ctypes.byref(ctypes.c_void_p()), graph, ctypes.byref(params))


def set_up_kernel():
    library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    return driver.cuLibraryLoadData(ctypes.byref(library), PTX, None, None, 0, None, None, 0) \
        or driver.cuLibraryGetKernel(ctypes.byref(kernel), library, b"gpumux_fill") \
        or driver.cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, 0, kernel, 0) \
        or driver.cuKernelSetCacheConfig(kernel, 0, 0)


def launch(name, *parameters):
    function = ctypes.c_void_p()
    pointers = (ctypes.c_void_p * len(parameters))(*[ctypes.addressof(one) for one in parameters])
    return driver.cuModuleGetFunction(ctypes.byref(function), module, name) \
        or driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)


CALLS = {
    "init": lambda: driver.cuInit(0),
    "context": make_context,
    "opengl": lambda gpu: make_context(gpu, driver.cuGLCtxCreate_v2),
    "upload": upload,
    "kernel": set_up_kernel,
    "spin": lambda seconds: launch(b"gpumux_spin", ctypes.c_uint64(int(float(seconds) * 1e9))),
    "fault": lambda: launch(b"gpumux_fill", ctypes.c_uint64(4096), ctypes.c_uint64(1), ctypes.c_uint32(1)),
    "sync": driver.cuCtxSynchronize,
}

for line in sys.stdin:
    command, *arguments = line.split()
    print(command, CALLS[command](*arguments), flush=True)
