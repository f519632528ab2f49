# SPDX-License-Identifier: Apache-2.0
"""The experiment's three kinds of picture: latency distributions, what is traded for what, and who had the GPU when.

Each function returns a figure of matplotlib's. matplotlib is loaded when the first figure is made, so that an
experiment runs on a machine without it.
"""

import math

# Apart also for those who confuse red and green, and in grey: hue and lightness both change from one to the next.
COLOURS = ("#222222", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7a00", "#7a5195", "#999999",
           "#b22222", "#2f4b7c")
# Of a point's number, in points of the page from its centre.
CORNERS = ((6, 4), (6, -12), (-13, 4), (-13, -12))
DASHES = ("", "7 3", "2 3", "9 3 2 3")
REQUEST, WAITING, EXCLUSIVE, SHARED, STEP = "#0072b2", "#a6cee3", "#009e73", "#b9ddc8", "#d55e00"
FETCH, INK, FAINT, GRID = "#e6c619", "#222222", "#777777", "#e4e4e4"


def style(index):
    """(colour, dashes) of the index-th thing of a drawing: colours first, then the same ones dashed."""
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def new_figure(title, width, height):
    import matplotlib.figure
    figure = matplotlib.figure.Figure(figsize=(width / 72, height / 72), layout="constrained")
    figure.suptitle(title, x=0.02, horizontalalignment="left", fontsize=15, fontweight="bold")
    return figure


def save(figure, path, caption=""):
    """As SVG whose words are text. `caption`: lines below the picture that say where its figures are from."""
    import matplotlib
    if caption:
        figure.supxlabel(caption, x=0.02, horizontalalignment="left", fontsize=8, color=FAINT)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, format="svg")


def new_axes(figure, x_label, y_label):
    axes = figure.subplots()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def dashes_of(words):
    """As matplotlib has them."""
    return (0, tuple(float(word) for word in words.split())) if words else "-"


def set_logarithmic(axes):
    """A horizontal axis with ticks at 1, 2 and 5 of each power of ten."""
    import matplotlib.ticker
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")


def set_tail_scale(axes, highest):
    """A vertical axis of shares on which 90, 99 and 99.9 % are equally far apart: rare delays are what matters."""
    axes.set_yscale("function", functions=(lambda share: -_log10(1 - _least(share, highest)),
                                           lambda place: 1 - 10.0 ** -place))
    axes.set_ylim(0, highest)
    ticks = [share for share in (0, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999) if share <= highest + 1e-12]
    axes.set_yticks(ticks, [f"{100 * share:g} %" for share in ticks])


def _log10(values):
    import numpy
    return numpy.log10(values)


def _least(values, bound):
    import numpy
    return numpy.minimum(values, bound)


def latency(title, series):
    """`series`: (name, latencies in ms of the answered, count of all requests, (colour, dashes)). Draws for each share
    of the requests within which time they were answered."""
    series = [entry for entry in series if entry[1]]
    figure = new_figure(title, 980, 150 + max(360, 17 * len(series)))
    if not series:
        figure.text(0.1, 0.5, "no request was answered")
        return figure
    axes = new_axes(figure, "latency of a request, from its arrival to its answer, ms (logarithmic)\n"
                    "Further left is faster. A curve that ends below the top: not all requests were answered before "
                    "the run ended.", "requests answered within it")
    most = max(total for _, _, total, _ in series)
    highest = next((share for share in (0.9, 0.99, 0.999) if most * (1 - share) <= 1.5), 0.9999)
    set_logarithmic(axes)
    set_tail_scale(axes, highest)
    for name, values, total, (colour, dashes) in series:
        values = sorted(values)
        shares = [min(i / total, highest) for i in range(len(values) + 1)]
        axes.step(values[:1] + values, shares, where="post", color=colour, linestyle=dashes_of(dashes), label=name)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


