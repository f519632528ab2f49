# SPDX-License-Identifier: Apache-2.0
"""CuPy: Fourier transforms and sorts of a large array, each result the next input."""
import common

import cupy
import numpy


class Transforms:
    def __init__(self, seed):
        random = numpy.random.default_rng(seed)
        self.data = cupy.asarray(random.standard_normal((64, 1 << 16), dtype=numpy.float32))
        self.keys = cupy.asarray(random.integers(0, 1 << 31, 1 << 20, dtype=numpy.int64))
        self.peak = 0

    def step(self, i):
        spectrum = cupy.fft.rfft(self.data, axis=1)
        spectrum *= cupy.float32(0.999)
        self.data = cupy.fft.irfft(spectrum, n=self.data.shape[1], axis=1).astype(cupy.float32)
        self.keys = cupy.sort((self.keys * 6364136223846793005 + 1442695040888963407 + i) & 0x7FFFFFFF)
        self.keys = cupy.roll(self.keys, 12345)
        self.peak = max(self.peak, cupy.get_default_memory_pool().used_bytes())

    def wait(self):
        cupy.cuda.Device().synchronize()

    def digest(self):
        return cupy.asnumpy(self.data).tobytes() + cupy.asnumpy(self.keys).tobytes()

    def peak_bytes(self):
        return self.peak


if __name__ == "__main__":
    arguments = common.options()
    with cupy.cuda.Device(arguments.device):
        common.run(Transforms(arguments.seed), arguments)
