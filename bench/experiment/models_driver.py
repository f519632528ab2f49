# SPDX-License-Identifier: Apache-2.0
"""Models that need nothing but the driver: kernels that run for so long, submitted by ctypes.

The simulated GPU runs them, and so does a real one without PyTorch. They are programs like any other: the driver is
found by dlopen and dlsym, and nothing here knows of gpumux.
"""

import ctypes
import os
import pathlib

PTX = pathlib.Path(__file__).resolve().parents[2] / "sim" / "cuda" / "kernels.gen.ptx"

DISABLE_TIMING = 2
CAPTURE_RELAXED = 2
WORDS = 1 << 14   # of what goes to the GPU and back with each request
PIECE = 32 << 20  # bytes of ballast that are allocated together

# A request of 10 kernels, 3 ms in all: about what a small vision model takes. A training step of 10 ms, in kernels of
# 0.5 ms, which is a common length for those that fill a GPU.
REQUEST_KERNELS, REQUEST_NS = 10, 300_000
STEP_KERNELS, STEP_NS = 20, 500_000
# (kernels of a step, length of each): small ones, one of 20 ms, and a graph of 100 ms.
STEPS = {"spin": (STEP_KERNELS, STEP_NS), "spin-small": (10, 20_000), "spin-20ms": (1, 20_000_000),
         "spin-graph": (200, 500_000)}


class Driver:
    """The few calls that are needed; one that fails ends the program with its name."""

    ENTRIES = {
        "cuInit": [ctypes.c_uint],
        "cuDeviceGet": [ctypes.c_void_p, ctypes.c_int],
        "cuDeviceTotalMem_v2": [ctypes.c_void_p, ctypes.c_int],
        "cuDevicePrimaryCtxRetain": [ctypes.c_void_p, ctypes.c_int],
        "cuCtxSetCurrent": [ctypes.c_void_p],
        "cuCtxSynchronize": [],
        "cuModuleLoadData": [ctypes.c_void_p, ctypes.c_char_p],
        "cuModuleGetFunction": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p],
        "cuStreamCreate": [ctypes.c_void_p, ctypes.c_uint],
        "cuStreamSynchronize": [ctypes.c_void_p],
        "cuStreamBeginCapture_v2": [ctypes.c_void_p, ctypes.c_int],
        "cuStreamEndCapture": [ctypes.c_void_p, ctypes.c_void_p],
        "cuGraphInstantiateWithFlags": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong],
        "cuGraphLaunch": [ctypes.c_void_p, ctypes.c_void_p],
        "cuEventCreate": [ctypes.c_void_p, ctypes.c_uint],
        "cuEventRecord": [ctypes.c_void_p, ctypes.c_void_p],
        "cuEventSynchronize": [ctypes.c_void_p],
        "cuMemAlloc_v2": [ctypes.c_void_p, ctypes.c_size_t],
        "cuMemHostAlloc": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint],
        "cuMemcpyHtoD_v2": [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t],
        "cuMemcpyHtoDAsync_v2": [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
        "cuMemcpyDtoHAsync_v2": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p],
        "cuLaunchKernel": [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3,
    }

    def __init__(self):
        library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in self.ENTRIES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            setattr(self, name, self.checked(name, function))

    @staticmethod
    def checked(name, function):

        def call(*arguments):
            code = function(*arguments)
            if code != 0:
                raise SystemExit(f"{name} failed with CUDA error {code}")

        return call


class Kernel:
    """One kernel with its arguments, ready to be launched again and again."""

    def __init__(self, driver, function, arguments):
        self.driver = driver
        self.function = function
        self.values = arguments
        self.pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(value) for value in arguments])

    def launch(self, stream, blocks=1, threads=1):
        self.driver.cuLaunchKernel(self.function, blocks, 1, 1, threads, 1, 1, 0, stream, self.pointers, None)


