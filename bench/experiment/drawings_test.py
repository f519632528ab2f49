#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiment's pictures. Goal: what is drawn is where its value says, and every file can be parsed. Method: figures
of known values are read back from matplotlib's objects, and whole pictures as XML.
"""

import math
import pathlib
import random
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

import drawings
import measures

MS = 1_000_000


def words_of(figure):
    """All words of the picture, as a reader of the file finds them."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "picture.svg"
        drawings.save(figure, path)
        return "\n".join("".join(part.itertext()) for part in ElementTree.parse(path).iter()
                         if part.tag.endswith("}text"))


class Pictures(unittest.TestCase):

    def test_looks_differ(self):
        looks = [drawings.style(i) for i in range(len(drawings.COLOURS) * len(drawings.DASHES))]
        self.assertEqual(len(set(looks)), len(looks))

    def test_a_latency_curve_is_where_the_values_are(self):
        figure = drawings.latency("a < b & c", [("one <script>", [100.0, 1.0, 10.0], 4, ("#000000", "7 3"))])
        (axes,) = figure.axes
        (line,) = axes.lines
        self.assertEqual(list(line.get_xdata()), [1, 1, 10, 100])
        # Three of four were answered: the curve ends below the top.
        self.assertEqual(list(line.get_ydata()), [0, 0.25, 0.5, 0.75])
        self.assertLess(0.75, axes.get_ylim()[1])
        words = words_of(figure)
        self.assertIn("a < b & c", words)
        self.assertIn("<script>", words)

    def test_the_tail_is_spread(self):
        figure = drawings.latency("t", [("one", [1.0, 2.0], 1000, drawings.style(0))])
        (axes,) = figure.axes
        place = axes.transData.transform
        heights = [place((1, share))[1] for share in (0, 0.9, 0.99, 0.999)]
        self.assertAlmostEqual(heights[1] - heights[0], heights[2] - heights[1], places=3)
        self.assertAlmostEqual(heights[2] - heights[1], heights[3] - heights[2], places=3)

    def test_nothing_to_draw(self):
        self.assertIn("no request was answered", words_of(drawings.latency("t", [])))
        self.assertIn("no request was answered", words_of(drawings.latency("t", [("none", [], 5, drawings.style(0))])))
        for points in ([], [("a", math.nan, 0.5, drawings.style(0), "native")]):
            self.assertIn("nothing to compare", words_of(drawings.trade("t", points)))

    def test_trade(self):
        figure = drawings.trade("t", [("a", 5.0, 0.0, drawings.style(0), "native"),
                                      ("b", 500.0, 1.3, drawings.style(1), "wrapper")], alone=3.0)
        (axes,) = figure.axes
        points = {(*line.get_xdata(), *line.get_ydata()) for line in axes.lines[1:]}
        self.assertEqual(points, {(5, 0), (500, 130)})
        low, high = axes.get_ylim()
        self.assertTrue(low <= 0 and high >= 130)
        words = words_of(figure)
        for name in ("1  a", "2  b", "latency task alone"):
            self.assertIn(name, words)

    def test_densest(self):
        arrivals = [int(value * 1e9) for value in (0.1, 0.9, 2.1, 2.2, 2.3, 3.9)]
        self.assertLessEqual(abs(drawings.densest(arrivals, 4, 0.4) - 2.0), 0.1)
        self.assertEqual(drawings.densest([], 4, 0.4), 0.0)

    def test_a_timeline_shows_what_lies_within(self):
        begin = 10**15
        window = measures.Window(begin, begin + 1000 * MS, gave_up=begin + 1500 * MS)
        window.requests = [measures.Request(begin + 320 * MS, begin + 330 * MS, begin + 900 * MS),
                           measures.Request(begin + 100 * MS, begin + 110 * MS, begin + 120 * MS)]
        window.holds = {"batch": [measures.Hold(begin + 290 * MS, begin + 310 * MS)]}
        window.turns = {"batch": []}
        _, axes = drawings.timeline("t", [("one", window)], 0.3, 0.4).axes
        spans = sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max())
                       for bars in axes.collections for path in bars.get_paths() if len(path.vertices) > 2)
        self.assertEqual([(round(left), round(right)) for left, right in spans], [(300, 310), (320, 330), (330, 700)])
        self.assertEqual(axes.get_xlim(), (300, 700))

    def test_timelines_of_anything(self):
        """Random windows, with requests, steps and leases across both ends of what is shown."""
        chance = random.Random(8)
        for _ in range(3):
            begin = chance.randrange(10**15)
            window = measures.Window(begin, begin + 1000 * MS, gave_up=begin + 1500 * MS)
            for _ in range(30):
                arrival = begin + chance.randrange(1000 * MS)
                start = arrival + chance.randrange(20 * MS)
                window.requests.append(measures.Request(arrival, start, start + chance.randrange(90 * MS)))
            window.unanswered = [begin + chance.randrange(1000 * MS) for _ in range(3)]
            window.steps = sorted(begin + chance.randrange(1000 * MS) for _ in range(50))
            window.holds = {role: [measures.Hold(left, left + chance.randrange(30 * MS), chance.random() < 0.5)
                                   for left in sorted(begin + chance.randrange(-100 * MS, 1100 * MS)
                                                      for _ in range(40))]
                            for role in ("latency", "batch")}
            window.turns = {"batch": [measures.Turn(left, left + MS, left + 5 * MS, True)
                                      for left in range(begin - 10 * MS, begin + 900 * MS, 37 * MS)]}
            panels = [("one", window), ("two", measures.Window(begin, begin + 1000 * MS))]
            words = words_of(drawings.timeline("t", panels, 0.3, 0.4))
            for name in ("one", "two", "requests", "latency may run", "batch may run", "batch steps end"):
                self.assertIn(name, words)


if __name__ == "__main__":
    unittest.main()
