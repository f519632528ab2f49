#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of three programs went: python3 pace.py DIR, of an unpacked raw-N.tar.gz from 16 on.

For each turn, from its memory being complete to its end: steps a second against those alone, the time that this comes
to, and the speed second by second in per cent. Beforehand the lease trace, in seconds from the programs' beginning.
"""
import glob
import json
import sys

EVENTS = ("grant", "complete", "revoke", "drained", "evicted", "gone")


def result(path):
    with open(path, encoding="utf-8") as file:
        return json.loads(file.read().split("RESULT ", 1)[1])


def rate(points):
    return (points[-1][1] - points[0][1]) / ((points[-1][0] - points[0][0]) / 1e9)


def by_second(points, alone):
    speeds, before = [], points[0]
    for point in points:
        if point[0] - before[0] >= 1e9:
            speeds.append(round(100 * rate([before, point]) / alone))
            before = point
    return speeds


def main():
    folder = sys.argv[1]
    alone = rate(result(f"{folder}/native.large.out")["pace"])
    programs = {one["pid"]: one for one in map(result, sorted(glob.glob(f"{folder}/three*large*.out")))}
    begin = min(one["start_ns"] for one in programs.values())
    with open(glob.glob(f"{folder}/three*.trace.jsonl")[0], encoding="utf-8") as file:
        events = sorted(map(json.loads, file), key=lambda event: event["time_ns"])
    turns, complete = [], {}
    for event in events:
        pid, when = event.get("pid"), event["time_ns"]
        if event["event"] in EVENTS and when >= begin - 1e9:
            print(f"{(when - begin) / 1e9:8.3f} {event['event']:8} {pid}")
        if event["event"] == "complete" or (event["event"] == "grant" and when < begin):
            complete[pid] = when
        if event["event"] in ("revoke", "drained") and pid in complete and when >= begin:
            turns.append((pid, max(complete.pop(pid), begin), when))
    print(f"alone: {alone:.2f} steps a second")
    lost = 0
    for pid, start, end in turns:
        points = [point for point in programs[pid]["pace"] if start <= point[0] <= end] if pid in programs else []
        if len(points) < 3:
            continue
        seconds = (points[-1][0] - points[0][0]) / 1e9
        missing = seconds - (points[-1][1] - points[0][1]) / alone
        lost += missing
        print(f"turn of {pid}, {(start - begin) / 1e9:.2f} to {(end - begin) / 1e9:.2f} s: {rate(points):.2f} steps a "
              f"second, {missing:.2f} s lost; {by_second(points, alone)}")
    print(f"lost in turns whose memory is complete: {lost:.2f} s")


if __name__ == "__main__":
    main()
