#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the end-to-end tests tell a wrong order of turns from one that a busy machine has moved. Method: written
traces, judged."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.fairness import Party, check_fair, check_higher_first, check_oldest_first  # noqa: E402

MS = 1_000_000


class Written:
    """A trace that grows."""

    def __init__(self):
        self.events = []
        self.now = 0

    def add(self, name, pid, detail="", after=0):
        self.now += after * MS
        self.events.append({"sequence": len(self.events) + 1, "time_ns": self.now, "gpu": 0, "event": name, "pid": pid,
                            "detail": detail})

    def end(self, pid, after, drain=0):
        """Its turn, after so many milliseconds, and its drain."""
        self.add("revoke", pid, "quantum", after)
        self.add("drained", pid, after=drain)

    def turns(self, *lengths, drain=0, absence=0):
        """Turns of 1 and 2. Each asks again so many milliseconds after it has drained."""
        self.add("request", 1)
        self.add("grant", 1)
        self.add("request", 2)
        pid = 1
        for length in lengths:
            self.end(pid, length, drain)
            self.add("grant", 3 - pid)
            self.add("request", pid, after=absence)
            pid = 3 - pid
        return self.events


class Fair(unittest.TestCase):
    light, heavy = Party(frozenset([1]), 1), Party(frozenset([2]), 3)

    def judge(self, *lengths, **options):
        events = Written().turns(*lengths, **options)
        return check_fair(events, 0, self.light, self.heavy), check_fair(events, 0, self.heavy, self.light)

    def test_turns_by_weight_are_fair(self):
        for problems, choices in self.judge(*[10, 30] * 5):
            self.assertEqual(problems, [])
            self.assertGreaterEqual(choices, 4)

    def test_late_ends_that_are_made_good_are_fair(self):
        for problems, _ in self.judge(10, 30, 50, 150, 10, 90, 20, 60):
            self.assertEqual(problems, [])

    def test_equal_turns_are_unfair_to_the_heavy_one(self):
        (light, _), (heavy, _) = self.judge(*[10, 10] * 5)
        self.assertEqual(len(light), 4)
        self.assertEqual(heavy, [])

    def test_turns_that_are_too_long_are_unfair_to_the_light_one(self):
        (light, _), (heavy, _) = self.judge(*[10, 60] * 5)
        self.assertEqual(light, [])
        self.assertEqual(len(heavy), 2)

    def test_a_party_that_does_not_ask_is_owed_nothing(self):
        # Each is away for all but 2 ms of the other one's turns: these are as long as they are because no other waits.
        for problems, _ in self.judge(*[2, 6] * 3, absence=50):
            self.assertEqual(problems, [])

    def test_a_drain_counts(self):
        self.assertEqual([problems for problems, _ in self.judge(*[10, 90] * 5, drain=30)], [[], []])
        self.assertNotEqual(self.judge(*[10, 30] * 5, drain=30)[0][0], [])

    def test_of_two_that_wait_the_one_goes_first_that_had_less(self):
        written = Written()
        for pid in (1, 2, 3):
            written.add("request", pid)
        for pid in (3, 1, 2, 1):
            written.add("grant", pid)
            written.add("request", pid)
            written.end(pid, 10)
        both, third = Party(frozenset([1, 2]), 1), Party(frozenset([3]), 1)
        self.assertEqual(len(check_fair(written.events, 0, both, third)[0]), 1)
        self.assertEqual(check_fair(written.events, 0, third, both)[0], [])


class Order(unittest.TestCase):

    def test_the_one_that_waits_longest_goes_first(self):
        written = Written()
        for pid in (1, 2, 3):
            written.add("request", pid, after=1)
        for pid in (1, 2, 3, 1):
            written.add("grant", pid, after=1)
            written.add("request", pid, after=1)
            written.add("drained", pid, after=1)
        self.assertEqual(check_oldest_first(written.events, 0, {1, 2, 3}), ([], 4))
        written.add("grant", 3)
        self.assertEqual(len(check_oldest_first(written.events, 0, {1, 2, 3})[0]), 1)

    def test_a_higher_one_that_waits_goes_first(self):
        written = Written()
        written.add("request", 1)
        written.add("grant", 1)
        written.add("request", 2)
        written.add("revoke", 1, "urgent")
        written.add("request", 1)
        written.add("drained", 1)
        written.add("grant", 2)
        written.add("drained", 2)
        written.add("grant", 1)
        self.assertEqual(check_higher_first(written.events, 0, 2, {1}), ([], 1))
        written.add("request", 2)
        written.add("drained", 1)
        written.add("grant", 1)
        self.assertEqual(len(check_higher_first(written.events, 0, 2, {1})[0]), 1)


if __name__ == "__main__":
    unittest.main()
