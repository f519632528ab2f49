# SPDX-License-Identifier: Apache-2.0
"""The table of a comparison, from its runs. Pure: runs in, text out.

A run is what one way did of one work in one round: a dictionary with `round`, `work`, `way`, and either `figures` or
`failed`, which says why. The baseline is the way "alone": each kind of program by itself on the plain driver.
"""

import measures

ALONE = "alone"
LAUNCH = "launch"


def of_way(runs, work, way):
    return [run for run in runs if run["work"] == work and run["way"] == way]


def by_round(runs, work, way):
    return {run["round"]: run["figures"] for run in of_way(runs, work, way) if "figures" in run}


def steps(figures):
    """Steps a second of all batch programs of a run."""
    return sum(figures["steps_per_s"])


def kept(runs, work, way):
    """Steps of all by those of one alone in the same round: the machine's clocks drift between rounds."""
    alone = by_round(runs, work, ALONE)
    return [steps(figures) / steps(alone[turn]) for turn, figures in by_round(runs, work, way).items()
            if turn in alone and steps(alone[turn]) > 0]


def least(runs, work, way):
    """The steps of the program that did least, of an equal part of what all of them did."""
    return [min(figures["steps_per_s"]) * len(figures["steps_per_s"]) / steps(figures)
            for figures in by_round(runs, work, way).values() if steps(figures) > 0]


def latency(runs, work, way, name):
    return [figures["latency_ms"][name] for figures in by_round(runs, work, way).values()]


def is_bound(runs, work, way, name):
    """Whether requests that were never answered make the figure a lower bound."""
    return any(name in figures["latency_ms"]["at_least"] for figures in by_round(runs, work, way).values())


def nanoseconds(runs, way):
    return [figures["launch_ns"] for figures in by_round(runs, LAUNCH, way).values()]


def spread(values, unit, factor=1, prefix=""):
    """The median, and in brackets the lowest and the highest of several."""
    middle, low, high = (factor * value for value in measures.middle(values))
    text = f"{prefix}{number(middle)} {unit}"
    return text if len(values) < 2 else f"{text} ({number(low)} to {number(high)})"


def number(value):
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def failure(runs, work, way):
    """Of runs that failed: how many and why, in a few words; empty: none did."""
    failed = [run for run in of_way(runs, work, way) if "failed" in run]
    if not failed:
        return ""
    count = len(of_way(runs, work, way))
    return f"failed {len(failed)} of {count}: {failed[0]['failed']}"


def rows(works):
    """(title, function of runs and way that gives a cell's values or text) of each row."""
    found = []
    for name, title, roles in works:
        if name == LAUNCH:
            found.append((title, name, lambda runs, way, work=name: spread(nanoseconds(runs, way), "ns")))
        elif "latency" in roles:
            for part in ("p50", "p99"):
                found.append((f"{title}: {part}", name, lambda runs, way, work=name, part=part: spread(
                    latency(runs, work, way, part), "ms", prefix=">" if is_bound(runs, work, way, part) else "")))
            found.append((f"{title}: what the training keeps of its speed alone", name,
                          lambda runs, way, work=name: spread(kept(runs, work, way), "%", 100)))
        else:
            found.append((title, name, lambda runs, way, work=name: spread(kept(runs, work, way), "%", 100)))
            found.append((f"{name}: the program with the least, of an equal part", name,
                          lambda runs, way, work=name: spread(least(runs, work, way), "%", 100)))
    return found


def cell(runs, row, way, refusals):
    _, work, text_of = row
    if by_round(runs, work, way):
        failed = failure(runs, work, way)
        return text_of(runs, way) + (f"; {failed}" if failed else "")
    return failure(runs, work, way) or refusals.get((work, way)) or "-"


def markdown(facts, works, ways, runs, refusals):
    """`works`: (name, title, roles); `ways`: (name, title, limits) of those that were run; `refusals`: (work, way): why
    that way was not asked to do that work."""
    lines = [f"{name}: {value}  " for name, value in facts.items()]
    lines += ["", "| | alone | " + " | ".join(title for _, title, _ in ways) + " |", "|---" * (len(ways) + 2) + "|"]
    for row in rows(works):
        cells = [cell(runs, row, way, refusals).replace("|", "/") for way in (ALONE, *(name for name, _, _ in ways))]
        lines.append(f"| {row[0]} | " + " | ".join(cells) + " |")
    lines += ["", "Each figure is the median of its rounds, with the lowest and the highest in brackets.",
              "\"Alone\" is one program of each kind on the plain driver, in the same round."]
    lines += [f"- **{title}.** {limits}" for _, title, limits in ways]
    return "\n".join(lines) + "\n"
