#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows a trace of leases as it happens, and sums it up at its end. Reads the lines of `gpumux trace --json`.

    gpumux trace --follow --json | tools/demo_view.py --name PID=NAME ... [--width 64]

Ends with the input, or on SIGTERM, and prints for each program a row of when it held the GPU, how often it was granted,
how long it held and how long it waited. docs/api.md describes the events.
"""

import argparse
import json
import signal
import sys

ENDS = {"drained", "gone", "close"}

# Shorter turns are counted and not shown one by one: nobody could read them.
READABLE_NS = 40_000_000


class Timeline:
    """The stretches of time for which each program held one GPU."""

    def __init__(self, names):
        self.names = names
        self.start = None
        self.end = None
        self.since = {}    # program: when its present hold began
        self.asked = {}    # program: when it began to wait
        self.stretches = {}  # program: [(from, to)]
        self.waited = {}
        self.grants = {}
        self.delay = {}    # program: how long it waited for its present hold
        self.short = {}    # program: turns too short to show, since the last that was shown

    def name_of(self, event):
        return self.names.get(event.get("pid"), event.get("program") or f"pid {event.get('pid')}")

    def add(self, event):
        """Takes one event; returns a line for people, or None."""
        time, kind = event["time_ns"], event["event"]
        self.start = time if self.start is None else self.start
        self.end = time
        if "pid" not in event:
            return None
        name = self.name_of(event)
        self.stretches.setdefault(name, [])
        if kind == "request":
            self.asked.setdefault(name, time)
        elif kind in ("grant", "reopen"):
            waited = time - self.asked.pop(name, time)
            self.waited[name] = self.waited.get(name, 0) + waited
            self.grants[name] = self.grants.get(name, 0) + 1
            self.since[name] = time
            self.delay[name] = waited
        elif kind in ENDS | {"gate_closed"} and name in self.since:
            begin = self.since.pop(name)
            self.stretches[name].append((begin, time))
            if time - begin >= READABLE_NS:
                return self.turn(begin, time, name)
            self.short[name] = self.short.get(name, 0) + 1
        elif kind in ("stall", "silent", "kill"):
            return self.line(time, name, kind)
        return None

    def turn(self, begin, end, name):
        what = f"held the GPU for {(end - begin) / 1e6:.0f} ms"
        if self.delay[name]:
            what += f" after waiting {self.delay[name] / 1e6:.0f} ms"
        for other, count in sorted(self.short.items()):
            what += f"; {other} had {count} short turn{'s' if count > 1 else ''}"
        self.short.clear()
        return self.line(end, name, what)

    def line(self, time, name, what):
        others = sorted(other for other in self.asked if other != name)
        waiting = f"   ({', '.join(others)} {'wait' if len(others) > 1 else 'waits'})" if others else ""
        return f"{(time - self.start) / 1e9:7.2f} s  {name:10} {what}{waiting}"

    def summary(self, width):
        if self.start is None:
            return ["no leases were given"]
        for name, begin in self.since.items():
            self.stretches[name].append((begin, self.end))
        self.since.clear()
        span = max(self.end - self.start, 1)
        lines = [f"{'':10} {'0 s':<{max(width - 6, 3)}}{span / 1e9:4.1f} s   turns     held   waited"]
        for name in sorted(name for name in self.stretches if self.stretches[name]):
            cells = [0] * width
            for begin, end in self.stretches[name]:
                for cell in range(width):
                    left, right = self.start + span * cell // width, self.start + span * (cell + 1) // width
                    cells[cell] += max(0, min(end, right) - max(begin, left))
            # Four shades: not at all, a little, about half, all of the cell.
            row = "".join(" ░▒█"[min(3, max(cell > 0, (4 * cell * width + span // 2) // span))] for cell in cells)
            held = sum(end - begin for begin, end in self.stretches[name])
            lines.append(f"{name:10} {row} {self.grants.get(name, 0):7} {held / 1e9:6.2f} s "
                         f"{self.waited.get(name, 0) / 1e9:6.2f} s")
        return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", action="append", default=[], metavar="PID=NAME")
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    names = {int(pid): name for pid, name in (pair.split("=", 1) for pair in arguments.name)}
    timeline = Timeline(names)

    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        for text in sys.stdin:
            line = timeline.add(json.loads(text))
            if line:
                print(line, flush=True)
    except KeyboardInterrupt:
        pass
    print()
    print("\n".join(timeline.summary(arguments.width)), flush=True)


if __name__ == "__main__":
    main()
