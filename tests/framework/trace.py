# SPDX-License-Identifier: Apache-2.0
"""The lease trace: who held which GPU when, from the daemon's own account (docs/api.md, GET /v1/trace)."""

import contextlib
import http.client
import json
import pathlib
from dataclasses import dataclass, field

from .api import ApiError
from .waiting import HANG, wait_until


@dataclass
class Lease:
    """One lease from its grant to the moment when its work had drained (None: not yet)."""
    pid: int
    tenant: int
    gpu: int
    epoch: int
    exclusive: bool
    granted: int
    closed: int = None   # its gate is closed, or it released
    drained: int = None
    ended_by: str = ""
    silent: bool = False    # its agent did not answer in time (stopped, or starved): others did not wait for it
    stalled: bool = False   # its work did not drain in time: others did not wait for it any more
    claimed: bool = False   # from a daemon that had just started, which its predecessor had granted
    draining: bool = False  # when it was claimed
    borrowed: bool = False  # granted beside a holder that waited for its memory
    lent: int = 0           # of a holder: nanoseconds for which another one borrowed its turn
    refused: bool = False   # claimed beside another one, as a lender and its borrower do: one of them has to go
    revokes: list = field(default_factory=list)

    def held(self):
        """Nanoseconds that its program is charged. A lender is not charged while its turn is lent."""
        return self.drained - self.granted - self.lent


class Trace:

    def __init__(self, path, api=None):
        self.path = pathlib.Path(path)
        self._api = api
        self._events = []
        self._offset = 0
        self._seen = set()
        self._next = 1

    def expect_a_new_daemon(self):
        """The last one has ended, and all that it wrote is in the file. The next one counts from 1."""
        self._read_file()
        self._next = 1

    def events(self, **wanted):
        """All events so far, or those with these fields. A thread of the daemon's writes the file, and on a busy
        machine it may be late. A daemon that runs is asked for what the file does not have yet."""
        self._read_file()
        self._ask_daemon()
        return self._matching(wanted)

    def revocations(self):
        """The revocations of a program's own turns. A program that borrowed the GPU while another's memory moved has
        to give it back, whatever the settings are."""
        events = self.events()
        borrowed = {event["epoch"] for event in events if event.get("detail") == "borrowed"}
        return [event for event in events if event["event"] == "revoke" and event["epoch"] not in borrowed]

    def wait_for(self, count=1, timeout=HANG, **wanted):

        def found():
            self._read_file()
            matching = self._matching(wanted)
            return len(matching) >= count and matching

        return wait_until(found, timeout,
                          lambda: f"{count} events {wanted} in the trace; the last are {self.events()[-8:]}", poll=0.01)

    def _read_file(self):
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        self._take(data[:end])

    def _ask_daemon(self):
        if self._api is None:
            return
        # A daemon that has ended does not answer, nor one that has just started and gives this user nothing.
        with contextlib.suppress(OSError, ApiError, http.client.HTTPException):
            self._take(self._api.lines(f"/v1/trace?since={self._next}"))

    def _take(self, data):
        for line in data.splitlines():
            event = json.loads(line)
            key = (event["sequence"], event["time_ns"])  # each daemon counts from 1
            if key not in self._seen:
                self._seen.add(key)
                self._events.append(event)
                self._next = event["sequence"] + 1

    def _matching(self, wanted):
        return [event for event in self._events if all(event.get(key) == value for key, value in wanted.items())]

    def leases(self, gpu=None):
        """Leases in the order of their grants. A tenant's death ends what it held. So does a restart of the daemon, as
        far as the trace knows: what is still held is claimed from the new one, and what the programs say of
        themselves covers the time between."""
        leases = []
        open_leases = {}
        loans = {}  # the borrower's key: (the lender's lease, since when)
        before = None
        for event in self.events():
            if before is not None and event["sequence"] <= before["sequence"]:
                for key in list(open_leases):
                    self._end(open_leases.pop(key), before, "restart")
            before = event
            name = event["event"]
            key = (event.get("tenant"), event.get("gpu"))
            if name in ("grant", "claim") and event.get("epoch"):
                if event.get("detail") == "again" and key in open_leases:
                    self._end(open_leases.pop(key), event, "again")
                lease = Lease(event.get("pid"), event.get("tenant"), event.get("gpu"), event.get("epoch"),
                              event.get("lease") != "shared", event["time_ns"], claimed=name == "claim",
                              draining=event.get("detail") == "draining",
                              borrowed=event.get("detail") == "borrowed")
                if lease.draining:
                    lease.closed = lease.granted
                if lease.borrowed:
                    lenders = [other for other in open_leases.values()
                               if other.gpu == lease.gpu and not other.borrowed and other.closed is None]
                    loans[key] = (lenders[0], lease.granted) if lenders else (None, None)
                open_leases[key] = lease
                leases.append(lease)
            elif name == "gone":
                for other in [k for k in open_leases if k[0] == key[0]]:
                    self._end_loan(loans, other, event)
                    self._end(open_leases.pop(other), event, name)
            elif key in open_leases:
                lease = open_leases[key]
                if name in ("revoke", "drained"):
                    self._end_loan(loans, key, event)
                if name == "revoke":
                    lease.revokes.append(event["time_ns"])
                    lease.refused = event.get("detail") == "bad_claim"
                elif name == "stall":
                    lease.stalled = True
                elif name == "silent":
                    lease.silent = True
                elif name == "gate_closed" and event.get("epoch") == lease.epoch and lease.closed is None:
                    # The first one counts: who is asked again during a long drain says it again.
                    lease.closed = event["time_ns"]
                elif name == "drained" and event.get("epoch") == lease.epoch:
                    self._end(open_leases.pop(key), event, name)
        return [lease for lease in leases if gpu is None or lease.gpu == gpu]

    @staticmethod
    def _end_loan(loans, borrower, event):
        """A loan ends when the borrower is to go, and at the latest when the lender has gone."""
        lender, since = loans.pop(borrower, (None, None))
        if lender is not None:
            lender.lent += min(event["time_ns"], lender.drained or event["time_ns"]) - since

    @staticmethod
    def _end(lease, event, name):
        lease.closed = lease.closed or event["time_ns"]
        lease.drained = event["time_ns"]
        lease.ended_by = name

    def check_exclusive(self, overlap=True):
        """No two leases of one GPU at once, by the daemon's account. With overlap the next holder may start when the
        gate has closed; without, when the work has drained. Nobody needs to wait for who was silent or stalled."""
        problems = []
        for gpu in {lease.gpu for lease in self.leases()}:
            before = []
            for lease in self.leases(gpu):
                for other in before:
                    end = other.closed if overlap else other.drained
                    if other.pid == lease.pid or not (other.exclusive or lease.exclusive):
                        continue
                    if other.silent or other.stalled:
                        continue
                    if lease.borrowed or lease.refused:
                        continue
                    # A tenant whose gate is closed calls itself draining when it comes back, until it has looked; the
                    # holder may come back before it or after it.
                    if lease.draining or (other.draining and lease.claimed):
                        continue
                    if end is None or end > lease.granted:
                        problems.append(f"GPU {gpu}: {lease} was granted while {other}")
                before = [other for other in before if other.drained is None] + [lease]
        return problems

    def switches(self, gpu):
        """The pids that held the GPU, in order, without repeats."""
        order = []
        for lease in self.leases(gpu):
            if not order or order[-1] != lease.pid:
                order.append(lease.pid)
        return order
