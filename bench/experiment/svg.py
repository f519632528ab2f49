# SPDX-License-Identifier: Apache-2.0
"""Drawings in SVG: shapes and text, axes with round ticks, legends. Needs nothing but Python."""

import math
from xml.sax.saxutils import escape, quoteattr

FONT = "font-family:Helvetica,Arial,sans-serif"
INK, FAINT, GRID = "#222222", "#777777", "#e4e4e4"
# Apart also for those who confuse red and green, and in grey: hue and lightness both change from one to the next.
COLOURS = ("#222222", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a00", "#7a5195", "#999999",
           "#b22222", "#2f4b7c")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


def style(index):
    """(colour, dashes) of the index-th thing of a drawing: colours first, then the same ones dashed."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def number(value):
    """Short, and the same on every machine."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value != int(value) else str(int(value))


class Drawing:

    def __init__(self, width, height, title):
        self.width, self.height, self.title = width, height, title
        self.parts = []

    def add(self, tag, text=None, **attributes):
        known = {name.replace("_", "-"): number(value) if isinstance(value, (int, float)) else value
                 for name, value in attributes.items() if value not in (None, "")}
        words = "".join(f" {name}={quoteattr(value)}" for name, value in known.items())
        self.parts.append(f"<{tag}{words}/>" if text is None else f"<{tag}{words}>{escape(text)}</{tag}>")

    def rectangle(self, x, y, width, height, fill, **more):
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **more)

    def line(self, x1, y1, x2, y2, stroke=INK, width=1, dashes=""):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, stroke_width=width, stroke_dasharray=dashes)

    def path(self, points, stroke, width=1.6, dashes=""):
        words = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.add("path", d=words, fill="none", stroke=stroke, stroke_width=width, stroke_dasharray=dashes,
                 stroke_linejoin="round")

    def circle(self, x, y, radius, fill, stroke="none"):
        self.add("circle", cx=x, cy=y, r=radius, fill=fill, stroke=stroke)

    def text(self, x, y, words, size=11, anchor="start", fill=INK, weight="", turned=False):
        self.add("text", words, x=x, y=y, font_size=size, text_anchor=anchor, fill=fill, font_weight=weight,
                 transform=f"rotate(-90 {number(x)} {number(y)})" if turned else "")

    def to_text(self):
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(self.width)}" height="{number(self.height)}" '
                f'viewBox="0 0 {number(self.width)} {number(self.height)}" style="{FONT}" role="img">')
        return "\n".join(['<?xml version="1.0" encoding="UTF-8"?>', head, f"<title>{escape(self.title)}</title>",
                          f'<rect width="{number(self.width)}" height="{number(self.height)}" fill="white"/>',
                          *self.parts, "</svg>"]) + "\n"


def round_ticks(low, high, count=6):
    """Round numbers within [low, high], about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


class Linear:

    def __init__(self, low, high):
        self.low, self.high = low, high if high > low else low + 1

    def place(self, value):
        """From 0 at the low end to 1 at the high one."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self):
        return [(value, f"{value:g}") for value in round_ticks(self.low, self.high)]


class Logarithmic:

    def __init__(self, low, high):
        self.low, self.high = low, high if high > low else low * 10

    def place(self, value):
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self):
        """1, 2 and 5 of each power of ten; the powers alone where that is too many."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        factors = (1, 2, 5) if len(decades) <= 5 else (1,)
        values = [factor * 10.0 ** decade for decade in decades for factor in factors]
        return [(value, f"{value:g}") for value in values if self.low * 0.999 <= value <= self.high * 1.001]


class Tail:
    """Of shares below 1: 90, 99 and 99.9 % are equally far apart, for what is rare is what is looked for."""

    def __init__(self, highest):
        self.highest = highest

    def place(self, share):
        return math.log10(1 - min(share, self.highest)) / math.log10(1 - self.highest)

    def ticks(self):
        return [(share, f"{100 * share:g} %") for share in (0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)
                if share <= self.highest + 1e-12]


class Plot:
    """A rectangle of a drawing with an axis at its left and one below it."""

    def __init__(self, drawing, left, top, width, height, x_axis, y_axis):
        self.drawing = drawing
        self.left, self.top, self.width, self.height = left, top, width, height
        self.x_axis, self.y_axis = x_axis, y_axis

    def x(self, value):
        return self.left + self.width * self.x_axis.place(value)

    def y(self, value):
        return self.top + self.height * (1 - self.y_axis.place(value))

    def frame(self, x_label, y_label):
        bottom = self.top + self.height
        for value, label in self.x_axis.ticks():
            self.drawing.line(self.x(value), self.top, self.x(value), bottom, GRID)
            self.drawing.text(self.x(value), bottom + 15, label, anchor="middle")
        for value, label in self.y_axis.ticks():
            self.drawing.line(self.left, self.y(value), self.left + self.width, self.y(value), GRID)
            self.drawing.text(self.left - 6, self.y(value) + 4, label, anchor="end")
        self.drawing.line(self.left, bottom, self.left + self.width, bottom)
        self.drawing.line(self.left, self.top, self.left, bottom)
        self.drawing.text(self.left + self.width / 2, bottom + 34, x_label, 12, "middle")
        self.drawing.text(self.left - 46, self.top + self.height / 2, y_label, 12, "middle", turned=True)

    def curve(self, points, colour, dashes="", width=1.6):
        self.drawing.path([(self.x(x), self.y(y)) for x, y in points], colour, width, dashes)


def legend(drawing, x, y, entries, spacing=17):
    """`entries`: (words, colour, dashes), one below the other, with a piece of line each."""
    for row, (words, colour, dashes) in enumerate(entries):
        drawing.line(x, y + spacing * row, x + 26, y + spacing * row, colour, 2.2, dashes)
        drawing.text(x + 32, y + spacing * row + 4, words)
