# SPDX-License-Identifier: Apache-2.0
"""Asks PyTorch, if it is there, and the driver for a GPU's memory, in a job with --mem: at once, and when the limit has
reached the program. Then tries to get more than the limit."""
import ctypes
import os
import time

import common

OUT_OF_MEMORY = 2
MORE = 2 << 20
PATIENCE_S = 5


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise SystemExit(f"{name}: {result}")

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def refuses(self, size):
        address = ctypes.c_uint64()
        return self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == OUT_OF_MEMORY


class Torch:
    def __init__(self):
        import torch
        self.torch = torch

    def info(self):
        return self.torch.cuda.mem_get_info()

    def refuses(self, size):
        try:
            self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
            return False
        except self.torch.cuda.OutOfMemoryError:
            return True


def look(source):
    try:
        asked = source()
    except ImportError:
        return None
    limit = int(os.environ["GPUMUX_MEM_LIMIT"])
    begin = time.monotonic()
    at_once = asked.info()[1]
    while asked.info()[1] != limit and time.monotonic() - begin < PATIENCE_S:
        time.sleep(0.0002)
    after = time.monotonic() - begin
    free, total = asked.info()
    return {"at_once": at_once, "after_s": after, "free": free, "total": total,
            "refuses_more": asked.refuses(total + MORE)}


common.result(torch=look(Torch), driver=look(Driver))
