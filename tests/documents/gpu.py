# SPDX-License-Identifier: Apache-2.0
"""A GPU by ctypes: the calls of the CUDA driver API that the programs here need."""

import ctypes
import sys

PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry gpumux_spin(.param .u64 nanoseconds) { ret; }
.visible .entry gpumux_fill(.param .u64 dst, .param .u64 count, .param .u32 value) { ret; }
"""


class Gpu:
    """The first GPU, with some memory allocated on it."""

    def __init__(self, mib):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.spin_function, self.fill_function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(self.spin_function), module, b"gpumux_spin")
        self.call("cuModuleGetFunction", ctypes.byref(self.fill_function), module, b"gpumux_fill")
        self.memory, self.words = ctypes.c_uint64(), mib << 18
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(mib << 20))

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorName(status, ctypes.byref(text))
            sys.exit(f"{sys.argv[0]}: {name}: {(text.value or b'?').decode()}")

    def launch(self, function, *parameters):
        pointers = (ctypes.c_void_p * len(parameters))(*[ctypes.addressof(one) for one in parameters])
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)

    def fill(self, value):
        """Writes all of the memory."""
        self.launch(self.fill_function, self.memory, ctypes.c_uint64(self.words), ctypes.c_uint32(value))

    def spin(self, seconds):
        """Keeps the GPU busy for so long."""
        self.launch(self.spin_function, ctypes.c_uint64(int(seconds * 1e9)))

    def wait(self):
        self.call("cuCtxSynchronize")
