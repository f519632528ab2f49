#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast can a request be on a GPU that has just trained? floor.py [--seconds S] [--rounds N]

No scheduler is in this: both programs run on the plain driver, and the training stands still of its own accord. Before
each request it stops submitting and waits until its work is done. Then the request begins, and is timed. So no other
work runs during a request, and what a request takes longer than alone is the GPU's doing: its clock, its caches.
"""
import argparse
import multiprocessing
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "experiment"))
RATE = 20.0


def train(name, orders):
    import models_torch
    model = models_torch.make("batch", name)
    for _ in range(5):
        model.submit().wait()
    orders.send("ready")
    steps = 0
    while True:
        while not orders.poll():
            model.submit().wait()
            steps += 1
        if orders.recv() == "end":
            return
        orders.send(steps)
        orders.recv()  # go on


def requests(model, seconds, seed, training):
    chance = random.Random(seed)
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chance.expovariate(RATE))
        if training is not None:
            training.send("stand still")
            training.recv()
        begin = time.monotonic_ns()
        model.request()
        times.append((time.monotonic_ns() - begin) / 1e6)
        if training is not None:
            training.send("go on")
    times.sort()
    return ", ".join(f"p{part} {times[len(times) * part // 100]:.2f}" for part in (10, 50, 90, 99))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=["matmul", "resnet"])
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    import models_torch
    model = models_torch.make("latency", "vit")
    for _ in range(20):
        model.request()
    for number in range(options.rounds):
        print(f"round {number + 1} | alone | {requests(model, options.seconds, number, None)}", flush=True)
        for name in options.models:
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=train, args=(name, theirs))
            process.start()
            ours.recv()
            print(f"round {number + 1} | beside {name} that stands still | "
                  f"{requests(model, options.seconds, number, ours)}", flush=True)
            ours.send("end")
            process.join()


if __name__ == "__main__":
    main()
