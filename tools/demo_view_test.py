#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the demo's lines tell the truth about a trace. Method: a trace of two programs, written by hand."""

import unittest

import demo_view

SECOND = 1_000_000_000


def event(seconds, kind, pid=None, program=""):
    return {"time_ns": int(seconds * SECOND), "event": kind} | ({"pid": pid, "program": program} if pid else {})


class TimelineTest(unittest.TestCase):

    def setUp(self):
        self.timeline = demo_view.Timeline({7: "alpha"})

    def lines(self, *events):
        return [line for line in map(self.timeline.add, events) if line]

    def test_turns(self):
        lines = self.lines(event(10, "connect", 7), event(10, "request", 7), event(10, "grant", 7),
                           event(11, "request", 8, "beta"), event(12, "revoke", 7), event(12, "gate_closed", 7),
                           event(12, "grant", 8, "beta"), event(12.1, "drained", 7), event(14, "drained", 8, "beta"))
        self.assertEqual([line.split() for line in lines],
                         ["2.00 s alpha held the GPU for 2000 ms (beta waits)".split(),
                          "4.00 s beta held the GPU for 2000 ms after waiting 1000 ms".split()])

    def test_who_waits_is_shown(self):
        lines = self.lines(event(0, "request", 8, "beta"), event(1, "grant", 7), event(2, "drained", 7))
        self.assertIn("(beta waits)", lines[0])

    def test_turns_too_short_to_read_are_counted(self):
        turns = [event(1 + i / 1000, kind, 7) for i in range(0, 10, 2) for kind in ("grant", "drained")]
        lines = self.lines(*turns, event(2, "grant", 8, "beta"), event(3, "drained", 8, "beta"))
        self.assertEqual(len(lines), 1)
        self.assertIn("beta       held the GPU for 1000 ms; alpha had 5 short turns", lines[0])


if __name__ == "__main__":
    unittest.main()
