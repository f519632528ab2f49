# SPDX-License-Identifier: Apache-2.0
"""A training that always has work: train.py [--seconds S] [--mib M]"""

import argparse
import time

from gpu import Gpu

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=3)
parser.add_argument("--mib", type=int, default=64)
arguments = parser.parse_args()
end = time.monotonic() + arguments.seconds
gpu = Gpu(arguments.mib)
steps = 0
while time.monotonic() < end:
    gpu.fill(steps)
    for _ in range(4):
        gpu.spin(0.002)
    gpu.wait()
    steps += 1
print(f"{steps} steps", flush=True)
