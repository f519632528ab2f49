# SPDX-License-Identifier: Apache-2.0
"""Which program has each GPU when, from the events of a trace: src/api_client/holds.h says the rule.

This is written by itself, so that tests can compare it with what the commands say. A trace that is cut off at its
beginning has ends without beginnings, which count for nothing here.
"""

from dataclasses import dataclass


@dataclass
class Span:
    kind: str  # "waits", "holds" or "drains"
    gpu: int
    tenant: int
    pid: int
    begin: int
    end: int = None  # None: it goes on
    exclusive: bool = True

    def within(self, begin, end):
        """How much of it is in this time."""
        return max(min(end if self.end is None else self.end, end) - max(self.begin, begin), 0)


class Standing:
    """How programs stand, event by event. `gpu`, `pids`: these only."""

    def __init__(self, gpu=None, pids=None):
        self.gpu, self.pids = gpu, pids
        self.waits, self.holds, self.drains = {}, {}, {}  # by (tenant, pid, gpu)

    def concerns(self, event):
        is_here = self.gpu is None or event.get("gpu") == self.gpu or event["event"] == "gone"
        return is_here and (self.pids is None or event.get("pid") in self.pids)

    def through(self, events):
        """Each event that concerns this, before it is taken."""
        for event in events:
            if self.concerns(event):
                yield event
                self.take(event)

    def take(self, event):
        """Gives the spans that have begun."""
        kind, key = self._begins(event), self._key(event)
        for of_kind, other in self._ends(event):
            of_kind.pop(other).end = event["time_ns"]
        if kind is None or key in getattr(self, kind):
            return []
        span = Span(kind, event.get("gpu"), event.get("tenant"), event.get("pid"), event["time_ns"],
                    exclusive=event.get("lease") != "shared")
        getattr(self, kind)[key] = span
        return [span]

    @staticmethod
    def _key(event):
        return event.get("tenant"), event.get("pid"), event.get("gpu")

    def _begins(self, event):
        name, key = event["event"], self._key(event)
        if name == "claim":
            name = {"waiting": "request", "holding": "grant"}.get(event.get("detail"), name)
        if name == "request":
            return "waits"
        if name == "grant":
            return "holds"
        if name == "claim":
            return "drains" if event.get("detail") == "draining" else None
        return "drains" if name == "gate_closed" and key in self.holds else None

    def _ends(self, event):
        """[(the spans of a kind, key)]"""
        name, key = event["event"], self._key(event)
        if name == "gone":
            return [(of_kind, other) for of_kind in (self.waits, self.holds, self.drains) for other in of_kind
                    if other[:2] == key[:2]]
        kinds = {"gate_closed": [self.holds], "drained": [self.holds, self.drains],
                 "stall": [self.holds, self.drains], "close": [self.waits, self.holds, self.drains]}.get(name, [])
        if name == "grant" or (name == "claim" and event.get("detail") in ("holding", "draining")):
            kinds = [self.waits, self.drains]
            # A lease that changes its kind while it is held makes another hold.
            if key in self.holds and self.holds[key].exclusive != (event.get("lease") != "shared"):
                kinds.append(self.holds)
        return [(of_kind, key) for of_kind in kinds if key in of_kind]


def spans(events, gpu=None, pids=None):
    """In the order of their beginnings."""
    standing = Standing(gpu, pids)
    return [span for event in events if standing.concerns(event) for span in standing.take(event)]
