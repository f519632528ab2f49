#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the tests read from a trace what the commands read. Method: the table of src/api_client/holds_cases.json."""

import json
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from framework.spans import Standing, spans  # noqa: E402


def event_of(line):
    """ "4 grant a0 shared" is an event of program a on GPU 0 at 4; "4 gone a" one of no GPU."""
    at, name, program, *detail = line.split()
    tenant = "abc".index(program[0]) + 1
    return {"time_ns": int(at), "event": name, "tenant": tenant, "pid": 10 + tenant, "detail": "".join(detail),
            "lease": "shared" if detail == ["shared"] else "exclusive",
            **({"gpu": int(program[1])} if program[1:] else {})}


def text(span):
    return f"{'abc'[span.tenant - 1]}{span.gpu} {span.kind} {span.begin}-{'' if span.end is None else span.end}"


class Holds(unittest.TestCase):

    def test_they_are_as_the_table_says(self):
        cases = json.loads((ROOT / "src/api_client/holds_cases.json").read_text(encoding="utf-8"))
        for case in cases:
            with self.subTest(case["rule"]):
                found = spans([event_of(line) for line in case["events"]])
                self.assertEqual(sorted(map(text, found)), sorted(case["spans"]))

    def test_some_programs_of_one_gpu(self):
        events = [event_of(line) for line in ("1 grant a0", "2 grant b0 shared", "3 grant a1", "4 gone a", "5 gone b")]
        self.assertEqual([text(span) for span in spans(events, gpu=0, pids={11})], ["a0 holds 1-4"])
        self.assertEqual([event["time_ns"] for event in Standing(0, {11}).through(events)], [1, 4])

    def test_a_lease_of_another_kind_is_another_hold(self):
        events = [event_of(line) for line in ("1 grant a0", "3 grant a0 shared", "5 drained a0")]
        self.assertEqual([(text(span), span.exclusive) for span in spans(events)],
                         [("a0 holds 1-3", True), ("a0 holds 3-5", False)])

    def test_the_part_within_a_time(self):
        (span,) = spans([event_of("2 grant a0")])
        self.assertEqual((span.within(0, 10), span.within(3, 5), span.within(0, 1)), (8, 2, 0))


if __name__ == "__main__":
    unittest.main()
