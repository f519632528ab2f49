# SPDX-License-Identifier: Apache-2.0
"""The figures of a run, from what the two programs logged and what the daemon traced. Pure: lists in, numbers out."""

import math
import pathlib
import statistics
import sys
from dataclasses import dataclass, field

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework.spans import spans  # noqa: E402

PERCENTILES = (0.5, 0.95, 0.99)


@dataclass
class Request:
    arrival: int  # all in nanoseconds of CLOCK_MONOTONIC
    begin: int
    end: int


@dataclass
class Hold:
    """One stretch of time for which a task might use the GPU."""
    begin: int
    end: int
    exclusive: bool = True


def percentile(values, share):
    """The smallest value that at least `share` of all values do not exceed; of none, not a number."""
    if not values:
        return math.nan
    ordered = sorted(values)
    # Rounded, for 0.95 * 20 is a little more than 19.
    return ordered[max(math.ceil(round(share * len(ordered), 9)) - 1, 0)]


def latencies_ms(requests):
    return [(request.end - request.arrival) / 1e6 for request in requests]


def latency_figures(requests, waited_ms=()):
    """Percentiles over all requests that came. `waited_ms`: how long those had waited that were never answered. Theirs
    would have been more: a percentile that reaches them says only that it is at least so much."""
    known = sorted(latencies_ms(requests))
    # The unanswered ones are the slowest, whatever they had waited when it ended.
    floor = max([known[-1] if known else 0.0, *waited_ms]) if waited_ms else 0.0
    everything = known + [floor] * len(waited_ms)
    figures = {f"p{100 * share:g}": percentile(everything, share) for share in PERCENTILES}
    figures["max"] = everything[-1] if everything else math.nan
    figures["at_least"] = [name for name, share in [(f"p{100 * s:g}", s) for s in PERCENTILES] + [("max", 1.0)]
                           if waited_ms and math.ceil(round(share * len(everything), 9)) > len(known)]
    return figures


def covered(intervals, begin, end):
    """How much of [begin, end] some interval covers, where they overlap once."""
    total, reached = 0, begin
    for left, right in sorted(intervals):
        left, right = max(left, reached), min(right, end)
        if right > left:
            total += right - left
            reached = right
    return total


def busy_share(requests, begin, end):
    """The part of the time in which a request was in service."""
    return covered([(request.begin, request.end) for request in requests], begin, end) / (end - begin)


def steps_between(ends, begin, end):
    """How many steps were done in [begin, end]; a step that is partly in it counts by that part. The first of `ends` is
    when the first step began."""
    count = 0.0
    for left, right in zip(ends, ends[1:]):
        inside = min(right, end) - max(left, begin)
        if inside > 0:
            count += inside / (right - left)
    return count


ENDS = {"gate_closed", "drained", "gone", "close"}


def holds(events, pid):
    """When the GPU was this process's, from the daemon's trace: from each grant until its gate had closed."""
    return [Hold(span.begin, events[-1]["time_ns"] if span.end is None else span.end, span.exclusive)
            for span in spans(events, pids={pid}) if span.kind == "holds"]


def clipped(intervals, begin, end):
    """The parts of the holds that are within [begin, end]."""
    return [Hold(max(hold.begin, begin), min(hold.end, end), hold.exclusive) for hold in intervals
            if hold.begin < end and hold.end > begin]


@dataclass
class Turn:
    """One turn of a task, as it was felt."""
    asked: int
    granted: int
    ready: int      # when its memory was there too; the same as granted where nothing was missing
    arrived: bool   # False: the turn had ended by then, and `ready` says when


def turns(events, pid):
    """This process's turns in the daemon's trace: since when it asked, had the lease, had its memory."""
    found, asked, granted, missing = [], None, None, False
    for event in events:
        if event.get("pid") != pid:
            continue
        kind, at = event["event"], event["time_ns"]
        if kind == "request" and asked is None:
            asked = at
        elif kind == "evicted":
            missing = True
        elif kind == "grant":
            granted = (asked if asked is not None else at, at)
            asked = None
            if not missing:
                found.append(Turn(*granted, at, True))
                granted = None
        elif kind == "complete":
            if granted is not None:
                found.append(Turn(*granted, at, True))
            missing, granted = False, None
        elif kind in ENDS and granted is not None:
            found.append(Turn(*granted, at, False))
            granted = None
    return found


def middle(values):
    """(median, lowest, highest) of what is a number."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    if not known:
        return math.nan, math.nan, math.nan
    return statistics.median(known), min(known), max(known)


@dataclass
class Window:
    """The record of one configuration in one run."""
    begin: int
    end: int
    requests: list = field(default_factory=list)    # that were answered
    unanswered: list = field(default_factory=list)  # arrivals
    gave_up: int = 0                                # when the latency task stopped
    steps: list = field(default_factory=list)       # ends; the first one is the loop's begin
    holds: dict = field(default_factory=dict)       # role: holds
    turns: dict = field(default_factory=dict)       # role: turns

    def seconds(self):
        return (self.end - self.begin) / 1e9

    def figures(self):
        waited = [(self.gave_up - arrival) / 1e6 for arrival in self.unanswered]
        found = {"requests": len(self.requests) + len(waited), "unanswered": len(waited)}
        if self.requests or waited:
            found["latency_ms"] = latency_figures(self.requests, waited)
            found["free"] = 1 - busy_share(self.requests, self.begin, self.end)
        if self.steps:
            found["steps_per_s"] = steps_between(self.steps, self.begin, self.end) / self.seconds()
        for role, of_role in self.holds.items():
            inside = clipped(of_role, self.begin, self.end)
            found[f"{role}_held"] = covered([(hold.begin, hold.end) for hold in inside],
                                            self.begin, self.end) / (self.end - self.begin)
            found[f"{role}_turns_per_s"] = len(inside) / self.seconds()
        for role in self.turns:
            waits = self.waits_ms(role)
            if waits:
                found[f"{role}_wait_ms"] = {"median": percentile(waits, 0.5), "p99": percentile(waits, 0.99),
                                            "max": max(waits)}
        return found

    def turns_inside(self, role):
        return [turn for turn in self.turns.get(role, ()) if self.begin <= turn.asked < self.end]

    def waits_ms(self, role):
        """From asking for the GPU until it could be used."""
        return [(turn.ready - turn.asked) / 1e6 for turn in self.turns_inside(role) if turn.arrived]

    def fetches_ms(self, role):
        """From the lease until the memory was there, where something was missing."""
        return [(turn.ready - turn.granted) / 1e6 for turn in self.turns_inside(role)
                if turn.arrived and turn.ready > turn.granted]

    def fetches(self, role):
        """The stretches of time in which it had the lease and its memory was on the way."""
        return [Hold(turn.granted, turn.ready) for turn in self.turns.get(role, ()) if turn.ready > turn.granted]