def trade(title, points, alone=math.nan):
    """`points`: (name, p99 in ms, what of its rate alone the batch task kept, (colour, dashes), group). `alone`: the
    p99 of the latency task alone."""
    points = [point for point in points if not math.isnan(point[1])]
    figure = new_figure(title, 980, 150 + max(360, 17 * len(points)))
    if not points:
        figure.text(0.1, 0.5, "nothing to compare")
        return figure
    axes = new_axes(figure, "p99 latency, ms (logarithmic)\nUp and left is better. Circles: plain driver and gpumux; "
                    "squares: modes of the wrapper.", "rate that the batch task kept, % of alone")
    set_logarithmic(axes)
    if not math.isnan(alone):
        axes.axvline(alone, color=FAINT, linestyle="--", label="latency task alone")
    # Neighbours from left to right have their numbers at different corners, so that numbers of near points stay apart.
    by_place = sorted(range(len(points)), key=lambda i: points[i][1])
    corners = {i: CORNERS[place % len(CORNERS)] for place, i in enumerate(by_place)}
    for i, (name, p99, kept, (colour, dashes), group) in enumerate(points):
        is_wrapper = group == "wrapper"
        axes.plot([p99], [100 * kept], linestyle="none", marker="s" if is_wrapper else "o", color=colour,
                  markerfacecolor="white" if is_wrapper and dashes else colour, label=f"{i + 1}  {name}")
        axes.annotate(str(i + 1), (p99, 100 * kept), xytext=corners[i], textcoords="offset points")
    axes.set_ylim(0, max(100, *(104 * point[2] for point in points)))
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return figure


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


def draw_window(axes, window, begin, end):
    """The rows of one configuration, from the top; times in ms since the measurement began."""

    def bars(spans, row, height, colour):
        shown = [(max(first, begin), min(last, end)) for first, last in spans if last > begin and first < end]
        axes.broken_barh([((first - window.begin) / 1e6, (last - first) / 1e6) for first, last in shown],
                         (row, height), color=colour, linewidth=0)

    def marks(times, row, colour):
        axes.vlines([(time - window.begin) / 1e6 for time in times if begin <= time < end], row - 0.4, row + 0.4,
                    color=colour, linewidth=1)

    names = []
    if window.requests or window.unanswered:
        # One above the other, for requests wait while another one is in service.
        row = -len(names)
        bars([(request.arrival, request.begin) for request in window.requests]
             + [(arrival, window.gave_up) for arrival in window.unanswered], row, 0.4, WAITING)
        bars([(request.begin, request.end) for request in window.requests], row - 0.4, 0.4, REQUEST)
        marks([request.arrival for request in window.requests] + window.unanswered, row, INK)
        names.append("requests")
    for role, holds in window.holds.items():
        row = -len(names)
        bars([(hold.begin, hold.end) for hold in holds if hold.exclusive], row - 0.4, 0.8, EXCLUSIVE)
        bars([(hold.begin, hold.end) for hold in holds if not hold.exclusive], row - 0.4, 0.8, SHARED)
        bars([(fetch.begin, fetch.end) for fetch in window.fetches(role)], row - 0.4, 0.8, FETCH)
        names.append(f"{role} may run")
    if window.steps:
        marks(window.steps[1:], -len(names), STEP)
        names.append("batch steps end")
    axes.set_yticks([-row for row in range(len(names))], names)
    axes.set_ylim(0.5 - max(len(names), 1), 0.5)


def timeline(title, panels, offset, span):
    """`panels`: (name, window); each shows the same `span` seconds from `offset` on, so the same arrivals."""
    import matplotlib.patches
    rows = [2 + len(window.holds) for _, window in panels]
    figure = new_figure(title, 980, 130 + sum(30 + 16 * count for count in rows))
    key, *all_axes = figure.subplots(1 + len(panels), squeeze=False, height_ratios=[1, *rows])[:, 0]
    key.axis("off")
    windows = [window for _, window in panels]
    holds = [hold for window in windows for of in window.holds.values() for hold in of]
    key.legend(handles=[matplotlib.patches.Patch(color=colour, label=words) for words, colour, occurs in (
        ("request waits", WAITING, any(window.requests or window.unanswered for window in windows)),
        ("request in service", REQUEST, any(window.requests for window in windows)),
        ("exclusive lease", EXCLUSIVE, any(hold.exclusive for hold in holds)),
        ("its memory on the way", FETCH, any(window.fetches(role) for window in windows for role in window.holds)),
        ("shared lease", SHARED, any(not hold.exclusive for hold in holds)),
        ("a step ended", STEP, any(window.steps for window in windows))) if occurs],
        loc="center left", ncols=6, frameon=False)
    for (name, window), axes in zip(panels, all_axes):
        begin = window.begin + round(offset * 1e9)
        draw_window(axes, window, begin, begin + round(span * 1e9))
        axes.set_xlim(offset * 1e3, (offset + span) * 1e3)
        axes.set_title(name, loc="left", fontsize=11, fontweight="bold")
        axes.grid(axis="x", color=GRID)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelbottom=axes is all_axes[-1])
        axes.spines[:].set_visible(False)
    all_axes[-1].set_xlabel("time since the measurement began, ms; a thin line is the arrival of a request")
    return figure
