#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job that prints a line a second, to be handed in: what it prints should be seen as it comes.

    mgpu_srun --gpu-ids 0 --interactive -- python3 "$PWD/test/test_output.py"    # it begins in the home directory
    gpumux submit -- python3 test/test_output.py --lines 5 && gpumux logs -f ID

Both streams are used, and a line is written in two halves, so that buffering anywhere on the way would show.
"""

import argparse
import os
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=10)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two lines")
    parser.add_argument("--exit", type=int, default=0, help="exit status at the end")
    arguments = parser.parse_args()
    for name in ("GPUMUX_JOB_ID", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        print(f"{name}={os.environ.get(name, '(not set)')}", flush=True)
    print(f"directory {os.getcwd()}, process {os.getpid()}, user {os.getuid()}, "
          f"terminal {'yes' if sys.stdout.isatty() else 'no'}", flush=True)
    for number in range(1, arguments.lines + 1):
        print(f"line {number} of", end=" ", flush=True)
        time.sleep(arguments.interval / 2)
        print(arguments.lines, flush=True)
        print(f"standard error, line {number}", file=sys.stderr, flush=True)
        time.sleep(arguments.interval / 2)
    print("done", flush=True)
    return arguments.exit


if __name__ == "__main__":
    sys.exit(main())
