#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rates of two programs of matrix products in different ways of taking turns, in the same processes.

    changes_of_hands.py --dist dist --out DIR [--side 8192] [--every 2] [--rounds 4] [--seconds 1.5]
                        [--way NAME SETTING=VALUE...]... [--other LIBRARY]

Alone natively, two natively, and two under gpumux in each way, by turns in windows of --seconds: how fast a GPU at its
power limit is changes within seconds, so only windows of the same round are compared. Each program waits after --every
products. --other: the same again with another build of libgpumux.so, in programs of their own.
"""
import argparse
import contextlib
import json
import mmap
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WARM_S = 6.0
SETTLES_S = 0.3
READY_AT, END = 8, 0x80  # in the control file: whether program i is ready; the first byte says who works, or to end
WAYS = (("by turns", ["mode=serial"]), ("by turns, once drained", ["mode=serial", "overlap=false"]),
        ("by turns, kept for 1 ms", ["mode=serial", "idle-hold=1ms"]), ("at once", ["mode=concurrent"]))
RESET = ["mode=serial", "overlap=true", "idle-hold=auto", "quantum=auto"]


def work(index, control, out, side, every):
    """One program: products while its bit is set. Writes when each step's first launch, last launch and wait ended."""
    import numpy
    import torch

    with open(control, "r+b") as file:
        flags = mmap.mmap(file.fileno(), 64)
    torch.manual_seed(1)
    a = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
    b = torch.empty_like(a)
    for _ in range(10):
        torch.mm(a, a, out=b)
    torch.cuda.synchronize()
    flags[READY_AT + index] = 1
    steps, now = [], time.monotonic_ns
    while not flags[0] & END:
        if not flags[0] >> index & 1:
            time.sleep(0.001)
            continue
        begin = now()
        torch.mm(a, a, out=b)
        first = now()
        for _ in range(every - 1):
            torch.mm(a, a, out=b)
        last = now()
        torch.cuda.synchronize()
        steps.append((begin, first, last, now()))
    numpy.save(out, numpy.array(steps, numpy.int64))


class Pair:
    """Two programs that work when they are told to."""

    def __init__(self, options, name, environment):
        self.files = [options.out / f"{name}-{i}.npy" for i in range(2)]
        self.control = options.out / f"{name}.control"
        self.control.write_bytes(bytes(64))
        with open(self.control, "r+b") as file:
            self.flags = mmap.mmap(file.fileno(), 64)
        self.name = name
        self.programs = [subprocess.Popen([sys.executable, __file__, "--work", str(i), self.control, out,
                                           str(options.side), str(options.every)], env=environment)
                         for i, out in enumerate(self.files)]

    def wait_ready(self):
        while not all(self.flags[READY_AT + i] for i in range(2)):
            if any(program.poll() is not None for program in self.programs):
                sys.exit(f"a program of {self.name} ended before it was ready")
            time.sleep(0.05)

    def window(self, who, seconds):
        self.flags[0] = who
        time.sleep(SETTLES_S)
        begin = time.monotonic_ns()
        time.sleep(seconds)
        end = time.monotonic_ns()
        self.flags[0] = 0
        time.sleep(0.02)
        return begin, end

    def end(self):
        self.flags[0] = END
        for program in self.programs:
            try:
                program.wait(60)
            except subprocess.TimeoutExpired:
                program.kill()
        self.control.unlink()


def rate(files, begin, end, every):
    """Products a second in that time."""
    import numpy

    ends = numpy.concatenate([numpy.load(file).reshape(-1, 4)[:, 3] for file in files])
    return ((ends >= begin) & (ends < end)).sum() * every / ((end - begin) / 1e9)


def measure(options):
    options.out.mkdir(parents=True, exist_ok=True)
    libraries = {"": options.dist / "lib" / "libgpumux.so"}
    if options.other:
        libraries["other: "] = options.other
    with tempfile.TemporaryDirectory(prefix="gpumux-") as folder, contextlib.ExitStack() as running:
        environment = dict(os.environ, GPUMUX_RUNTIME_DIR=folder, GPUMUX_STATE_DIR=os.path.join(folder, "state"))
        with open(options.out / "daemon.log", "wb") as log:
            daemon = subprocess.Popen([options.dist / "bin" / "gpumuxd", "--private"], env=environment, stderr=log)
        running.callback(daemon.wait, 10)
        running.callback(daemon.terminate)
        time.sleep(1.5)

        def configure(settings):
            chosen = dict(pair.split("=", 1) for pair in settings)  # the last one counts
            words = [word for name, value in chosen.items() for word in (f"--{name}", value)]
            subprocess.run([options.dist / "bin" / "gpumux", "set", *words], env=environment, check=True,
                           stdout=subprocess.DEVNULL)

        def start(name, environment):
            pair = Pair(options, name, environment)
            running.callback(pair.end)
            return pair

        native = start("native", dict(os.environ))
        pairs = {name: start(f"gpumux{i}", dict(environment, LD_PRELOAD=str(library.resolve())))
                 for i, (name, library) in enumerate(libraries.items())}
        for pair in (native, *pairs.values()):
            pair.wait_ready()
        phases = [("alone, native", native, 1, []), ("at once, native", native, 3, [])]
        phases += [(prefix + name, pair, 3, RESET + settings) for name, settings in options.way
                   for prefix, pair in pairs.items()]
        native.window(1, WARM_S)
        windows = []
        for turn in range(options.rounds):
            for name, pair, who, settings in phases[::-1] if turn % 2 else phases:
                if settings:
                    configure(settings)
                windows.append((turn, name, pair, pair.window(who, options.seconds)))
    rates = {}
    for turn, name, pair, (begin, end) in windows:
        rates.setdefault(name, []).append(rate(pair.files, begin, end, options.every))
    alone = rates["alone, native"]
    lines = [f"{options.every} products of side {options.side} at a time; of what one native program gets done alone "
             f"in the same round ({statistics.median(alone):.1f} a second), median of {options.rounds}"]
    for name, of in rates.items():
        parts = [100 * one / base for one, base in zip(of, alone)]
        lines.append(f"{name:32} {statistics.median(parts):6.1f} %   {', '.join(f'{part:.1f}' for part in parts)}")
    (options.out / "table.txt").write_text("\n".join(lines) + "\n")
    (options.out / "windows.json").write_text(json.dumps(
        [(turn, name, [file.name for file in pair.files], when) for turn, name, pair, when in windows]) + "\n")
    print("\n".join(lines))


def main():
    if sys.argv[1:2] == ["--work"]:
        return work(int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--way", nargs="+", action="append", metavar=("NAME", "SETTING=VALUE"))
    parser.add_argument("--other", type=pathlib.Path, help="another libgpumux.so")
    options = parser.parse_args()
    options.way = [(name, settings) for name, *settings in options.way] if options.way else WAYS
    return measure(options)


if __name__ == "__main__":
    main()
