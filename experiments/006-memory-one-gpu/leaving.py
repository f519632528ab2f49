#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the end of a process with much GPU memory and much registered host memory disturbs the others on the GPU.

    python3 experiments/006-memory-one-gpu/leaving.py [--host-gib 56] [--gpu-gib 44]

Two processes share host memory as gpumux lends it (a memfd of huge pages). One, the leaver, has some of it registered
and some GPU memory; the other makes, maps, fills and frees chunks of GPU memory all the time. Printed: how long the
leaver takes to be gone, and how long the other's calls took meanwhile.
"""
import argparse
import ctypes
import mmap
import os
import sys
import threading
import time

CHUNK = 128 << 20
GIB = 1 << 30
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Flags(ctypes.Structure):
    _fields_ = [("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 4)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("windows", ctypes.c_void_p), ("flags", Flags)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Gpu:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.properties = Properties(1, 1, Location(1, 0), None, Flags())

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name}: {code}")

    def reserve(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0),
                  ctypes.c_uint64(0), ctypes.c_uint64(0))
        return address.value

    def make(self, address):
        """Milliseconds of each of the three calls."""
        handle, times = ctypes.c_uint64(), [time.monotonic()]
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(CHUNK), ctypes.byref(self.properties),
                  ctypes.c_uint64(0))
        times.append(time.monotonic())
        self.call("cuMemMap", ctypes.c_uint64(address), ctypes.c_size_t(CHUNK), ctypes.c_size_t(0), handle,
                  ctypes.c_uint64(0))
        times.append(time.monotonic())
        access = Access(Location(1, 0), 3)
        self.call("cuMemSetAccess", ctypes.c_uint64(address), ctypes.c_size_t(CHUNK), ctypes.byref(access),
                  ctypes.c_size_t(1))
        times.append(time.monotonic())
        return handle, [(b - a) * 1000 for a, b in zip(times, times[1:])]

    def release(self, address, handle):
        self.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(CHUNK))
        self.call("cuMemRelease", handle)

    def register(self, address, size):
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_uint(3))

    def unregister(self, address):
        self.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def fill(self, address, host):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(host), ctypes.c_size_t(CHUNK))


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_host(fd, size, populate):
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    libc.madvise(address, size, MADV_HUGEPAGE)
    if populate:
        threads = [threading.Thread(target=libc.madvise, args=(address + at, min(GIB, size - at), MADV_POPULATE_WRITE))
                   for at in range(0, size, GIB)]
        for some in range(0, len(threads), 16):
            for thread in threads[some:some + 16]:
                thread.start()
            for thread in threads[some:some + 16]:
                thread.join()
    return address


def child(work):
    to_child, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(to_child[1])
        os.close(to_parent[0])
        work(lambda: os.write(to_parent[1], b"."), lambda: os.read(to_child[0], 1))
        os._exit(0)
    os.close(to_child[0])
    os.close(to_parent[1])
    return pid, (lambda: os.read(to_parent[0], 1)), (lambda: os.write(to_child[1], b"."))


def leaver(fd, host_gib, gpu_gib, how):
    def work(ready, wait):
        gpu = Gpu()
        chunks = []
        if host_gib:
            host = map_host(fd, host_gib * GIB, False)
            began = time.monotonic()
            for at in range(0, host_gib * GIB, CHUNK):
                gpu.register(host + at, CHUNK)
            print(f"    registered {host_gib} GiB in {time.monotonic() - began:.2f} s", flush=True)
        base = gpu.reserve(gpu_gib * GIB) if gpu_gib else 0
        for at in range(0, gpu_gib * GIB, CHUNK):
            chunks.append((base + at, gpu.make(base + at)[0]))
        ready()
        wait()
        began = time.monotonic()
        if how == "in order":
            for address, handle in chunks:
                gpu.release(address, handle)
            middle = time.monotonic()
            for at in range(0, host_gib * GIB, CHUNK):
                gpu.unregister(host + at)
            print(f"    released in {middle - began:.2f} s, unregistered in {time.monotonic() - middle:.2f} s",
                  flush=True)
        elif how == "gpu memory only":
            for address, handle in chunks:
                gpu.release(address, handle)
            print(f"    released in {time.monotonic() - began:.2f} s", flush=True)
            time.sleep(1.5)
    return work


def prober(fd, seconds):
    def work(ready, wait):
        gpu = Gpu()
        host = map_host(fd, 2 * GIB, False)
        gpu.register(host, 2 * GIB)
        address = gpu.reserve(CHUNK)
        ready()
        wait()
        begin = time.monotonic()
        rows = []
        while time.monotonic() - begin < seconds:
            at = time.monotonic() - begin
            handle, times = gpu.make(address)
            began = time.monotonic()
            gpu.fill(address, host)
            filled = time.monotonic()
            gpu.release(address, handle)
            rows.append((at, *times, (filled - began) * 1000, (time.monotonic() - filled) * 1000))
        for name, column in (("create", 1), ("map", 2), ("set access", 3), ("copy", 4), ("release", 5)):
            values = sorted(row[column] for row in rows)
            over = sum(value - 3 * values[len(values) // 2] for value in values if value > 3 * values[len(values) // 2])
            print(f"    other's {name:10}: median {values[len(values) // 2]:.3f} ms, most {values[-1]:.1f}, "
                  f"above thrice the median in all {over:.0f} ms", flush=True)
        stalls = [(round(row[0], 3), [round(v, 1) for v in row[1:]]) for row in rows if sum(row[1:]) > 40]
        print(f"    {len(rows)} chunks; slow ones: {stalls[:20]}", flush=True)
    return work


def measure(title, fd, host_gib, gpu_gib, how, seconds=4.0):
    print(f"{title}: {host_gib} GiB registered, {gpu_gib} GiB on the GPU", flush=True)
    other, other_ready, other_go = child(prober(fd, seconds))
    other_ready()
    pid, ready, go = child(leaver(fd, host_gib, gpu_gib, how))
    ready()
    other_go()
    time.sleep(0.5)
    began = time.monotonic()
    go()
    os.waitpid(pid, 0)
    print(f"    gone {time.monotonic() - began:.2f} s after it was told to", flush=True)
    os.waitpid(other, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host-gib", type=int, default=56)
    parser.add_argument("--gpu-gib", type=int, default=44)
    arguments = parser.parse_args()
    fd = os.memfd_create("lent")
    os.ftruncate(fd, arguments.host_gib * GIB)
    began = time.monotonic()
    map_host(fd, arguments.host_gib * GIB, True)
    print(f"{arguments.host_gib} GiB of host memory made in {time.monotonic() - began:.1f} s", flush=True)
    with open("/proc/meminfo", encoding="utf-8") as file:
        print(*(line.strip() for line in file if line.startswith(("ShmemHuge", "Shmem:"))), flush=True)
    measure("nobody leaves", fd, 0, 0, "")
    measure("GPU memory alone", fd, 0, arguments.gpu_gib, "")
    measure("host memory alone", fd, arguments.host_gib, 0, "")
    measure("both", fd, arguments.host_gib, arguments.gpu_gib, "", 6.0)
    measure("both, freed in order first", fd, arguments.host_gib, arguments.gpu_gib, "in order", 8.0)
    measure("both, GPU memory first, host memory by the kernel 1.5 s later", fd, arguments.host_gib, arguments.gpu_gib,
            "gpu memory only", 6.0)


if __name__ == "__main__":
    sys.exit(main())
