# SPDX-License-Identifier: Apache-2.0
"""A program whose kernel takes long: hang.py [--seconds S]"""

import argparse

from gpu import Gpu

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=10)
arguments = parser.parse_args()
gpu = Gpu(16)
gpu.spin(arguments.seconds)
gpu.wait()
