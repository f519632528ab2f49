#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""By how far the training's step was: how long requests took that came while it had the GPU.

    slow_requests.py RAW.tar.gz [CONFIGURATION.RUN]

RAW.tar.gz is what bench/experiment/run.py --pack leaves. With --keep-traces: also how long the training's work ran on
after its gate had closed.
"""
import bisect
import csv
import gzip
import io
import json
import pathlib
import statistics
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "experiment"))
import measures  # noqa: E402

PARTS = 20


def rows(archive, name):
    text = io.TextIOWrapper(archive.extractfile(f"raw/{name}.csv"), encoding="utf-8")
    return list(csv.reader(text))[1:]


def drains(archive, name, held):
    """Of each drain of the training: when its gate had closed, since the measurement's begin, and how much longer its
    work ran (ns). None where there is no trace."""
    try:
        data = gzip.decompress(archive.extractfile(f"raw/{name}.trace.jsonl.gz").read())
    except KeyError:
        return []
    events = [json.loads(line) for line in data.decode().splitlines()]
    for pid in {event["pid"] for event in events if "pid" in event}:
        holds = measures.holds(events, pid)
        lengths = [hold.end - hold.begin for hold in holds]
        if lengths[:len(held)] != [end - begin for begin, end in held]:
            continue
        offset = holds[0].begin - held[0][0]
        closed, found = None, []
        for event in events:
            if event.get("pid") == pid and event["event"] == "gate_closed":
                closed = event["time_ns"] - offset
            elif event.get("pid") == pid and event["event"] == "drained" and closed is not None:
                found.append((closed, event["time_ns"] - offset - closed))
                closed = None
        return found
    return []


def main():
    name = sys.argv[2] if len(sys.argv) > 2 else "priority.1"
    with tarfile.open(sys.argv[1]) as archive:
        requests = [tuple(map(int, row)) for row in rows(archive, f"{name}.requests") if row[2]]
        ends = [int(row[0]) for row in rows(archive, f"{name}.steps")]
        held = [(int(begin), int(end)) for task, begin, end, _ in rows(archive, f"{name}.leases") if task == "batch"]
        drained = drains(archive, name, held)

    def had(begin, end):
        """How long the training had the GPU in that time."""
        return sum(max(0, min(end, last) - max(begin, first)) for first, last in held)

    took, ran_on = {}, {}
    for _, begin, end in requests:
        step = bisect.bisect(ends, begin)
        if 0 < step < len(ends) and any(first < begin < last for first, last in held):
            phase = had(ends[step - 1], begin) / max(1, had(ends[step - 1], ends[step]))
            part = min(PARTS - 1, int(phase * PARTS))
            took.setdefault(part, []).append((end - begin) / 1e6)
            ran_on.setdefault(part, []).extend(length / 1e6 for closed, length in drained if begin < closed < end)
    print("part of the step   requests   service, ms: median   most   training ran on for: median   most")
    for part, times in sorted(took.items()):
        line = f"{part / PARTS:.2f} to {(part + 1) / PARTS:.2f} {len(times):14}{middle(times)}"
        print(line + (f"      {middle(ran_on[part])}" if ran_on[part] else ""))


def middle(times):
    return f"{statistics.median(times):22.2f} {max(times):7.2f}"


if __name__ == "__main__":
    main()
