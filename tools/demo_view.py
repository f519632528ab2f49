#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows a trace of leases as it happens: a line for each turn. Reads the lines of `gpumux trace --json`.

    gpumux trace --follow --json | tools/demo_view.py --name PID=NAME ...

Ends with the input, or on SIGTERM. docs/api.md describes the events. `gpumux trace --picture` shows the same as a
picture.
"""

import argparse
import json
import signal
import sys

ENDS = {"drained", "gone", "close"}

# Shorter turns are counted and not shown one by one: nobody could read them.
READABLE_NS = 40_000_000


class Timeline:
    """The turns of each program on one GPU."""

    def __init__(self, names):
        self.names = names
        self.start = None
        self.since = {}    # program: when its present hold began
        self.asked = {}    # program: when it began to wait
        self.delay = {}    # program: how long it waited for its present hold
        self.short = {}    # program: turns too short to show, since the last that was shown

    def name_of(self, event):
        return self.names.get(event.get("pid"), event.get("program") or f"pid {event.get('pid')}")

    def add(self, event):
        """Takes one event; returns a line for people, or None."""
        time, kind = event["time_ns"], event["event"]
        self.start = time if self.start is None else self.start
        if "pid" not in event:
            return None
        name = self.name_of(event)
        if kind == "request":
            self.asked.setdefault(name, time)
        elif kind == "grant":
            waited = time - self.asked.pop(name, time)
            self.since[name] = time
            self.delay[name] = waited
        elif kind in ENDS | {"gate_closed"} and name in self.since:
            begin = self.since.pop(name)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", action="append", default=[], metavar="PID=NAME")
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


if __name__ == "__main__":
    main()
