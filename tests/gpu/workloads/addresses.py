# SPDX-License-Identifier: Apache-2.0
"""Asks the driver about addresses of each kind of allocation: all attributes, setting one, and the codes of copies and
fills that go past the end. Values that differ from run to run are told relative to the allocation."""
import ctypes

import common

KIB, MIB = 1 << 10, 1 << 20
POINTER_ATTRIBUTES = range(1, 22)  # CUpointer_attribute
HOST_POINTER, P2P_TOKENS, SYNC_MEMOPS, MAPPING_SIZE, MAPPING_BASE = 4, 5, 6, 18, 19
ADDRESSES = {3, HOST_POINTER, 11}  # DEVICE_POINTER, RANGE_START_ADDR: from the base
NAMES = {1, 7, 17, 20}             # CONTEXT, BUFFER_ID, MEMPOOL_HANDLE, MEMORY_BLOCK_ID: there, or not
BOOLEANS = {8, 10, 13}             # IS_MANAGED, IS_LEGACY_CUDA_IPC_CAPABLE, MAPPED
WIDE = {12, 14}                    # RANGE_SIZE, ALLOWED_HANDLE_TYPES
RANGE_ATTRIBUTES = range(1, 5)     # CUmem_range_attribute
HANDLE_TYPE_DESCRIPTOR = 1
DEVICE, HOST = 2, 1                # CUmemorytype


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("metadata", ctypes.c_void_p), ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class AccessDesc(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Copy2D(ctypes.Structure):
    _fields_ = [(end + name, kind) for end in ("src", "dst")
                for name, kind in (("X", ctypes.c_size_t), ("Y", ctypes.c_size_t), ("Type", ctypes.c_int),
                                   ("Host", ctypes.c_void_p), ("Device", ctypes.c_uint64),
                                   ("Array", ctypes.c_void_p), ("Pitch", ctypes.c_size_t))] + \
               [("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]


class Copy3D(ctypes.Structure):
    _fields_ = [(end + name, kind) for end in ("src", "dst")
                for name, kind in (("X", ctypes.c_size_t), ("Y", ctypes.c_size_t), ("Z", ctypes.c_size_t),
                                   ("LOD", ctypes.c_size_t), ("Type", ctypes.c_int), ("Host", ctypes.c_void_p),
                                   ("Device", ctypes.c_uint64), ("Array", ctypes.c_void_p),
                                   ("Reserved", ctypes.c_void_p), ("Pitch", ctypes.c_size_t),
                                   ("Height", ctypes.c_size_t))] + \
               [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t)]


class Program:
    def __init__(self, device):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.device = ctypes.c_int()
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self.context = context
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.host = ctypes.create_string_buffer(16 * MIB)
        other = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(other), ctypes.c_size_t(16 * MIB))
        self.other = other.value
        self.kinds = {"malloc": self.malloc, "pitch": self.pitch, "async": self.pool, "managed": self.managed,
                      "mapped": self.mapped, "mapped for networks": lambda size: self.mapped(size, rdma=1),
                      "mapped for export": lambda size: self.mapped(size, handle_types=HANDLE_TYPE_DESCRIPTOR),
                      "host": self.pinned}

    def code(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def call(self, name, *arguments):
        result = self.code(name, *arguments)
        if result != 0:
            raise SystemExit(f"{name}: {result}")

    # ---- kinds of memory

    def address_of(self, name, *arguments):
        address = ctypes.c_uint64()
        self.call(name, ctypes.byref(address), *arguments)
        return address.value

    def malloc(self, size):
        return self.address_of("cuMemAlloc_v2", ctypes.c_size_t(size)), size

    def pitch(self, size):
        width, pitch = size // 64, ctypes.c_size_t()
        address = self.address_of("cuMemAllocPitch_v2", ctypes.byref(pitch), ctypes.c_size_t(width),
                                  ctypes.c_size_t(64), 4)
        return address, pitch.value * 64

    def pool(self, size):
        address = self.address_of("cuMemAllocAsync", ctypes.c_size_t(size), self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return address, size

    def managed(self, size):
        return self.address_of("cuMemAllocManaged", ctypes.c_size_t(size), 1), size

    def pinned(self, size):
        return self.address_of("cuMemHostAlloc", ctypes.c_size_t(size), 2), size

    def mapped(self, size, **properties):
        size = -(-size // (2 * MIB)) * 2 * MIB
        wanted = AllocationProp(type=1, location=Location(1, self.device.value), **properties)
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(wanted), ctypes.c_uint64(0))
        address = self.address_of("cuMemAddressReserve", ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_uint64(0),
                                  ctypes.c_uint64(0))
        self.call("cuMemMap", ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.c_size_t(0), handle,
                  ctypes.c_uint64(0))
        right = AccessDesc(Location(1, self.device.value), 3)
        self.call("cuMemSetAccess", ctypes.c_uint64(address), ctypes.c_size_t(size), ctypes.byref(right),
                  ctypes.c_size_t(1))
        return address, size

    # ---- questions

    def attribute(self, number, address, base, size):
        """The code, or the value: as far as two allocations have it in common."""
        values = (ctypes.c_uint64 * 2)(0xeeee_eeee_eeee_eeee, 0xeeee_eeee_eeee_eeee)
        code = self.code("cuPointerGetAttribute", ctypes.byref(values), number, ctypes.c_uint64(address))
        value = values[0]
        if code != 0:
            return f"error {code}"
        if number == P2P_TOKENS:
            return [value, values[1] & 0xffff_ffff]
        if number in NAMES:
            return "one" if value else "none"
        if number == HOST_POINTER and value == 0:
            return "none"
        if number in ADDRESSES:
            return value - base
        # The memory that the allocation lies in, with others.
        if number == MAPPING_SIZE:
            return value >= size
        if number == MAPPING_BASE:
            return value <= base
        return value if number in WIDE else value & 0xff if number in BOOLEANS else value & 0xffff_ffff

    def sync_memops(self, address):
        """Set, asked, cleared, asked; the codes and values."""
        answers = []
        for wanted in (1, 0):
            value = ctypes.c_uint(wanted)
            answers += [self.code("cuPointerSetAttribute", ctypes.byref(value), SYNC_MEMOPS, ctypes.c_uint64(address)),
                        self.attribute(SYNC_MEMOPS, address, address, 0)]
        return answers

    def range_attribute(self, number, address, size):
        value = ctypes.c_int(-77)
        code = self.code("cuMemRangeGetAttribute", ctypes.byref(value), ctypes.c_size_t(4), number,
                         ctypes.c_uint64(address), ctypes.c_size_t(size))
        return f"error {code}" if code else value.value

    def about(self, address, size):
        answers = {"sync memops at first": self.attribute(SYNC_MEMOPS, address, address, size)}
        for where, offset in (("first", 0), ("middle", size // 2), ("last", size - 1), ("past", size)):
            base, length = ctypes.c_uint64(), ctypes.c_size_t()
            if where != "past":
                for number in POINTER_ATTRIBUTES:
                    answers[f"{where} {number}"] = self.attribute(number, address + offset, address, size)
            code = self.code("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length),
                             ctypes.c_uint64(address + offset))
            if where != "past":
                answers[f"{where} range"] = code or [base.value - address, length.value]
        for number in RANGE_ATTRIBUTES:
            answers[f"range {number}"] = self.range_attribute(number, address, size)
        answers["sync memops"] = self.sync_memops(address)
        return answers

    # ---- copies and fills of `size` bytes at `address`, by name

    def copies(self, address, size):
        device, other, host, count = (ctypes.c_uint64(address), ctypes.c_uint64(self.other), self.host,
                                      ctypes.c_size_t(size))
        words, halves = ctypes.c_size_t(-(-size // 4)), ctypes.c_size_t(-(-size // 2))
        pitch, width, height = ctypes.c_size_t(64), ctypes.c_size_t(64), ctypes.c_size_t(-(-size // 64))
        stream = self.stream
        ends = {"in": dict(srcType=HOST, srcHost=ctypes.addressof(host), srcPitch=64, dstType=DEVICE, dstDevice=address,
                           dstPitch=64),
                "out": dict(srcType=DEVICE, srcDevice=address, srcPitch=64, dstType=HOST,
                            dstHost=ctypes.addressof(host), dstPitch=64)}
        calls = {
            "HtoD": ("cuMemcpyHtoD_v2", device, host, count),
            "HtoDAsync": ("cuMemcpyHtoDAsync_v2", device, host, count, stream),
            "DtoH": ("cuMemcpyDtoH_v2", host, device, count),
            "DtoHAsync": ("cuMemcpyDtoHAsync_v2", host, device, count, stream),
            "DtoD to": ("cuMemcpyDtoD_v2", device, other, count),
            "DtoD from": ("cuMemcpyDtoD_v2", other, device, count),
            "DtoDAsync to": ("cuMemcpyDtoDAsync_v2", device, other, count, stream),
            "DtoDAsync from": ("cuMemcpyDtoDAsync_v2", other, device, count, stream),
            "copy to": ("cuMemcpy", device, other, count),
            "copy from": ("cuMemcpy", other, device, count),
            "copyAsync to": ("cuMemcpyAsync", device, other, count, stream),
            "copyAsync from": ("cuMemcpyAsync", other, device, count, stream),
            "copy from host": ("cuMemcpyAsync", device, ctypes.c_uint64(ctypes.addressof(host)), count, stream),
            "peer": ("cuMemcpyPeer", device, self.context, other, self.context, count),
            "peerAsync": ("cuMemcpyPeerAsync", other, self.context, device, self.context, count, stream),
            "D8": ("cuMemsetD8_v2", device, ctypes.c_ubyte(1), count),
            "D8Async": ("cuMemsetD8Async", device, ctypes.c_ubyte(1), count, stream),
            "D16": ("cuMemsetD16_v2", device, ctypes.c_ushort(1), halves),
            "D16Async": ("cuMemsetD16Async", device, ctypes.c_ushort(1), halves, stream),
            "D32": ("cuMemsetD32_v2", device, ctypes.c_uint(1), words),
            "D32Async": ("cuMemsetD32Async", device, ctypes.c_uint(1), words, stream),
            "2D8": ("cuMemsetD2D8_v2", device, pitch, ctypes.c_ubyte(1), width, height),
            "2D32Async": ("cuMemsetD2D32Async", device, pitch, ctypes.c_uint(1), ctypes.c_size_t(16), height, stream),
        }
        for way, fields in ends.items():
            flat = Copy2D(width=64, height=height.value, **fields)
            deep = Copy3D(width=64, height=height.value, depth=1, srcHeight=height.value, dstHeight=height.value,
                          **fields)
            calls[f"2D {way}"] = ("cuMemcpy2D_v2", ctypes.byref(flat))
            calls[f"2D unaligned {way}"] = ("cuMemcpy2DUnaligned_v2", ctypes.byref(flat))
            calls[f"2DAsync {way}"] = ("cuMemcpy2DAsync_v2", ctypes.byref(flat), stream)
            calls[f"3D {way}"] = ("cuMemcpy3D_v2", ctypes.byref(deep))
            calls[f"3DAsync {way}"] = ("cuMemcpy3DAsync_v2", ctypes.byref(deep), stream)
        answers = {name: self.code(*call) for name, call in calls.items()}
        answers["batch"] = self.batch(address, size)
        answers["captured fill"] = self.captured("cuMemsetD8Async", device, ctypes.c_ubyte(1), count)
        answers["captured copy to"] = self.captured("cuMemcpyDtoDAsync_v2", device, other, count)
        answers["captured copy from"] = self.captured("cuMemcpyAsync", other, device, count)
        answers["node that fills"] = self.filling_node(address, size)
        answers["afterwards"] = self.code("cuCtxSynchronize")
        return answers


    def batch(self, address, size):
        """The code, and which of two copies it is that fails."""
        destinations = (ctypes.c_uint64 * 2)(address, address)
        sources = (ctypes.c_uint64 * 2)(self.other, self.other)
        sizes, failed = (ctypes.c_size_t * 2)(64, size), ctypes.c_size_t(77)
        # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        attributes, first = (ctypes.c_int * 6)(1), ctypes.c_size_t(0)
        if not hasattr(self.library, "cuMemcpyBatchAsync"):
            return None
        code = self.code("cuMemcpyBatchAsync", destinations, sources, sizes, ctypes.c_size_t(2), attributes,
                         ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(failed), self.stream)
        return [code, failed.value if code else None]

    def captured(self, *call):
        graph = ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", self.stream, 2)
        code = self.code(*call, self.stream)
        ended = self.code("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        return [code, ended, self.code("cuGraphDestroy", graph) if graph else None]

    def filling_node(self, address, size):
        class Params(ctypes.Structure):
            _fields_ = [("dst", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint),
                        ("element", ctypes.c_uint), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t)]
        graph, node, made = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuGraphCreate", ctypes.byref(graph), 0)
        code = self.code("cuGraphAddMemsetNode", ctypes.byref(node), graph, None, ctypes.c_size_t(0),
                         ctypes.byref(Params(address, 0, 1, 1, size, 1)), self.context)
        ended = self.code("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        self.call("cuGraphDestroy", graph)
        return [code, ended]


def main():
    arguments = common.options(kinds="")
    program = Program(arguments.device)
    answers = {}
    wanted = arguments.kinds.split(",") if arguments.kinds else program.kinds
    for kind in wanted:
        for size in (128, 256 * KIB + 64, 3 * MIB + 512):
            address, size = program.kinds[kind](size)
            answers[f"{kind}, {size}"] = program.about(address, size)
            if kind == "managed":
                continue  # past its end lies the program's own memory
            answers[f"{kind}, {size}, within"] = program.copies(address, size)
            answers[f"{kind}, {size}, from the middle"] = program.copies(address + size // 2 // 64 * 64, size // 2)
            for beyond in (1, 64, 4096):
                answers[f"{kind}, {size}, {beyond} past the end"] = program.copies(address, size + beyond)
            answers[f"{kind}, {size}, past the end from the middle"] = program.copies(address + size // 2 // 64 * 64,
                                                                                       size)
    common.result(**answers)


if __name__ == "__main__":
    main()
