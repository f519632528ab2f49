#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the end-to-end tests tell two holders at once from lawful leases. Method: written traces, judged."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.trace import Trace  # noqa: E402

A = {"tenant": 1, "pid": 11, "gpu": 0, "epoch": 7, "lease": "exclusive"}
B = {"tenant": 2, "pid": 22, "gpu": 0, "epoch": 8, "lease": "exclusive"}
C = {"tenant": 3, "pid": 33, "gpu": 0, "epoch": 9, "lease": "exclusive"}


def line(sequence, daemon=0):
    return json.dumps({"sequence": sequence, "time_ns": 1000 * daemon + sequence, "event": "open", **A}) + "\n"


class Late(unittest.TestCase):
    """The file is behind what the daemon knows."""

    class Daemon:

        def __init__(self, *sequences):
            self.number = 0
            self.sequences = sequences

        def lines(self, target):
            since = int(target.split("=")[1])
            return "".join(line(sequence, self.number) for sequence in self.sequences if sequence >= since)

    def test_the_daemon_is_asked_for_what_the_file_does_not_have(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "trace")
            file.write_text(line(1), encoding="utf-8")
            trace = Trace(file, self.Daemon(1, 2, 3))
            self.assertEqual([event["sequence"] for event in trace.events()], [1, 2, 3])
            with open(file, "a", encoding="utf-8") as more:
                more.write(line(2) + line(3))
            self.assertEqual([event["sequence"] for event in trace.events()], [1, 2, 3])

    def test_a_new_daemon_counts_from_1(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "trace")
            daemon = self.Daemon(1, 2)
            trace = Trace(file, daemon)
            trace.events()
            file.write_text(line(1) + line(2) + line(3), encoding="utf-8")  # the last one came at its end
            trace.expect_a_new_daemon()
            with open(file, "a", encoding="utf-8") as more:
                more.write(line(1, daemon=1))
            daemon.number, daemon.sequences = 1, (1, 2)
            self.assertEqual([event["sequence"] for event in trace.events()], [1, 2, 3, 1, 2])


class Judged(unittest.TestCase):

    def judge(self, *events):
        """The problems of a trace of (event, of whom, more), in this order, 1 ns apart."""
        lines = [{"sequence": i, "time_ns": i, "event": event, **who, **dict(more)}
                 for i, (event, who, *more) in enumerate(events)]
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "trace")
            pathlib.Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            return Trace(path).check_exclusive(overlap=False)

    def test_turns_are_fine(self):
        self.assertEqual(self.judge(("grant", A), ("gate_closed", A), ("drained", A), ("grant", B)), [])

    def test_a_grant_beside_a_holder_is_a_problem(self):
        self.assertEqual(len(self.judge(("grant", A), ("grant", B), ("drained", A))), 1)

    def test_a_grant_beside_a_drain_is_a_problem(self):
        self.assertEqual(len(self.judge(("grant", A), ("gate_closed", A), ("grant", B), ("drained", A))), 1)

    def test_who_comes_back_draining_may_come_before_the_holder_or_after(self):
        drains, holds = ("claim", A, ("detail", "draining")), ("claim", B, ("detail", "holding"))
        self.assertEqual(self.judge(drains, holds, ("drained", A)), [])
        self.assertEqual(self.judge(holds, drains, ("drained", A)), [])

    def test_two_who_come_back_holding_are_a_problem(self):
        self.assertEqual(len(self.judge(("claim", A, ("detail", "holding")), ("claim", B, ("detail", "holding")))), 1)

    def test_a_claim_that_is_refused_is_fine(self):
        self.assertEqual(self.judge(("claim", A, ("detail", "holding")), ("claim", B, ("detail", "holding")),
                                    ("revoke", B, ("detail", "bad_claim"))), [])

    def test_a_borrowed_turn_is_fine_and_a_third_grant_is_not(self):
        loan = (("grant", A), ("grant", B, ("detail", "borrowed")))
        self.assertEqual(self.judge(*loan, ("drained", B), ("drained", A)), [])
        self.assertEqual(len(self.judge(*loan, ("grant", C))), 2)

    def test_a_grant_beside_who_came_back_draining_is_a_problem(self):
        self.assertEqual(len(self.judge(("claim", A, ("detail", "draining")), ("grant", B), ("drained", A))), 1)


if __name__ == "__main__":
    unittest.main()