class Mark:
    """A place in the stream that can be waited for."""

    def __init__(self, driver):
        self.driver = driver
        self.event = ctypes.c_void_p()
        driver.cuEventCreate(ctypes.byref(self.event), DISABLE_TIMING)

    def record(self, stream):
        self.driver.cuEventRecord(self.event, stream)
        return self

    def wait(self):
        self.driver.cuEventSynchronize(self.event)


class Spin:
    """Either role: request() for the one that answers requests, submit() for the one that trains."""

    def __init__(self, name, role):
        self.kernels, nanoseconds = (REQUEST_KERNELS, REQUEST_NS) if role == "latency" else STEPS[name]
        driver = self.driver = Driver()
        device, context = ctypes.c_int(), ctypes.c_void_p()
        driver.cuInit(0)
        driver.cuDeviceGet(ctypes.byref(device), 0)
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.value)
        driver.cuCtxSetCurrent(context)
        total = ctypes.c_size_t()
        driver.cuDeviceTotalMem_v2(ctypes.byref(total), device.value)
        self.total = total.value
        module = ctypes.c_void_p()
        driver.cuModuleLoadData(ctypes.byref(module), PTX.read_bytes() + b"\0")
        self.spin = Kernel(driver, self.function(module, b"gpumux_spin"), [ctypes.c_uint64(nanoseconds)])
        self.increment = self.function(module, b"gpumux_increment")
        self.stream = ctypes.c_void_p()
        driver.cuStreamCreate(ctypes.byref(self.stream), 1)
        self.data = self.allocate(4 * WORDS)
        self.host = ctypes.c_void_p()
        driver.cuMemHostAlloc(ctypes.byref(self.host), 4 * WORDS, 0)
        self.marks = [Mark(driver) for _ in range(4)]
        self.writes = []
        self.steps = 0
        self.graph = self.captured() if name == "spin-graph" else None

    def captured(self):
        """A step as one graph."""
        driver, graph, program = self.driver, ctypes.c_void_p(), ctypes.c_void_p()
        driver.cuStreamBeginCapture_v2(self.stream, CAPTURE_RELAXED)
        self.launch_kernels()
        driver.cuStreamEndCapture(self.stream, ctypes.byref(graph))
        driver.cuGraphInstantiateWithFlags(ctypes.byref(program), graph, 0)
        return program

    def launch_kernels(self):
        for _ in range(self.kernels):
            self.spin.launch(self.stream)

    def function(self, module, name):
        function = ctypes.c_void_p()
        self.driver.cuModuleGetFunction(ctypes.byref(function), module, name)
        return function

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.driver.cuMemAlloc_v2(ctypes.byref(pointer), size)
        return pointer.value

    def describe(self):
        return f"{self.kernels} kernels of {self.spin.values[0].value / 1e6:g} ms"

    def fill(self, share, total):
        """Ballast, so that it has `share` of the GPU's memory: random, for nothing but a copy brings it back."""
        words = os.urandom(PIECE)
        for _ in range(int(share * (total or self.total)) // PIECE):
            piece = self.allocate(PIECE)
            self.driver.cuMemcpyHtoD_v2(piece, words, PIECE)
            self.writes.append(Kernel(self.driver, self.increment,
                                      [ctypes.c_uint64(piece), ctypes.c_uint64(1 << 18)]))

    def settle(self):
        self.driver.cuCtxSynchronize()

    def request(self):
        driver, stream = self.driver, self.stream
        driver.cuMemcpyHtoDAsync_v2(self.data, self.host, 4 * WORDS, stream)
        self.launch_kernels()
        driver.cuMemcpyDtoHAsync_v2(self.host, self.data, 4 * WORDS, stream)
        driver.cuStreamSynchronize(stream)

    def submit(self):
        """One step; returns what can be waited for. At most four may be under way."""
        if self.graph:
            self.driver.cuGraphLaunch(self.graph, self.stream)
        else:
            self.launch_kernels()
        if self.writes:
            # A piece of the ballast changes with each step, as weights do.
            self.writes[self.steps % len(self.writes)].launch(self.stream, 64, 256)
        mark = self.marks[self.steps % len(self.marks)]
        self.steps += 1
        return mark.record(self.stream)
