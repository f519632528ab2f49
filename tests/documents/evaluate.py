# SPDX-License-Identifier: Apache-2.0
"""A short program on the GPU."""

from gpu import Gpu

gpu = Gpu(16)
gpu.spin(0.01)
gpu.wait()
print("evaluated", flush=True)
