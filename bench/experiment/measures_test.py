#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiment's figures. Goal: each number says what its name says, at the edges too. Method: inputs small enough
that the answer can be seen, and for percentiles the definition itself, over all sizes up to 200.
"""

import math
import random
import unittest

import arrivals
import configurations
import measures
import report
from measures import Hold, Request

MS = 1_000_000


def requests(*triples):
    return [Request(*(value * MS for value in triple)) for triple in triples]


class Percentiles(unittest.TestCase):

    def test_smallest_value_that_enough_do_not_exceed(self):
        for count in range(1, 201):
            values = list(range(count))
            random.Random(count).shuffle(values)
            for per_mille in (500, 950, 990, 1000):
                found = measures.percentile(values, per_mille / 1000)
                within = sum(value <= found for value in values)
                self.assertGreaterEqual(1000 * within, per_mille * count)
                self.assertLess(1000 * (within - 1), per_mille * count)

    def test_of_nothing_is_not_a_number(self):
        self.assertTrue(math.isnan(measures.percentile([], 0.5)))


class Latency(unittest.TestCase):

    def test_waiting_counts(self):
        self.assertEqual(measures.latencies_ms(requests((0, 5, 8))), [8.0])

    def test_unanswered_requests_are_the_slowest(self):
        answered = [Request(0, 0, value * MS) for value in range(1, 91)]
        figures = measures.latency_figures(answered, [5.0] * 10)
        self.assertEqual(figures["p50"], 50)
        self.assertEqual(figures["p95"], 90)  # nobody who was answered waited longer, so at least that
        self.assertEqual(figures["at_least"], ["p95", "p99", "max"])

    def test_waiting_longer_than_all_the_answered(self):
        figures = measures.latency_figures(requests((0, 0, 1)), [700.0])
        self.assertEqual((figures["p50"], figures["p99"]), (1, 700))

    def test_all_answered(self):
        self.assertEqual(measures.latency_figures(requests((0, 0, 1), (0, 1, 2)))["at_least"], [])


class Shares(unittest.TestCase):

    def test_overlaps_count_once(self):
        self.assertEqual(measures.covered([(0, 10), (5, 15), (6, 7), (20, 30)], 0, 100), 25)

    def test_only_inside(self):
        self.assertEqual(measures.covered([(-10, 10), (90, 200)], 0, 100), 20)
        self.assertEqual(measures.covered([(-10, -5), (200, 300)], 0, 100), 0)

    def test_in_service_is_from_begin_not_from_arrival(self):
        self.assertAlmostEqual(measures.busy_share(requests((0, 40, 50), (90, 95, 120)), 0, 100 * MS), 0.15)


class Steps(unittest.TestCase):

    def test_parts_of_steps(self):
        # Steps of 10; the window begins in the middle of one and ends after a quarter of another.
        self.assertAlmostEqual(measures.steps_between([0, 10, 20, 30, 40], 5, 32.5), 0.5 + 2 + 0.25)

    def test_one_step_over_all_of_it(self):
        self.assertAlmostEqual(measures.steps_between([0, 100], 25, 50), 0.25)

    def test_none(self):
        self.assertEqual(measures.steps_between([0], 5, 10), 0)


def event(kind, time, pid=1, **more):
    return {"event": kind, "time_ns": time, "pid": pid, **more}


class Holds(unittest.TestCase):

    def test_from_grant_to_closed_gate(self):
        events = [event("grant", 1), event("revoke", 4), event("grant", 5, pid=2), event("gate_closed", 6),
                  event("drained", 9), event("grant", 12), event("drained", 13)]
        self.assertEqual(measures.holds(events, 1), [Hold(1, 6), Hold(12, 13)])

    def test_changed_in_place_and_still_held(self):
        events = [event("grant", 1, lease="exclusive"), event("grant", 3, lease="shared"), event("connect", 8, pid=2)]
        self.assertEqual(measures.holds(events, 1), [Hold(1, 3), Hold(3, 8, False)])

    def test_clipped(self):
        self.assertEqual(measures.clipped([Hold(0, 10), Hold(20, 30), Hold(35, 50)], 5, 40),
                         [Hold(5, 10), Hold(20, 30), Hold(35, 40)])

    def test_restores_are_counted_where_something_was_missing(self):
        events = [event("grant", 0), event("complete", 5 * MS),  # nothing was missing
                  event("evicted", 8 * MS), event("grant", 10 * MS), event("complete", 13 * MS),
                  event("evicted", 20 * MS), event("grant", 30 * MS), event("gate_closed", 31 * MS),
                  event("complete", 33 * MS)]  # not in time for its turn
        window = measures.Window(0, 100 * MS, turns={"latency": measures.turns(events, 1)})
        self.assertEqual(window.fetches_ms("latency"), [3.0])
        # Memory that did not arrive in time gives no usable turn, but was on the way.
        self.assertEqual(window.fetches("latency"), [Hold(10 * MS, 13 * MS), Hold(30 * MS, 31 * MS)])

    def test_waiting_is_from_the_first_request_to_lease_and_memory(self):
        events = [event("request", 1 * MS), event("request", 2 * MS), event("grant", 4 * MS), event("evicted", 6 * MS),
                  event("request", 7 * MS), event("grant", 9 * MS), event("complete", 12 * MS)]
        window = measures.Window(0, 100 * MS, turns={"latency": measures.turns(events, 1)})
        self.assertEqual(window.waits_ms("latency"), [3.0, 5.0])
        self.assertEqual(window.figures()["latency_wait_ms"], {"median": 3.0, "p99": 5.0, "max": 5.0})


class Whole(unittest.TestCase):

    def window(self, latency_ms, steps):
        ends = [i * 100 * MS for i in range(steps + 1)]
        return measures.Window(0, 1000 * MS, requests=requests((0, 0, latency_ms)), steps=ends)

    def test_medians_over_runs_and_what_is_kept(self):
        alone = measures.Window(0, 1000 * MS, steps=[i * 50 * MS for i in range(21)])
        served = {turn: measures.Window(0, 1000 * MS, requests=requests((0, 0, latency)))
                  for turn, latency in ((0, 50), (1, 100), (2, 100))}
        both = {turn: self.window(latency, 10) for turn, latency in ((0, 100), (1, 300), (2, 200))}
        found = report.summaries({"alone-batch": {0: alone, 1: alone}, "alone-latency": served, "both": both,
                                  "none": {}})
        self.assertNotIn("none", found)
        self.assertEqual(found["alone-batch"]["kept"]["median"], 1)
        found = found["both"]
        self.assertEqual(found["p99"], {"median": 200, "low": 100, "high": 300})
        # Each by the one of its own round: 2, 3 and 2.
        self.assertEqual(found["p99_of_alone"], {"median": 2, "low": 2, "high": 3})
        self.assertAlmostEqual(found["kept"]["median"], 0.5)
        self.assertAlmostEqual(found["free"]["median"], 0.8)
        self.assertAlmostEqual(found["kept_of_free"], 0.5 / 0.8)

    def test_unanswered_requests_make_lower_bounds(self):
        window = self.window(100, 10)
        window.unanswered, window.gave_up = [0] * 9, 700 * MS
        found = report.summaries({"alone-latency": {0: self.window(100, 10)}, "alone-batch": {}, "both": {0: window}})
        self.assertEqual(found["both"]["at_least"], ["p50", "p95", "p99", "max", "p99_of_alone"])
        text = report.table({}, configurations.every(), {"native": found["both"]}, [])
        self.assertIn(">700.0", text)
        self.assertIn(">7.00", text)

    def test_little_free_time_is_compared_with_nothing(self):
        window = self.window(950, 10)
        self.assertNotIn("kept_of_free", report.summaries({"alone-batch": {0: self.window(1, 10)},
                                                           "both": {0: window}})["both"])

    def test_table_has_every_row_in_line(self):
        chosen = configurations.every()
        summaries = report.summaries({"native": {0: self.window(100, 10)},
                                      "alone-batch": {0: measures.Window(0, 1000 * MS, steps=[0, 1000 * MS])}})
        summaries["default"] = {"failed": "failed: the driver is gone"}
        text = report.table({"GPU": "none"}, chosen, summaries, ["left out: always-lock"])
        self.assertIn("failed: the driver is gone", text)
        self.assertIn("left out: always-lock", text)
        self.assertIn("1000.0 %", text)
        head, native = (next(line for line in text.splitlines() if line.startswith(start))
                        for start in ("configuration", "both, plain driver"))
        self.assertEqual(len(head), len(native))


class Arrivals(unittest.TestCase):

    def test_same_seed_same_times(self):
        self.assertEqual(arrivals.poisson(30, 5, 1), arrivals.poisson(30, 5, 1))
        self.assertNotEqual(arrivals.poisson(30, 5, 1), arrivals.poisson(30, 5, 2))

    def test_rate_and_irregularity(self):
        times = arrivals.poisson(50, 200, 7)
        self.assertEqual(times, sorted(times))
        self.assertLess(times[-1], 200e9)
        # 10,000 are expected; six standard deviations either way.
        self.assertLess(abs(len(times) - 10_000), 600)
        gaps = [right - left for left, right in zip(times, times[1:])]
        # Of an exponential distribution 63.2 % are below its mean.
        self.assertAlmostEqual(sum(gap < 20e6 for gap in gaps) / len(gaps), 0.632, delta=0.03)


class Configurations(unittest.TestCase):

    def test_names_are_unique_and_alone_always_comes_along(self):
        names = [configuration.name for configuration in configurations.every()]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([c.name for c in configurations.choose(["max-ms-2*"])],
                         ["alone-latency", "alone-batch", "max-ms-2", "max-ms-2+keeps"])
        self.assertEqual([c.name for c in configurations.choose(["memory"])][2:], ["memory-default", "memory-priority"])

    def test_unknown_name(self):
        with self.assertRaisesRegex(ValueError, "no configuration is called nativ; there are .*native"):
            configurations.choose(["nativ"])


if __name__ == "__main__":
    unittest.main()
