#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What interrupts change: measure.py --dist DIST [--out FILE] [--seconds S] [--rounds N]

On a machine with one GPU and g++. Each case runs natively (the programs beside each other without gpumux), with
`interrupt = off`, and with `interrupt = auto`, one after the other, in each round. With --xsched FOLDER (its build,
see bench/peers/README.md) also under XSched at its levels 1 and 3. One line for each program: its own words (turns.cc).
"""
import argparse
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
# Of a file system in memory: the driver does not register pages of others.
FILES = pathlib.Path(tempfile.mkdtemp(prefix="turns.", dir="/dev/shm"))

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
    "reaction: spin": "react spin",
    "reaction: memory": "react memory",
    "reaction: shared": "react shared",
    "reaction: spin, and another process allocates, is killed, starts": "react spin churn",
    "two endless kernels": "shares",
    "endless beside kernels of 5 ms": [(0, [], ["endless", "S+"]), (1, [], ["spin", "5", "S"])],
    "shares 1:2:4 of kernels of 50 ms": [(0, ["--share", share], ["spin", "50", "S"]) for share in ("1", "2", "4")],
}


def programs(case, seconds, file):
    if isinstance(case, str):
        words = case.split()
        if words[0] == "react":
            victim = (0, [], ["endless", str(seconds + 3), words[1], file])
            return [victim, (1, ["--priority", "10"], ["react", "20", "3000", str(seconds), file])]
        beside = [words[0]] + (words[1:2] or []) + [str(seconds + 2)] + words[2:]
        return [(0, [], beside), (1, ["--priority", "10"], ["request", "20", "1000", str(seconds)])]
    fill = {"S": str(seconds), "S+": str(seconds + 3)}
    return [(delay, options, [fill.get(word, word) for word in words]) for delay, options, words in case]


class Churn:
    """A process without gpumux that allocates all the time, is killed at some moment, and starts anew; until stop()."""

    def __init__(self, turns):
        self.stopped = threading.Event()
        self.random = random.Random(1)
        self.killed = 0
        self.thread = threading.Thread(target=self.work, args=(turns,))
        self.thread.start()

    def work(self, turns):
        while not self.stopped.is_set():
            process = subprocess.Popen([turns, "churn", "60"], stdout=subprocess.DEVNULL)
            self.stopped.wait(self.random.uniform(0.2, 1))
            process.kill()
            process.wait()
            self.killed += 1

    def stop(self):
        self.stopped.set()
        self.thread.join()
        return f"another process: killed {self.killed} times"


def shares(turns, seconds, gpumux, environment):
    """Of two kernels that never end: what each one's counter went on by, from when both do for `seconds`."""
    files = [FILES / f"words{index}" for index in range(2)]
    processes = [subprocess.Popen([*gpumux, turns, "endless", str(seconds + 8), "spin", file], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for file in files]
    time.sleep(4)

    def counters():
        return [struct.unpack("QQ", file.read_bytes()[:16])[1] for file in files]

    before = counters()
    time.sleep(seconds)
    counts = [after - then for after, then in zip(counters(), before)]
    for process in processes:
        process.communicate(timeout=60)
    return ["of the loops of both: " + ", ".join(f"{100 * count / max(1, sum(counts)):.2f} %" for count in counts)]


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


class Xsched:
    """Its server, and what its programs get: bench/peers/ways.py says where that is from."""

    def __init__(self, folder, level):
        self.process = subprocess.Popen([folder / "bin/xserver", "HPF", "50000"], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        time.sleep(1)
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib"), "XSCHED_SCHEDULER": "GLB",
                            "XSCHED_AUTO_XQUEUE": "ON", "XSCHED_AUTO_XQUEUE_LEVEL": level,
                            "XSCHED_CUDA_LV3_IMPL": "TSG"}

    def program(self, options):
        higher = "--priority" in options
        in_flight = ("16", "8") if higher else ("4", "2")
        return {**self.environment, "XSCHED_AUTO_XQUEUE_PRIORITY": "1" if higher else "0",
                "XSCHED_AUTO_XQUEUE_THRESHOLD": in_flight[0], "XSCHED_AUTO_XQUEUE_BATCH_SIZE": in_flight[1]}

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


def run(server, dist, turns, case, seconds, environment):
    is_gpumux = isinstance(server, Daemon)
    if case == "shares":
        gpumux = [dist / "bin/gpumux", "run", "--"] if is_gpumux else []
        return shares(turns, seconds, gpumux, environment)
    started = []
    churn = Churn(turns) if isinstance(case, str) and "churn" in case else None
    begin = time.monotonic()
    for delay, options, words in programs(case, seconds, str(FILES / "words")):
        time.sleep(max(0.0, begin + delay - time.monotonic()))
        argv = [str(turns), *words]
        if is_gpumux:
            argv = [str(dist / "bin/gpumux"), "run", *options, "--", *argv]
        variables = {**environment, **server.program(options)} if isinstance(server, Xsched) else environment
        process = subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append((words, process))
    lines = []
    for words, process in started:
        try:
            output, _ = process.communicate(timeout=seconds * 3 + 20)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += "\nKILLED: it was not done"
        words = [pathlib.Path(word).name for word in words]
        lines.append(" ".join(words) + ": " + "; ".join(line for line in output.splitlines() if line != "ready"))
    return lines + ([churn.stop()] if churn else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--ways", nargs="*", choices=["native", "off", "auto", "xsched-1", "xsched-3"])
    parser.add_argument("--xsched", type=pathlib.Path)
    options = parser.parse_args()
    if options.ways is None:
        options.ways = ["native", "off", "auto"] + (["xsched-1", "xsched-3"] if options.xsched else [])
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
            server = None
            if way in ("off", "auto"):
                server = Daemon(dist, way)
            elif way != "native":
                server = Xsched(options.xsched.resolve(), way.removeprefix("xsched-"))
            environment = {**(os.environ if server is None else server.environment), "LOOPS_PER_MS": loops}
            for name, case in CASES.items():
                if options.only and not any(word in name for word in options.only):
                    continue
                if way not in ("auto", "xsched-3") and ("endless" in name or "reaction" in name):
                    continue
                for line in run(server, dist, turns, case, options.seconds, environment):
                    say(f"round {number + 1} | {way} | {name} | {line}")
            if server is not None:
                server.stop()
            if isinstance(server, Daemon):
                server.log.seek(0)
                for line in server.log.read().splitlines():
                    if any(word in line for word in ("warn", "error", "not interrupted", "stall")):
                        say("  log: " + line)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(FILES, ignore_errors=True)
