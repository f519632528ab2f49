#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the table says what the runs say. Method: runs made by hand."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "experiment"))

import picture  # noqa: E402
import table  # noqa: E402

WORKS = [("launch", "a launch", ()), ("small-2", "two small ones", {"batch"}),
         ("requests", "answers", {"latency", "batch"})]
WAYS = [("plain", "plain driver", "It slices."), ("gpumux", "gpumux", "It takes turns.")]


def run(turn, work, way, **figures):
    return {"round": turn, "work": work, "way": way, "figures": figures}


def latency(p50, p99, at_least=()):
    return {"p50": p50, "p95": p99, "p99": p99, "max": p99, "at_least": list(at_least)}


def cells(runs, refusals=None):
    """The table's rows: title: {column: text}."""
    lines = [line for line in table.markdown({}, WORKS, WAYS, runs, refusals or {}).splitlines() if line[:1] == "|"]
    head, _, *rows = [[word.strip() for word in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:])) for row in rows}


class Table(unittest.TestCase):

    def test_each_round_is_compared_with_its_own_one_alone(self):
        runs = [run(1, "small-2", "alone", steps_per_s=[100]), run(1, "small-2", "gpumux", steps_per_s=[60, 50]),
                run(2, "small-2", "alone", steps_per_s=[200]), run(2, "small-2", "gpumux", steps_per_s=[100, 90]),
                run(3, "small-2", "gpumux", steps_per_s=[1, 1])]  # nothing to compare it with
        row = cells(runs)["two small ones"]
        self.assertEqual(row["gpumux"], "102 % (95 to 110)")
        self.assertEqual(row["alone"], "100 % (100 to 100)")
        self.assertEqual(row["plain driver"], "-")

    def test_an_unequal_split_shows(self):
        runs = [run(1, "small-2", "alone", steps_per_s=[100]), run(1, "small-2", "gpumux", steps_per_s=[30, 70])]
        self.assertEqual(cells(runs)["small-2: the program with the least, of an equal part"]["gpumux"], "60 %")

    def test_failures_and_refusals_are_shown(self):
        failed = {"round": 1, "work": "small-2", "way": "plain", "failed": "no | memory"}
        runs = [failed, dict(failed, round=2), run(1, "small-2", "alone", steps_per_s=[10]),
                run(1, "small-2", "gpumux", steps_per_s=[5, 5]), {**failed, "round": 2, "way": "gpumux"}]
        row = cells(runs, {("requests", "plain"): "not run: it cannot"})
        self.assertEqual(row["two small ones"]["plain driver"], "failed 2 of 2: no / memory")
        self.assertEqual(row["two small ones"]["gpumux"], "100 %; failed 1 of 2: no / memory")
        self.assertEqual(row["answers: p99"]["plain driver"], "not run: it cannot")

    def test_answers_that_never_came_make_a_lower_bound(self):
        runs = [run(1, "requests", "alone", latency_ms=latency(5, 9), steps_per_s=[50]),
                run(1, "requests", "gpumux", latency_ms=latency(6, 4000, ["p99", "max"]), steps_per_s=[25])]
        rows = cells(runs)
        self.assertEqual(rows["answers: p50"]["gpumux"], "6 ms")
        self.assertEqual(rows["answers: p99"]["gpumux"], ">4000 ms")
        self.assertEqual(rows["answers: what the training keeps of its speed alone"]["gpumux"], "50 %")

    def test_launches(self):
        runs = [run(turn, "launch", "gpumux", launch_ns=ns) for turn, ns in ((1, 2900), (2, 2800), (3, 3100))]
        self.assertEqual(cells(runs)["a launch"]["gpumux"], "2900 ns (2800 to 3100)")

    def test_limits_stand_below(self):
        text = table.markdown({"GPU": "one"}, WORKS, WAYS, [], {})
        self.assertIn("- **gpumux.** It takes turns.", text)
        self.assertTrue(text.startswith("GPU: one"))

    def test_the_picture_has_what_was_measured(self):
        runs = [run(1, "small-2", "alone", steps_per_s=[100]), run(1, "small-2", "gpumux", steps_per_s=[60, 50]),
                {"round": 1, "work": "small-2", "way": "plain", "failed": "no memory"}]
        panels = picture.panels(WORKS[1:], [(name, title) for name, title, _ in WAYS], runs)
        self.assertEqual(len(panels), 1)
        title, unit, bars = panels[0]
        self.assertEqual((title, unit), ("two small ones", "% of one alone"))
        self.assertEqual(bars[0][:3], ("plain driver", None, "failed"))
        self.assertAlmostEqual(bars[1][1], 110)


if __name__ == "__main__":
    unittest.main()
