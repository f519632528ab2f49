# SPDX-License-Identifier: Apache-2.0
"""The experiment's three kinds of picture: latency distributions, what is traded for what, and who had the GPU when."""

import math

import svg

REQUEST, WAITING, EXCLUSIVE, SHARED, STEP = "#0072b2", "#a6cee3", "#009e73", "#b9ddc8", "#d55e00"
FETCH = "#e6c619"
SHADES = 4  # of a stretch of time that is only partly held


def latency(title, series):
    """`series`: (name, latencies in ms of the answered, count of all requests, (colour, dashes)). Draws for each share
    of the requests within which time they were answered."""
    series = [entry for entry in series if entry[1]]
    drawing = svg.Drawing(980, 150 + max(360, 17 * len(series)), title)
    drawing.text(70, 24, title, 15, weight="bold")
    if not series:
        drawing.text(70, 60, "no request was answered")
        return drawing
    low = min(min(values) for _, values, _, _ in series)
    high = max(max(values) for _, values, _, _ in series)
    most = max(total for _, _, total, _ in series)
    highest = next((share for share in (0.9, 0.99, 0.999) if most * (1 - share) <= 1.5), 0.9999)
    plot = svg.Plot(drawing, 70, 46, 600, drawing.height - 110,
                    svg.Logarithmic(low * 0.9, high * 1.1), svg.Tail(highest))
    plot.frame("latency of a request, from its arrival to its answer, ms (logarithmic)", "requests answered within it")
    for _, values, total, (colour, dashes) in series:
        values = sorted(values)
        points = [(values[0], 0.0)]
        for i, value in enumerate(values, 1):
            points += [(value, min((i - 1) / total, highest)), (value, min(i / total, highest))]
        plot.curve(points, colour, dashes)
    svg.legend(drawing, 700, 58, [(name, *look) for name, _, _, look in series])
    drawing.text(70, drawing.height - 8, "Further left is faster. A curve that ends below the top: not all requests "
                 "were answered before the run ended.", 10, fill=svg.FAINT)
    return drawing


def trade(title, points, alone=math.nan):
    """`points`: (name, p99 in ms, what of its rate alone the batch task kept, (colour, dashes), group). `alone`: the
    p99 of the latency task alone."""
    points = [point for point in points if not math.isnan(point[1])]
    drawing = svg.Drawing(980, 150 + max(360, 17 * len(points)), title)
    drawing.text(70, 24, title, 15, weight="bold")
    if not points:
        drawing.text(70, 60, "nothing to compare")
        return drawing
    low, high = min(point[1] for point in points), max(point[1] for point in points)
    low = low if math.isnan(alone) else min(low, alone)
    plot = svg.Plot(drawing, 70, 46, 600, drawing.height - 110, svg.Logarithmic(low * 0.8, high * 1.25),
                    svg.Linear(0, max(100, *(100 * point[2] for point in points))))
    plot.frame("p99 latency, ms (logarithmic)", "rate that the batch task kept, % of alone")
    if not math.isnan(alone):
        drawing.line(plot.x(alone), plot.top, plot.x(alone), plot.top + plot.height, svg.FAINT, dashes="5 4")
        drawing.text(plot.x(alone) + 4, plot.top + plot.height - 6, "latency task alone", 10, fill=svg.FAINT)
    for i, (name, p99, kept, (colour, dashes), group) in enumerate(points):
        x, y = plot.x(p99), plot.y(100 * kept)
        if group == "wrapper":
            drawing.rectangle(x - 4, y - 4, 8, 8, "white" if dashes else colour, stroke=colour, stroke_width=1.5)
        else:
            drawing.circle(x, y, 5, colour)
        drawing.text(x + 7, y - 5, str(i + 1), 10)
        drawing.text(716, 62 + 17 * i, str(i + 1), anchor="end", fill=colour)
        drawing.text(722, 62 + 17 * i, name, fill=colour)
    drawing.text(70, drawing.height - 8, "Up and left is better. Circles: plain driver and gpumux; squares: modes of "
                 "the wrapper.", 10, fill=svg.FAINT)
    return drawing


def densest(arrivals, seconds, span):
    """Where the stretch of `span` seconds begins that has most arrivals (offsets in nanoseconds)."""
    best, best_count = 0.0, -1
    start = 0.0
    while start + span <= seconds + 1e-9:
        count = sum(start <= arrival / 1e9 < start + span for arrival in arrivals)
        if count > best_count:
            best, best_count = start, count
        start += span / 4
    return best


