# SPDX-License-Identifier: Apache-2.0
"""The order of turns (docs/order.md), judged by a lease trace on a machine of any speed.

A busy machine ends turns late, and a program there asks late for its next one. Both move the parts of the time that
programs get, so no part is right or wrong by itself. The daemon's decisions are right or wrong, and the times by which
it decides are in the trace.
"""

from dataclasses import dataclass

ROUNDING_NS = 1000  # of the daemon's divisions by weights: less than a nanosecond each


@dataclass(frozen=True)
class Party:
    """The programs of one share group on a GPU, and the group's weight."""
    pids: frozenset
    weight: float


class Turns:
    """One GPU's programs as a trace has them, event by event."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.asking = {}      # pid: since when it has asked; also while it drains
        self.open = set()     # pids that hold or drain
        self.leaving = {}     # of these, pids that are revoked: since when

    def waiting(self):
        """pid: since when it has asked. A program that drains does not wait yet."""
        return {pid: since for pid, since in self.asking.items() if pid not in self.open}

    def wants(self, pids):
        """Whether one of them asks or holds. A program that drains and does not ask wants nothing."""
        return any(pid in self.asking or pid in self.open - self.leaving.keys() for pid in pids)

    def take(self, event):
        pid, name, now = event.get("pid"), event["event"], event["time_ns"]
        if name == "request":
            self.asking[pid] = now
        elif name == "grant":
            self.asking.pop(pid, None)
            self.open.add(pid)
            self.leaving.pop(pid, None)
        elif name == "revoke" and pid in self.open:
            self.leaving.setdefault(pid, now)
        elif name == "drained":
            self.open.discard(pid)
        elif name in ("gone", "close"):
            self.asking.pop(pid, None)
            self.open.discard(pid)

    def through(self, events):
        """Each event of this GPU, before it is taken."""
        for event in events:
            if event.get("gpu") == self.gpu or event["event"] == "gone":
                yield event
                self.take(event)


def check_fair(events, gpu, one, other):
    """The moments at which `one` has had too much beside `other`; and how many moments were judged.

    Two rules of `fair` say of a moment which party has had at least as much, by weight: a holder goes for a party that
    waits only if the holder has had at least as much, and of two that wait the one goes first that has had no more.
    The daemon forgets the time of a party that does not ask. So between such a moment for `one` and a later one for
    `other`, `other` has had at least as much as `one` has taken while `other` wanted the GPU. Idle holds have to be
    unlimited: no program may give up its turn unasked.
    """
    turns = Turns(gpu)
    taken = had = 0
    least = None
    problems, choices = [], 0
    before = None

    def had_no_less(event):
        """The party of which this event says so. None: it says nothing of the kind."""
        pid, waiting = event.get("pid"), turns.waiting().keys()
        is_end = event["event"] == "revoke" and event.get("detail") == "quantum" and pid not in turns.leaving
        for first, second in ((one, other), (other, one)):
            if turns.open & second.pids:
                continue  # it is charged for a drain when that is over, and not before
            if is_end and pid in first.pids and waiting & second.pids and not waiting & first.pids:
                return first
            if event["event"] == "grant" and pid in second.pids and waiting & first.pids:
                return first
        return None

    for event in turns.through(events):
        now = event["time_ns"]
        passed = 0 if before is None else now - before
        before = now
        if turns.wants(other.pids):
            taken += passed * len(turns.open & one.pids) / one.weight
        had += passed * len(turns.open & other.pids) / other.weight
        if event["event"] == "revoke" and event.get("pid") in other.pids:
            # Drains that go on while another program of their party waits are not known yet.
            taken -= sum(now - turns.leaving.get(pid, now) for pid in turns.open & one.pids) / one.weight
        ahead = taken - had
        party = had_no_less(event)
        if party is one:
            least = ahead if least is None else min(least, ahead)
        elif party is other and least is not None:
            choices += 1
            if ahead - least > ROUNDING_NS / min(one.weight, other.weight):
                problems.append(f"at {event}: {sorted(one.pids)} have had {ahead - least:.0f} ns by weight more than "
                                f"{sorted(other.pids)}")
    return problems, choices


def check_oldest_first(events, gpu, pids):
    """The problems with the order of programs that stand alike (`fifo`; the programs of one share group); and how often
    more than one of them waited. The one that has asked first goes first."""
    turns = Turns(gpu)
    problems, choices = [], 0
    for event in turns.through(events):
        if event["event"] != "grant" or event["pid"] not in pids:
            continue
        waiting = {pid: since for pid, since in turns.waiting().items() if pid in pids}
        choices += len(waiting) > 1
        if waiting.get(event["pid"], event["time_ns"]) > min(waiting.values(), default=event["time_ns"]):
            problems.append(f"at {event}: these have asked at {waiting}")
    return problems, choices


def check_higher_first(events, gpu, high, low):
    """The grants to programs of `low` while `high` waited, which has a higher priority than they; and how often one of
    them had to go at once for a higher one."""
    turns = Turns(gpu)
    problems, urgent = [], 0
    for event in turns.through(events):
        if event.get("pid") in low:
            urgent += event["event"] == "revoke" and event.get("detail") == "urgent"
            if event["event"] == "grant" and high in turns.waiting():
                problems.append(f"at {event}: {high} waits")
    return problems, urgent
