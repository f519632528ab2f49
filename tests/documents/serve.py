# SPDX-License-Identifier: Apache-2.0
"""A model that answers requests: serve.py [--seconds S] [--mib M]"""

import argparse
import time

from gpu import Gpu

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=3)
parser.add_argument("--mib", type=int, default=32)
arguments = parser.parse_args()
end = time.monotonic() + arguments.seconds
gpu = Gpu(arguments.mib)
answers = 0
while time.monotonic() < end:
    gpu.spin(0.003)
    gpu.wait()
    answers += 1
    time.sleep(0.05)
print(f"{answers} answers", flush=True)
