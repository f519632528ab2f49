#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One of the two programs of the experiment: task.py latency|batch --model NAME --log FILE ...

run.py starts it, with or without gpumux, and speaks with it by lines: `imported` and `ready` come from here on standard
output, `warm` and `go START END` (CLOCK_MONOTONIC, nanoseconds) come on standard input. Warming up waits for a word, so
that run.py decides who uses the GPU first: in some of the wrapper's modes nobody comes after the latency task.

The log has a line for everything that was finished, written as it happens, so a program that had to be killed has told
what it did:

    latency: arrival, begin and end of each request      batch: end of each step; the first line is the loop's begin
"""

import argparse
import collections
import gc
import os
import sys
import time

import arrivals

# As training loops have it: the next step is submitted before the last one has ended, so the GPU never waits for
# Python.
STEPS_AHEAD = 2
# Small programs that wait for each step before they submit the next one.
WAITING_MODELS = ("matmul-1024", "spin-small")
WARM_REQUESTS = 20
WARM_STEPS = 5
# Sleeping is as exact as this; the rest is waited for by looking at the clock.
SLEEP_ERROR_NS = 200_000


class Log:

    def __init__(self, path):
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, *numbers):
        os.write(self.descriptor, (",".join(map(str, numbers)) + "\n").encode())


def say(text):
    print(text, flush=True)


def hear(word):
    line = sys.stdin.readline().split()
    if not line or line[0] != word:
        sys.exit(f"expected to hear '{word}', not {line}")
    return [int(number) for number in line[1:]]


def wait_until(time_ns):
    left = time_ns - time.monotonic_ns()
    if left > SLEEP_ERROR_NS:
        time.sleep((left - SLEEP_ERROR_NS) / 1e9)
    while time.monotonic_ns() < time_ns:
        pass


def serve(model, log, times, start_ns, stop_ns):
    """Requests one after the other, each when it comes or as soon as the one before is done."""
    for offset in times:
        arrival = start_ns + offset
        wait_until(arrival)
        begin = time.monotonic_ns()
        if begin >= stop_ns:
            break
        model.request()
        log.write(arrival, begin, time.monotonic_ns())


def train(model, log, end_ns, ahead):
    log.write(time.monotonic_ns())
    under_way = collections.deque()
    while time.monotonic_ns() < end_ns:
        under_way.append(model.submit())
        if len(under_way) > ahead:
            under_way.popleft().wait()
            log.write(time.monotonic_ns())
    for mark in under_way:
        mark.wait()
        log.write(time.monotonic_ns())


def load(role, name):
    if name.startswith("spin"):
        import models_driver
        return lambda: models_driver.Spin(name, role)
    import models_torch
    models_torch.prepare(role, name)
    return lambda: models_torch.make(role, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["latency", "batch"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--ballast", type=float, default=0.0, help="so much of the GPU's memory is to be this task's")
    parser.add_argument("--gpu-memory", type=int, default=0, metavar="BYTES",
                        help="the GPU's memory, for where a library shows the task less (default: what it sees)")
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--grace", type=float, default=1.0, help="seconds after the end for requests that wait still")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    make = load(arguments.role, arguments.model)
    log = Log(arguments.log)
    say("imported")
    hear("warm")
    model = make()
    if arguments.role == "latency":
        for _ in range(WARM_REQUESTS):
            model.request()
    else:
        for mark in [model.submit() for _ in range(WARM_STEPS)]:
            mark.wait()
    if arguments.ballast:
        model.fill(arguments.ballast, arguments.gpu_memory)
    model.settle()
    # Python's own collections would show as slow requests.
    gc.collect()
    gc.freeze()
    say(f"ready {model.describe()}")
    start_ns, end_ns = hear("go")
    if arguments.role == "latency":
        times = arrivals.poisson(arguments.rate, arguments.seconds, arguments.seed)
        serve(model, log, times, start_ns, end_ns + round(arguments.grace * 1e9))
    else:
        train(model, log, end_ns, 0 if arguments.model in WAITING_MODELS else STEPS_AHEAD)
    say("done")
    # Nothing is left to say: what frameworks do at their end would only take time.
    os._exit(0)


if __name__ == "__main__":
    main()
