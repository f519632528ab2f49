#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A job that runs until it is cancelled, to be handed in: it tells of the signal, tidies up, and ends.

    mgpu_srun --gpu-ids 0 -- python3 "$PWD/test/test_cancellation.py"    # it begins in the home directory
    mgpu_cancel ID        # and then: gpumux logs ID, gpumux show ID

It has a child, as training has its data loaders: cancelling must end both. With --stubborn it ignores SIGTERM and is
killed when its grace is over.
"""

import argparse
import os
import signal
import subprocess
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="ends by itself after so long")
    parser.add_argument("--tidy", type=float, default=0.5, help="seconds that it takes to tidy up")
    parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM")
    arguments = parser.parse_args()
    told = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({arguments.seconds})"])
    print(f"running: process {os.getpid()}, child {child.pid}", flush=True)
    begin = time.monotonic()
    while time.monotonic() - begin < arguments.seconds:
        if told and arguments.stubborn:
            print("SIGTERM: ignored", flush=True)
            told.clear()
        elif told:
            print("SIGTERM: tidying up", flush=True)
            time.sleep(arguments.tidy)
            child.terminate()
            child.wait()
            print("cancelled", flush=True)
            return 128 + signal.SIGTERM
        time.sleep(0.05)
    child.kill()
    child.wait()
    print("nobody cancelled it", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
