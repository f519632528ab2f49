# SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison: for each work a bar for each way, with the range of its rounds."""

import drawings
import measures
import table

ROW_POINTS, HEAD_POINTS = 22, 70


def panels(works, ways, runs):
    """(title, unit, [(way's title, median, lowest, highest, or None and why)]) of each work that was measured."""
    found = []
    for name, title, roles in works:
        if "latency" in roles:
            shown, unit, of = f"{title}: p99", "ms", lambda way, work=name: table.latency(runs, work, way, "p99")
        else:
            shown, unit = title, "% of one alone"
            of = lambda way, work=name: [100 * value for value in table.kept(runs, work, way)]  # noqa: E731
        bars = []
        for way, way_title in ways:
            values = of(way)
            failed = table.failure(runs, name, way)
            bars.append((way_title, *measures.middle(values)) if values else
                        (way_title, None, "failed" if failed else "not run", ""))
        if any(bar[1] is not None for bar in bars):
            found.append((shown, unit, bars))
    return found


def draw(path, facts, works, ways, runs):
    """As SVG. Raises ModuleNotFoundError without matplotlib."""
    shown = panels(works, ways, runs)
    height = sum(HEAD_POINTS + ROW_POINTS * len(ways) for _ in shown) + HEAD_POINTS
    figure = drawings.new_figure("Ways to share one GPU", 760, height)
    axes_of = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for axes, (title, unit, bars) in zip(axes_of, shown):
        for place, (_, middle, low, high) in enumerate(bars):
            if middle is None:
                axes.text(0, place, f"  {low}", va="center", fontsize=9, color=drawings.FAINT)
                continue
            colour = drawings.style(1 if bars[place][0] == "gpumux" else 9)[0]
            axes.barh(place, middle, color=colour, height=0.6, xerr=[[middle - low], [high - middle]],
                      error_kw={"ecolor": drawings.INK, "capsize": 2, "linewidth": 1})
            axes.text(high, place, f"  {table.number(middle)}", va="center", fontsize=9)
        axes.set_yticks(range(len(bars)), [bar[0] for bar in bars])
        axes.invert_yaxis()
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel(unit)
        axes.margins(x=0.12)
        axes.spines[["top", "right"]].set_visible(False)
    caption = "; ".join(f"{name}: {facts[name]}" for name in ("GPU", "date", "rounds") if name in facts)
    drawings.save(figure, path, f"{caption}. Bars are medians, lines the lowest and the highest round.")
