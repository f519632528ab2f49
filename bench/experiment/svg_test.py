#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The experiment's pictures. Goal: what is drawn is where its value says, and every file can be parsed. Method: the
places of known values, ticks over many ranges, and whole pictures read back as XML.
"""

import math
import random
import unittest
import xml.etree.ElementTree as ElementTree

import drawings
import measures
import svg

MS = 1_000_000
NAMESPACE = "{http://www.w3.org/2000/svg}"


def parsed(drawing):
    return ElementTree.fromstring(drawing.to_text().encode())


def within(drawing):
    """Whether all that is drawn with coordinates is inside the picture."""
    root = parsed(drawing)
    width, height = float(root.get("width")), float(root.get("height"))
    for part in root.iter():
        for name, limit in (("x", width), ("x1", width), ("x2", width), ("cx", width), ("y", height), ("y1", height),
                            ("y2", height), ("cy", height)):
            if part.get(name) is not None and not -0.01 <= float(part.get(name)) <= limit + 0.01:
                return False
        if part.tag == NAMESPACE + "rect" and part.get("x"):
            if float(part.get("x")) + float(part.get("width")) > width + 0.01 or float(part.get("width")) < 0:
                return False
    return True


class Axes(unittest.TestCase):

    def test_ends(self):
        for axis, low, high in ((svg.Linear(5, 25), 5, 25), (svg.Logarithmic(0.5, 300), 0.5, 300),
                                (svg.Tail(0.999), 0, 0.999)):
            self.assertAlmostEqual(axis.place(low), 0)
            self.assertAlmostEqual(axis.place(high), 1)

    def test_tail_spreads_what_is_rare(self):
        axis = svg.Tail(0.999)
        self.assertAlmostEqual(axis.place(0.9), 1 / 3)
        self.assertAlmostEqual(axis.place(0.99), 2 / 3)
        self.assertAlmostEqual(axis.place(1.0), 1)

    def test_ticks_are_round_few_and_inside(self):
        chance = random.Random(4)
        for _ in range(500):
            low = chance.uniform(-1000, 1000)
            high = low + 10 ** chance.uniform(-3, 5)
            ticks = svg.round_ticks(low, high)
            self.assertTrue(2 <= len(ticks) <= 8, (low, high, ticks))
            self.assertTrue(all(low - 1e-6 <= tick <= high + 1e-6 for tick in ticks))
            step = ticks[1] - ticks[0]
            self.assertIn(round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6), (1, 2, 5, 10), (low, high))

    def test_logarithmic_ticks(self):
        self.assertEqual([label for _, label in svg.Logarithmic(0.9, 12).ticks()], ["1", "2", "5", "10"])
        self.assertEqual([label for _, label in svg.Logarithmic(0.5, 1e6).ticks()],
                         ["1", "10", "100", "1000", "10000", "100000", "1e+06"])

    def test_nothing_between_the_ends(self):
        self.assertEqual(svg.Linear(3, 3).place(3), 0)
        self.assertEqual(svg.Logarithmic(3, 3).place(3), 0)


class Text(unittest.TestCase):

    def test_words_are_escaped(self):
        drawing = svg.Drawing(10, 10, "a < b & c")
        drawing.text(1, 1, '<script>"&')
        root = parsed(drawing)
        self.assertEqual(root.find(NAMESPACE + "title").text, "a < b & c")
        self.assertEqual(root.find(NAMESPACE + "text").text, '<script>"&')

    def test_looks_differ(self):
        looks = [svg.style(i) for i in range(len(svg.COLOURS) * len(svg.DASHES))]
        self.assertEqual(len(set(looks)), len(looks))


class Pictures(unittest.TestCase):

    def test_latency_curve_is_where_the_values_are(self):
        drawing = drawings.latency("t", [("one", [1.0, 10.0, 100.0], 4, ("#000000", ""))])
        path = parsed(drawing).find(NAMESPACE + "path").get("d")
        points = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
        xs = sorted({x for x, _ in points})
        # Powers of ten are equally far apart.
        self.assertAlmostEqual(xs[1] - xs[0], xs[2] - xs[1], delta=0.05)
        # Three of four were answered: the curve ends below the top.
        top = min(y for _, y in points)
        self.assertGreater(top, 46 + 1)
        self.assertTrue(within(drawing))

    def test_nothing_to_draw(self):
        for drawing in (drawings.latency("t", []), drawings.latency("t", [("none", [], 5, svg.style(0))]),
                        drawings.trade("t", []), drawings.trade("t", [("a", math.nan, 0.5, svg.style(0), "native")])):
            self.assertTrue(within(drawing))

    def test_trade(self):
        drawing = drawings.trade("t", [("a", 5.0, 0.0, svg.style(0), "native"),
                                       ("b", 500.0, 1.3, svg.style(1), "wrapper")], alone=3.0)
        self.assertTrue(within(drawing))
        self.assertEqual(len(parsed(drawing).findall(NAMESPACE + "circle")), 1)

    def test_shades(self):
        holds = [measures.Hold(0, 10), measures.Hold(15, 16), measures.Hold(20, 30, False)]
        self.assertEqual(drawings.shades(holds, 0, 40, 4), ([4, 1, 0, 0], [0, 0, 4, 0]))
        self.assertEqual(drawings.shades([measures.Hold(-5, 100)], 0, 40, 4)[0], [4, 4, 4, 4])

    def test_densest(self):
        arrivals = [int(value * 1e9) for value in (0.1, 0.9, 2.1, 2.2, 2.3, 3.9)]
        self.assertLessEqual(abs(drawings.densest(arrivals, 4, 0.4) - 2.0), 0.1)
        self.assertEqual(drawings.densest([], 4, 0.4), 0.0)

    def test_timeline(self):
        """Random windows, with requests, steps and leases across both ends of what is shown."""
        chance = random.Random(8)
        for _ in range(20):
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
            drawing = drawings.timeline("t", panels, 0.3, 0.4)
            self.assertTrue(within(drawing))


if __name__ == "__main__":
    unittest.main()