def shades(holds, begin, end, cells):
    """For each of `cells` equal parts of [begin, end]: which part of it is held, of SHADES; (exclusive, shared)."""
    found = ([0.0] * cells, [0.0] * cells)
    size = (end - begin) / cells
    for hold in holds:
        into = found[0 if hold.exclusive else 1]
        left, right = max(hold.begin, begin), min(hold.end, end)
        if right <= left:
            continue
        for cell in range(int((left - begin) / size), min(int((right - begin) / size) + 1, cells)):
            low = begin + cell * size
            into[cell] += max(0.0, min(right, low + size) - max(left, low)) / size
    return tuple([min(SHADES, math.ceil(share * SHADES - 1e-6)) for share in row] for row in found)


def draw_holds(drawing, holds, begin, end, left, top, width, height):
    for row, colour in zip(shades(holds, begin, end, width), (EXCLUSIVE, SHARED)):
        cell = 0
        while cell < width:
            last = cell
            while last + 1 < width and row[last + 1] == row[cell]:
                last += 1
            if row[cell]:
                drawing.rectangle(left + cell, top, last + 1 - cell, height, colour,
                                  fill_opacity=row[cell] / SHADES if row[cell] < SHADES else None)
            cell = last + 1


ROW, PANEL_HEAD, LEFT, WIDTH = 15, 24, 130, 820


def draw_panel(drawing, top, window, begin, end):
    """Rows of one configuration; returns how many."""

    def x(time):
        return LEFT + WIDTH * (min(max(time, begin), end) - begin) / (end - begin)

    rows = []
    if window.requests or window.unanswered:
        rows.append("requests")
    rows += [f"{role} may run" for role in window.holds]
    if window.steps:
        rows.append("batch steps end")
    for i, name in enumerate(rows):
        y = top + ROW * i
        drawing.text(LEFT - 8, y + 10, name, 10, "end", svg.FAINT)
        drawing.line(LEFT, y + ROW - 2, LEFT + WIDTH, y + ROW - 2, svg.GRID)
        if name == "requests":
            for request in window.requests:
                if request.end > begin and request.arrival < end:
                    # One above the other, for requests wait while another one is in service.
                    drawing.rectangle(x(request.arrival), y, x(request.begin) - x(request.arrival), 5, WAITING)
                    if request.begin < end:
                        length = max(x(request.end) - x(request.begin), 1)
                        drawing.rectangle(x(request.begin), y + 5, length, 7, REQUEST)
                    if request.arrival >= begin:
                        drawing.line(x(request.arrival), y - 1, x(request.arrival), y + 13, svg.INK)
            for arrival in window.unanswered:
                if arrival < end:
                    drawing.rectangle(x(arrival), y, x(window.gave_up) - x(arrival), 5, WAITING)
                    if arrival >= begin:
                        drawing.line(x(arrival), y - 1, x(arrival), y + 13, svg.INK)
        elif name == "batch steps end":
            for step in window.steps[1:]:
                if begin <= step < end:
                    drawing.line(x(step), y + 1, x(step), y + 12, STEP, 1.5)
        else:
            role = name.split()[0]
            draw_holds(drawing, window.holds[role], begin, end, LEFT, y + 1, WIDTH, 11)
            for fetch in window.fetches(role):
                if fetch.end > begin and fetch.begin < end:
                    drawing.rectangle(x(fetch.begin), y + 1, x(fetch.end) - x(fetch.begin), 11, FETCH)
    return len(rows)


def timeline(title, panels, offset, span):
    """`panels`: (name, window); each shows the same `span` seconds from `offset` on, so the same arrivals."""
    heights = [PANEL_HEAD + ROW * (2 + len(window.holds)) + 8 for _, window in panels]
    drawing = svg.Drawing(980, 130 + sum(heights), title)
    drawing.text(20, 24, title, 15, weight="bold")
    x = 20
    for words, colour in (("request waits", WAITING), ("request in service", REQUEST), ("exclusive lease", EXCLUSIVE),
                          ("its memory on the way", FETCH), ("shared lease", SHARED), ("a step ended", STEP)):
        drawing.rectangle(x, 40, 14, 10, colour)
        drawing.text(x + 19, 49, words)
        x += 34 + 6.2 * len(words)
    drawing.line(x, 38, x, 52, svg.INK)
    drawing.text(x + 6, 49, "arrival")
    top = 66
    bottom = top + sum(heights)
    axis = svg.Linear(offset * 1e3, (offset + span) * 1e3)
    for value, label in axis.ticks():
        place = LEFT + WIDTH * axis.place(value)
        drawing.line(place, top + PANEL_HEAD, place, bottom, svg.GRID)
        drawing.text(place, bottom + 16, label, anchor="middle")
    drawing.text(LEFT + WIDTH / 2, bottom + 36, "time since the measurement began, ms", 12, "middle")
    for (name, window), height in zip(panels, heights):
        begin = window.begin + round(offset * 1e9)
        drawing.text(20, top + 14, name, 12, weight="bold")
        draw_panel(drawing, top + PANEL_HEAD, window, begin, begin + round(span * 1e9))
        top += height
    return drawing
