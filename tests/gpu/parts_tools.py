# SPDX-License-Identifier: Apache-2.0
"""Debuggers, checkers and profilers work on a program under gpumux as they do without it."""
import glob
import os
import shutil

from support import SKIP, Daemon, Group, Process

BUSY = ["--launches", "8", "--spin-us", "2000"]
STEPS = ["--launches", "4", "--spin-us", "500", "--steps", "100"]
LIMIT_S = 120

# Each with what goes before the program's own words. A tool that needs performance counters may be refused by the
# driver, for every program alike: then it fails natively too, and shows nothing.
TOOLS = {
    "cuda-gdb": ["-batch", "-ex", "run", "-ex", "quit $_exitcode", "--args"],
    "compute-sanitizer": ["--tool", "memcheck", "--error-exitcode", "9"],
    "nsys": ["profile", "--trace=cuda", "--force-overwrite=true", "--output=nsys"],
    "ncu": ["--launch-count", "2", "--metrics", "gpu__time_duration.sum"],
}


def find_tool(name):
    places = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"] + glob.glob("/opt/nvidia/nsight*/*") + \
        glob.glob("/usr/local/cuda/nsight*")
    for place in filter(None, places):
        for folder in ("bin", "compute-sanitizer", ""):
            path = os.path.join(place, folder, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return shutil.which(name)


def digest_of(process):
    """The program's digest, in whichever line of the tool's output it stands. None: there is none."""
    with open(process.out, errors="replace") as file:
        lines = [line.strip() for line in file if '"digest"' in line]
    return lines[0].split('"digest": "')[1].split('"')[0] if lines and process.code == 0 else None


def run_tools(session):
    program = session.program("gpumux_gpu_worker")
    for name, words in TOOLS.items():
        tool = find_tool(name)
        if tool is None:
            session.add(SKIP, f"{name}: same result", "not here")
            continue
        argv = [tool] + words + [program] + STEPS
        native = Process(session, f"tools.{name}.native", argv).wait(LIMIT_S)
        if digest_of(native) is None:
            session.add(SKIP, f"{name}: same result", f"does not work without gpumux either: {native.why()}")
            continue
        with Daemon(session, f"tools-{name}", mode="serial", quantum="20ms") as daemon, \
                Group(session, f"tools-{name}", daemon) as group:
            other = group.add("other", [program] + BUSY + ["--seconds", "600"], waits=False)
            process = Process(session, f"tools.{name}", argv, daemon).wait(LIMIT_S)
            same = digest_of(process) == digest_of(native)
            session.check(same and other.process.poll() is None, f"{name}: same result, taking turns with another",
                          digest_of(process) or process.why())
