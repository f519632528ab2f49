# SPDX-License-Identifier: Apache-2.0
"""Allocates what cuMemGetInfo calls free: in one block, or in pieces until it is refused.

With --keep-mib it allocates so much instead, writes all of it, and keeps it until the others may go.
"""
import ctypes

import common

CHUNK = 2 << 20
PIECE = 1 << 30


class Driver:
    def __init__(self, device):
        self.library = ctypes.CDLL("libcuda.so.1")
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(number), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *values):
        code = getattr(self.library, name)(*values)
        if code != 0:
            raise SystemExit(f"{name}: {code}")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size):
        """The address, or none if the memory is refused."""
        address = ctypes.c_uint64()
        code = self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if code not in (0, 2):
            raise SystemExit(f"cuMemAlloc of {size}: {code}")
        return address if code == 0 else None

    def fill(self, address, size):
        self.call("cuMemsetD8Async", address, ctypes.c_ubyte(1), ctypes.c_size_t(size), None)
        self.call("cuCtxSynchronize")


def main():
    arguments = common.options(keep_mib=0)
    driver = Driver(arguments.device)
    if arguments.keep_mib:
        size = arguments.keep_mib << 20
        driver.fill(driver.allocate(size), size)
        common.meet(arguments)
        return common.result(kept=size)
    common.meet(arguments)
    told = driver.free()
    whole = told - CHUNK
    block = driver.allocate(whole)
    if block is not None:
        driver.fill(block, whole)
        driver.call("cuMemFree_v2", block)
    after = driver.free()
    pieces = 0
    size = PIECE
    while size >= CHUNK:
        if driver.allocate(size) is None:
            size //= 2
        else:
            pieces += size
    return common.result(told=told, block=whole if block is not None else 0, told_then=after, pieces=pieces)


if __name__ == "__main__":
    main()
