# SPDX-License-Identifier: Apache-2.0
"""Times a program's first allocation and work, and the second and third: cuMemAlloc, cuMemsetD8 and a wait, in
microseconds each."""
import ctypes
import time

import common


def main():
    arguments = common.options(mib=10)
    library = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()

    def call(name, *values):
        code = getattr(library, name)(*values)
        if code != 0:
            raise SystemExit(f"{name}: {code}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), arguments.device)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    size = ctypes.c_size_t(arguments.mib << 20)
    times = []
    for _ in range(3):
        address = ctypes.c_uint64()
        start = time.monotonic_ns()
        call("cuMemAlloc_v2", ctypes.byref(address), size)
        allocated = time.monotonic_ns()
        call("cuMemsetD8Async", address, ctypes.c_ubyte(1), size, None)
        submitted = time.monotonic_ns()
        call("cuCtxSynchronize")
        done = time.monotonic_ns()
        times.append([(allocated - start) // 1000, (submitted - allocated) // 1000, (done - submitted) // 1000])
        call("cuMemFree_v2", address)
    common.result(first=times[0], later=times[1:])


if __name__ == "__main__":
    main()
