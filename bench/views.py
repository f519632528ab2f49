#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What open views cost the daemon and its tenants: bench/views.py [--views 20] [--tenants 12] [--seconds 30]

Programs contend for two simulated GPUs while jobs wait. In each round the script measures first without views, then
with that many `gpumux top`, each on a terminal of its own. Prints processor times, what the programs submit, and how
long they wait for a lease, on average; at the end the medians of all rounds. GPUMUX_BUILD names the build, and --daemon
another daemon.
"""

import argparse
import os
import pty
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests"))
from framework import paths  # noqa: E402
from framework.daemon import Daemon  # noqa: E402
from framework.machine import Machine  # noqa: E402
from framework.process import Process  # noqa: E402

GPUS = 2
JOBS = 10
TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = ("daemon, % of a core", "each view, % of a core", "submissions a second", "mean wait, ms")


def processor_seconds(pid):
    """Of all threads of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def print_row(name, row):
    print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in row) + " |", flush=True)


class View:
    """A `gpumux top` on a terminal of 120 columns, whose output is read and thrown away."""

    def __init__(self, environment):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(paths.COMMAND, ["gpumux", "top"], environment)
        self.bytes = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while data := os.read(self.terminal, 65536):
                self.bytes += len(data)
        except OSError:  # the view has ended
            pass

    def end(self):
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


class Load:
    """A daemon, tenants that always want the GPU, and jobs that wait."""

    def __init__(self, options):
        self.directory = tempfile.mkdtemp(prefix="gpumux-bench-")
        self.machine = Machine(GPUS)
        runtime_dir = os.path.join(self.directory, "run")
        os.mkdir(runtime_dir, 0o700)
        settings = {"mode": "serial", "library": paths.LIBRARY}
        if options.quantum:
            settings["quantum"] = options.quantum
        self.daemon = Daemon(self.machine, runtime_dir, settings).start()
        self.environment = {"PATH": os.environ["PATH"], "HOME": self.directory, "GPUMUX_RUNTIME_DIR": runtime_dir,
                            **self.machine.environment()}
        for _ in range(JOBS):
            self.daemon.api.ask("POST", "/v1/jobs", {
                "arguments": ["sleep", "1000"], "directory": self.directory, "environment": [], "held": True})
        self.tenants = [
            Process([paths.PROGRAMS / "worker", "--gpu", str(i % GPUS), "--steps", "100000000", "--step-us", "5000",
                     "--sync-every", "1"], {**self.environment, "LD_PRELOAD": str(paths.LIBRARY)}, name=f"tenant {i}")
            for i in range(options.tenants)]
        for tenant in self.tenants:
            tenant.wait_for_line("ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for tenant in self.tenants:
            tenant.end()
        self.daemon.end()
        self.machine.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def work(self):
        """The submissions, grants and nanoseconds of waiting of all tenants so far."""
        seats = [seat for gpu in self.daemon.api.status()["gpus"] for seat in gpu["seats"]]
        return [sum(seat[name] for seat in seats) for name in ("submissions", "grants", "waited_ns")]

    def measure(self, views, seconds):
        """A row of COLUMNS."""
        environment = {**self.environment, "TERM": "xterm-256color", "LANG": "C.UTF-8", "COLUMNS": "120", "LINES": "40"}
        shown = [View(environment) for _ in range(views)]
        time.sleep(3)  # until each has read the trace so far
        pids = [view.pid for view in shown]
        before = self.work()
        began, used, own = time.monotonic(), processor_seconds(self.daemon.pid), sum(map(processor_seconds, pids))
        time.sleep(seconds)
        passed = time.monotonic() - began
        used = processor_seconds(self.daemon.pid) - used
        own = sum(map(processor_seconds, pids)) - own
        submissions, grants, waited = (then - now for now, then in zip(before, self.work()))
        for view in shown:
            if view.bytes == 0:
                sys.exit("views: a view has shown nothing")
            view.end()
        return 100 * used / passed, 100 * own / passed / max(views, 1), submissions / passed, waited / grants / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--views", type=int, default=20)
    parser.add_argument("--tenants", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quantum", help="of the GPUs; the daemon's default if absent")
    parser.add_argument("--daemon", help="another gpumuxd than the build's")
    options = parser.parse_args()
    if options.daemon:
        paths.DAEMON = options.daemon
    print("| views | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (1 + len(COLUMNS)))
    rows = {0: [], options.views: []}
    with Load(options) as load:
        for _ in range(options.rounds):
            for views, found in rows.items():
                found.append(load.measure(views, options.seconds))
                print_row(views, found[-1])
    for views, found in rows.items():
        print_row(f"{views}, median", map(statistics.median, zip(*found)))


if __name__ == "__main__":
    main()
