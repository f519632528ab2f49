#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""By how far the training's step was: how long requests took that came while it had the GPU.

    slow_requests.py RAW.tar.gz [CONFIGURATION.RUN]

RAW.tar.gz is what bench/experiment/run.py --pack leaves. With --keep-traces: also how long the training took to drain.
"""
import bisect
import csv
import gzip
import io
import json
import statistics
import sys
import tarfile

PARTS = 20


def rows(archive, name):
    text = io.TextIOWrapper(archive.extractfile(f"raw/{name}.csv"), encoding="utf-8")
    return list(csv.reader(text))[1:]


def drains(archive, name):
    """How long each drain took that a request asked for, in ms, by the moment; none where there is no trace."""
    try:
        data = gzip.decompress(archive.extractfile(f"raw/{name}.trace.jsonl.gz").read())
    except KeyError:
        return []
    closed, found, urgent = {}, [], set()
    for event in map(json.loads, data.decode().splitlines()):
        tenant = event.get("tenant")
        if event["event"] == "revoke" and event.get("detail") == "urgent":
            urgent.add(tenant)
        elif event["event"] == "gate_closed" and tenant in urgent:
            closed[tenant] = event["time_ns"]
        elif event["event"] == "drained" and tenant in closed:
            found.append((event["time_ns"] - closed.pop(tenant)) / 1e6)
            urgent.discard(tenant)
    return found


def main():
    name = sys.argv[2] if len(sys.argv) > 2 else "priority.1"
    with tarfile.open(sys.argv[1]) as archive:
        requests = [tuple(map(int, row)) for row in rows(archive, f"{name}.requests") if row[2]]
        ends = [int(row[0]) for row in rows(archive, f"{name}.steps")]
        held = [(int(begin), int(end)) for task, begin, end, _ in rows(archive, f"{name}.leases") if task == "batch"]
        drained = drains(archive, name)

    def had(begin, end):
        """How long the training had the GPU in that time."""
        return sum(max(0, min(end, last) - max(begin, first)) for first, last in held)

    took = {}
    for _, begin, end in requests:
        step = bisect.bisect(ends, begin)
        if 0 < step < len(ends) and any(first < begin < last for first, last in held):
            phase = had(ends[step - 1], begin) / max(1, had(ends[step - 1], ends[step]))
            took.setdefault(min(PARTS - 1, int(phase * PARTS)), []).append((end - begin) / 1e6)
    print("part of the step   requests   service, ms: median   most")
    for part, times in sorted(took.items()):
        print(f"{part / PARTS:.2f} to {(part + 1) / PARTS:.2f} {len(times):14} {statistics.median(times):21.1f} "
              f"{max(times):7.1f}")
    if drained:
        print(f"{len(drained)} drains for a request: median {statistics.median(drained):.2f} ms, most "
              f"{max(drained):.2f}; longer than 3 ms: {sum(one > 3 for one in drained)}")


if __name__ == "__main__":
    main()
