# SPDX-License-Identifier: Apache-2.0
"""Shared by all workloads around their own steps: options, meeting the others, steady timing, one line `RESULT {json}`.

A workload is a class with step(i) (submits one step, need not wait), wait() (until all submitted work is done),
digest() (bytes that depend on everything computed) and peak_bytes(). How many steps are run decides the digest, so a
first run measures how many fill --seconds and later ones are told that number with --steps.
"""
import argparse
import hashlib
import json
import os
import sys
import time

WARM_UP = 6
MEASURED = 6
WAIT_EVERY = 5
PACE_NS = 250_000_000


def options(**more):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, help="steady steps; without it as many as fill --seconds")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--ready", help="create this file when warm")
    parser.add_argument("--go", help="wait for this file before the steady steps")
    for name, default in more.items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(default), default=default)
    return parser.parse_args()


def meet(arguments):
    if arguments.ready:
        with open(arguments.ready, "w"):
            pass
    end = time.monotonic() + 240
    while arguments.go and not os.path.exists(arguments.go):
        if time.monotonic() > end:
            sys.exit("nobody said go")
        time.sleep(0.002)


def result(**fields):
    print("RESULT " + json.dumps(fields), flush=True)


def run(work, arguments):
    started = time.monotonic_ns()
    step = 0
    for _ in range(WARM_UP):
        work.step(step)
        step += 1
    work.wait()
    begin = time.monotonic()
    for _ in range(MEASURED):
        work.step(step)
        step += 1
    work.wait()
    each = (time.monotonic() - begin) / MEASURED
    steps = arguments.steps or max(10, min(20000, round(arguments.seconds / each)))
    warm_s = (time.monotonic_ns() - started) / 1e9
    meet(arguments)

    times = []
    pace = []  # [when, steps done], four times a second: where time went, on the clock of the lease trace
    begin_ns = time.monotonic_ns()
    before = begin_ns
    for count in range(1, steps + 1):
        work.step(step)
        step += 1
        if count % WAIT_EVERY == 0:
            work.wait()
            now = time.monotonic_ns()
            times.append((now - before) / WAIT_EVERY)
            before = now
            if not pace or now - pace[-1][0] >= PACE_NS:
                pace.append([now, count])
    work.wait()
    end_ns = time.monotonic_ns()
    digest = hashlib.sha256(work.digest()).hexdigest()
    result(digest=digest, steps=steps, steady_s=(end_ns - begin_ns) / 1e9, done_ns=time.monotonic_ns(),
           median_step_ms=sorted(times)[len(times) // 2] / 1e6 if times else None, warm_s=warm_s,
           peak_bytes=work.peak_bytes(), start_ns=begin_ns, end_ns=end_ns, pid=os.getpid(), pace=pace)
