#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cost of turns for two jobs with collectives: bench/gangs.py [--small 60] [--quantum 20ms] ...

Two jobs of two processes each, on the same two simulated GPUs: each round is a kernel that meets its partner on the
devices, and then many small ones, submitted ahead of the GPU. First one job alone, then both in turn. Prints how long
that took, and what the trace says of the revocations: gates opened again, and the time from a gang's revocation to its
drain, for those that were opened again and for those that were not.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from framework import paths  # noqa: E402
from framework.daemon import Daemon  # noqa: E402
from framework.machine import Machine  # noqa: E402
from framework.process import Process  # noqa: E402


class Run:
    """One daemon and its jobs, in a directory that goes with it."""

    def __init__(self, options):
        self.options = options
        self.directory = tempfile.mkdtemp(prefix="gpumux-bench-")
        self.machine = Machine(2)
        runtime_dir = os.path.join(self.directory, "run")
        os.mkdir(runtime_dir, 0o700)
        settings = {"mode": "serial", "interrupt": options.interrupt, "quantum": options.quantum}
        self.daemon = Daemon(self.machine, runtime_dir, settings).start()
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end()
        self.daemon.end()
        self.machine.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start_job(self, number):
        meet = os.path.join(self.directory, f"meet{number}")
        os.mkdir(meet)
        environment = {"PATH": os.environ["PATH"], "GPUMUX_RUNTIME_DIR": self.daemon.runtime_dir,
                       "LD_PRELOAD": str(paths.LIBRARY), "GPUMUX_RUN_ID": f"job{number}", "WORLD_SIZE": "2",
                       "LOCAL_WORLD_SIZE": "2", **self.machine.environment()}
        for rank in range(2):
            command = [paths.PROGRAMS / "collective", "--meet", meet, "--rank", str(rank), "--rounds",
                       str(self.options.rounds), "--ahead", str(self.options.ahead), "--small", str(self.options.small),
                       "--step-us", str(self.options.step_us), "--host-us", str(self.options.host_us), "--drift-us",
                       str(self.options.drift_us)]
            self.processes.append(Process(command, environment, name=f"job{number}.{rank}"))

    def seconds(self, jobs):
        start = time.monotonic()
        for number in range(jobs):
            self.start_job(number)
        for process in self.processes:
            process.expect_success(timeout=300)
        return time.monotonic() - start


def revocations(events):
    """(milliseconds from the first revocation to the last drain, gates opened again) of each that drained."""
    done = []
    for job in ("job0", "job1"):
        begin = None
        opened = 0
        open_seats = set()
        for event in events:
            if event.get("job") != job or "tenant" not in event:
                continue
            seat = (event["tenant"], event.get("gpu"))
            if event["event"] == "revoke":
                begin = begin or event["time_ns"]
                open_seats.add(seat)
            elif event["event"] == "grant" and event.get("detail") == "again":
                opened += 1
                open_seats.add(seat)
            elif event["event"] == "drained":
                open_seats.discard(seat)
            elif event["event"] == "grant" and begin is not None:
                begin, opened, open_seats = None, 0, set()
            if begin is not None and event["event"] == "drained" and not open_seats:
                last = (event["time_ns"] - begin) / 1e6
                if done and done[-1][2] == begin:
                    done.pop()
                done.append((last, opened, begin))
    return done


def describe(name, values, unit):
    if not values:
        return
    values = sorted(values)
    print(f"  {name}: median {statistics.median(values):.2f} {unit}, p90 {values[int(len(values) * 0.9)]:.2f}, "
          f"longest {values[-1]:.2f}, sum {sum(values):.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--small", type=int, default=100, help="small kernels in each round")
    parser.add_argument("--step-us", type=int, default=200, help="one longer kernel in each round")
    parser.add_argument("--host-us", type=int, default=5, help="of work on the host before each small kernel")
    parser.add_argument("--drift-us", type=int, default=1000, help="at most so much before each round")
    parser.add_argument("--ahead", type=int, default=50, help="rounds between synchronisations")
    parser.add_argument("--quantum", default="20ms")
    parser.add_argument("--interrupt", default="off", choices=("off", "auto"), help="off: work drains")
    options = parser.parse_args()
    with Run(options) as run:
        print(f"alone: {run.seconds(1):.2f} s")
    with Run(options) as run:
        print(f"two in turn: {run.seconds(2):.2f} s")
        job_of = {process.pid: process.name.split(".")[0] for process in run.processes}
        events = [{**event, "job": job_of.get(event.get("pid"))} for event in run.daemon.trace.events()]
        done = revocations(events)
        again = [opened for _, opened, _ in done if opened > 0]
        print(f"  {len(done)} revocations drained, {len(again)} of them after {sum(again)} gates were opened again")
        describe("drained at once", [ms for ms, opened, _ in done if opened == 0], "ms")
        describe("drained later", [ms for ms, opened, _ in done if opened > 0], "ms")
        describe("gates opened again", again, "")


if __name__ == "__main__":
    main()
