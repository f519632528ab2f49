#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long requests took, by how long the training's work was on the GPU beside them.

    beside.py RAW.tar.gz...

RAW.tar.gz is what bench/experiment/run.py --keep-traces --pack leaves; all rounds of a configuration count as one.
Requests of the latency task alone are shown first. The first column shows what is no fault of the training's.
"""
import csv
import io
import gzip
import json
import sys
import tarfile

# Of the training's work beside a request, ms.
CLASSES = ((0, 0.6), (0.6, 2), (2, float("inf")))
PARTS = (0.5, 0.9, 0.95)


def rows(archive, name):
    text = io.TextIOWrapper(archive.extractfile(f"raw/{name}.csv"), encoding="utf-8")
    return list(csv.reader(text))[1:]


def on_the_gpu(archive, name):
    """When the training's work was: from a grant to drained (ns since the measurement's begin)."""
    data = gzip.decompress(archive.extractfile(f"raw/{name}.trace.jsonl.gz").read())
    events = [json.loads(line) for line in data.decode().splitlines()]
    granted = next(event["time_ns"] for event in events
                   if event["event"] == "grant" and event.get("program") == "latency")
    first = next(int(begin) for task, begin, _, _ in rows(archive, f"{name}.leases") if task == "latency")
    found, begin = [], None
    for event in events:
        if event.get("program") != "batch":
            continue
        when = event["time_ns"] - granted + first
        if event["event"] == "grant" and begin is None:
            begin = when
        elif event["event"] == "drained" and begin is not None:
            found.append((begin, when))
            begin = None
    return found


def quantiles(times):
    times = sorted(times)
    if not times:
        return f"{0:6}" + " " * 28
    shown = [times[min(len(times) - 1, int(len(times) * part))] for part in PARTS] + times[-1:]
    return f"{len(times):6}" + "".join(f"{time:7.2f}" for time in shown)


def main():
    took = {}  # configuration: class: ms
    for path in sys.argv[1:]:
        with tarfile.open(path) as archive:
            names = sorted(name[len("raw/"):-len(".requests.csv")] for name in archive.getnames()
                           if name.endswith(".requests.csv"))
            traced = {name[len("raw/"):-len(".trace.jsonl.gz")] for name in archive.getnames()
                      if name.endswith(".trace.jsonl.gz")}
            for name in names:
                configuration = name.rsplit(".", 1)[0]
                if name not in traced and configuration != "alone-latency":
                    continue
                busy = on_the_gpu(archive, name) if name in traced else []
                classes = took.setdefault(configuration, [[] for _ in CLASSES])
                for _, begin, end in (map(int, row) for row in rows(archive, f"{name}.requests") if row[2]):
                    beside = sum(max(0, min(last, end) - max(first, begin)) for first, last in busy) / 1e6
                    for times, (low, high) in zip(classes, CLASSES):
                        if low <= beside < high:
                            times.append((end - begin) / 1e6)
    print("service time, ms: requests, " + ", ".join(f"p{part * 100:g}" for part in PARTS) + ", most")
    print(" " * 16 + "".join(f"{f'training beside it {low} to {high} ms':>40}" for low, high in CLASSES))
    for configuration, classes in took.items():
        print(f"{configuration:16}" + "".join(f"{quantiles(times):>40}" for times in classes))


if __name__ == "__main__":
    main()
