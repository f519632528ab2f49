#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: run.py judges by the daemon's trace, and does not call a lack of time a failure. Method: written traces, and
programs without a GPU."""

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import parts_memory  # noqa: E402
import parts_same  # noqa: E402
import parts_two  # noqa: E402
from support import FAIL, SKIP, Session, kept_from_others, least_turns, lost_by_second  # noqa: E402

MS = 1_000_000
NATIVE_PARTS = {
    "memory": lambda session: parts_memory.native_of(session, "program", ["sleep", "1000"]),
    "two": lambda session: parts_two.native_of(session, "program", ["sleep", "1000"]),
}


class Lost(unittest.TestCase):

    def test_lost_by_second(self):
        # 1,000 steps of 1 ms each, one program after the other; between them half a second in which neither works.
        second = 10**9
        first = {"start_ns": 0, "end_ns": second, "done_ns": second, "steps": 1000, "pace": []}
        other = {"start_ns": 0, "end_ns": 5 * second // 2, "done_ns": 3 * second, "steps": 1000,
                 "pace": [[3 * second // 2, 0]]}
        for found, wanted in zip(lost_by_second([first, other], 0.001, 0), [0, 0.5, 0], strict=True):
            self.assertAlmostEqual(found, wanted)


class Budget(unittest.TestCase):

    def setUp(self):
        self.out = tempfile.mkdtemp(prefix="gpumux-support-")
        self.addCleanup(shutil.rmtree, self.out)

    def session(self, budget):
        arguments = argparse.Namespace(dist=self.out, out=self.out, gpus=1, quick=False, budget=budget, within=[])
        session = Session(arguments)
        self.addCleanup(shutil.rmtree, session.raw)
        return session

    def rows(self, budget, part):
        session = self.session(budget)
        with contextlib.redirect_stdout(io.StringIO()):
            session.run_parts([part], -1000)
        return session.rows

    def test_a_native_program_without_time_is_skipped_and_told(self):
        for name, part in NATIVE_PARTS.items():
            with self.subTest(part=name):
                (row,) = self.rows(0, part)
                self.assertEqual(row["status"], SKIP)
                self.assertIn("native.program: not done when the budget was over", row["figure"])

    def test_a_native_program_that_fails_is_a_failure(self):
        (row,) = self.rows(1000, lambda session: parts_two.native_of(session, "program", ["false"]))
        self.assertEqual(row["status"], FAIL)

    def test_a_result_that_no_second_native_run_can_excuse_is_another_result(self):
        session = self.session(0)
        session.natives["driver_api"] = {"digest": "1"}
        session.programs = self.out
        with open(session.program("gpumux_gpu_worker"), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\nexec sleep 1000\n")
        os.chmod(file.name, 0o755)
        self.assertTrue(parts_same.is_stable(session, "driver_api"))


class Turns(unittest.TestCase):
    """Two programs on one GPU, with a quantum of 50 ms."""

    def kept(self, *events):
        written = [{"sequence": i, "gpu": 0, "time_ns": at * MS, "event": name, "pid": pid}
                   for i, (at, name, pid) in enumerate(events)]
        return kept_from_others(written, 0, {1, 2})

    def test_a_short_program_may_have_one_turn(self):
        kept = self.kept((0, "request", 1), (0, "grant", 1), (10, "request", 2), (50, "drained", 1), (50, "grant", 2),
                         (90, "drained", 2))
        self.assertEqual((kept[1], kept[2]), (40 * MS, 0))
        self.assertEqual([least_turns(kept[pid], 50 * MS) for pid in (1, 2)], [1, 1])

    def test_time_alone_asks_for_no_turns(self):
        kept = self.kept((0, "request", 1), (0, "grant", 1), (5000, "request", 2), (5010, "gate_closed", 1),
                         (5010, "grant", 2), (5030, "drained", 1))
        self.assertEqual(least_turns(kept[1], 50 * MS), 1)

    def test_a_program_that_keeps_the_gpu_to_itself_is_found(self):
        kept = self.kept((0, "request", 1), (0, "grant", 1), (10, "request", 2), (510, "gone", 1), (510, "grant", 2),
                         (600, "drained", 2))
        self.assertEqual(kept[1], 500 * MS)
        self.assertGreater(least_turns(kept[1], 50 * MS), 1)


if __name__ == "__main__":
    unittest.main()
