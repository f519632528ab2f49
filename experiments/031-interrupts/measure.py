#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What interrupts change: measure.py --dist DIST [--out FILE] [--seconds S] [--rounds N]

On a machine with one GPU and g++. Each case runs natively (the programs beside each other without gpumux), with
`interrupt = off`, and with `interrupt = auto`, one after the other, in each round. One line for each program: its own
words (turns.cc).
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent

# name: [(seconds to wait before it starts, options of `gpumux run`, arguments)]
CASES = {
    "requests alone": [(0, ["--priority", "0"], ["request", "20", "1000", "S"])],
    "requests (higher) beside kernels of 1 ms": "spin 1",
    "requests (higher) beside kernels of 20 ms": "spin 20",
    "requests (higher) beside kernels of 500 ms": "spin 500",
    "requests (higher) beside 20 ms over 2 GiB": "spin 20 2048",
    "requests (higher) beside an endless kernel": "endless",
    "two with kernels of 50 ms": [(0, [], ["spin", "50", "S"]), (0, [], ["spin", "50", "S"])],
    "two with kernels of 1 ms": [(0, [], ["spin", "1", "S"]), (0, [], ["spin", "1", "S"])],
    "endless beside kernels of 5 ms": [(0, [], ["endless", "S+"]), (1, [], ["spin", "5", "S"])],
    "shares 1:2:4 of kernels of 50 ms": [(0, ["--share", share], ["spin", "50", "S"]) for share in ("1", "2", "4")],
}


def programs(case, seconds):
    if isinstance(case, str):
        words = case.split()
        beside = [words[0]] + (words[1:2] or []) + [str(seconds + 2)] + words[2:]
        return [(0, [], beside), (1, ["--priority", "10"], ["request", "20", "1000", str(seconds)])]
    fill = {"S": str(seconds), "S+": str(seconds + 3)}
    return [(delay, options, [fill.get(word, word) for word in words]) for delay, options, words in case]


class Daemon:
    def __init__(self, dist, interrupt):
        self.folder = tempfile.mkdtemp(prefix="turns.")
        self.environment = {**os.environ, "GPUMUX_RUNTIME_DIR": self.folder, "GPUMUX_MODE": "serial"}
        self.environment["GPUMUX_INTERRUPT"] = interrupt
        self.log = open(os.path.join(self.folder, "log"), "w+")
        self.process = subprocess.Popen([dist / "bin/gpumuxd"], env=self.environment, stdout=self.log,
                                        stderr=self.log)
        for _ in range(100):
            if os.path.exists(os.path.join(self.folder, "api.sock")):
                break
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def run(dist, turns, case, seconds, environment, native):
    started = []
    begin = time.monotonic()
    for delay, options, words in programs(case, seconds):
        time.sleep(max(0.0, begin + delay - time.monotonic()))
        argv = [str(turns), *words]
        if not native:
            argv = [str(dist / "bin/gpumux"), "run", *options, "--", *argv]
        process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append((words, process))
    lines = []
    for words, process in started:
        try:
            output, _ = process.communicate(timeout=seconds * 3 + 20)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += "\nKILLED: it was not done"
        lines.append(" ".join(words) + ": " + "; ".join(line for line in output.splitlines() if line != "ready"))
    return lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--ways", nargs="*", default=["native", "off", "auto"])
    options = parser.parse_args()
    dist = options.dist.resolve()
    folder = tempfile.mkdtemp(prefix="turns.")
    turns = pathlib.Path(folder) / "turns"
    cuda = os.environ.get("CUDA_PATH", "/usr/local/cuda")
    subprocess.run(["g++", "-std=c++20", "-O2", str(HERE / "turns.cc"), f"-I{cuda}/include",
                    f"-L{cuda}/lib64/stubs", "-lcuda", "-lpthread", "-o", str(turns)], check=True)
    out = open(options.out, "w") if options.out else sys.stdout

    def say(line):
        print(line, flush=True)
        if options.out:
            print(line, file=out, flush=True)

    # The kernels' length is measured once, on the quiet GPU.
    first = subprocess.run([turns, "spin", "20", "0.5"], capture_output=True, text=True, check=False).stdout
    loops = next(line.split("=")[1] for line in first.splitlines() if line.startswith("loops_per_ms="))
    say(f"loops_per_ms={loops}")
    for number in range(options.rounds):
        for way in options.ways:
            daemon = None if way == "native" else Daemon(dist, way)
            environment = {**(os.environ if daemon is None else daemon.environment), "LOOPS_PER_MS": loops}
            for name, case in CASES.items():
                if options.only and not any(word in name for word in options.only):
                    continue
                if way != "auto" and "endless" in name:
                    continue
                for line in run(dist, turns, case, options.seconds, environment, daemon is None):
                    say(f"round {number + 1} | {way} | {name} | {line}")
            if daemon is not None:
                daemon.stop()
                daemon.log.seek(0)
                for line in daemon.log.read().splitlines():
                    if any(word in line for word in ("warn", "error", "not interrupted", "stall")):
                        say("  log: " + line)


if __name__ == "__main__":
    main()
