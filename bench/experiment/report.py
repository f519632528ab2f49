# SPDX-License-Identifier: Apache-2.0
"""The table and the page for people, from the figures of each configuration's runs."""

import base64
import html
import math

import measures


# Below this, what is kept by what is free is a large number that depends on chance.
LEAST_FREE = 0.1


def over(runs):
    """The median over the runs, with the lowest and the highest; None: no run has it."""
    known = [value for value in runs if value is not None]
    return dict(zip(("median", "low", "high"), measures.middle(known))) if known else None


def ratios(runs, base, figure):
    """`figure` of each run by that of `base` in the same round: clocks and temperatures drift from one to the next."""
    pairs = [(figure(run), figure(base[turn])) for turn, run in runs.items() if turn in base]
    return over([value / of for value, of in pairs if value is not None and of])


def latency(name):
    return lambda run: run["latency_ms"][name] if "latency_ms" in run else None


def summary_of(runs, windows, alone_latency, alone_batch):
    """One configuration's figures. `runs` and the ones it is compared with: round: figures of that round's window."""
    of_all = runs.values()
    found = {"runs": len(runs), "requests": sum(run.get("requests", 0) for run in of_all),
             "unanswered": sum(run.get("unanswered", 0) for run in of_all)}
    latencies = [run["latency_ms"] for run in of_all if "latency_ms" in run]
    found["at_least"] = [name for name in ("p50", "p95", "p99", "max")
                         if any(name in figures["at_least"] for figures in latencies)]
    figures = {name: over([latency(name)(run) for run in of_all]) for name in ("p50", "p95", "p99", "max")}
    for name in ("free", "steps_per_s", "latency_held", "batch_held", "latency_turns_per_s", "batch_turns_per_s"):
        figures[name] = over([run.get(name) for run in of_all])
    figures["p99_of_alone"] = ratios(runs, alone_latency, latency("p99"))
    figures["kept"] = ratios(runs, alone_batch, lambda run: run.get("steps_per_s"))
    for role in ("latency", "batch"):
        figures[f"{role}_fetch_ms"] = over([fetch for window in windows for fetch in window.fetches_ms(role)])
        figures[f"{role}_wait_ms"] = over([wait for window in windows for wait in window.waits_ms(role)])
    found.update({name: figure for name, figure in figures.items() if figure is not None})
    if "p99" in found["at_least"]:
        found["at_least"].append("p99_of_alone")
    if "kept" in found and "free" in found and found["free"]["median"] >= LEAST_FREE:
        found["kept_of_free"] = found["kept"]["median"] / found["free"]["median"]
    return found


def summaries(windows):
    """`windows`: configuration: round: what it did. Those without any round are left out."""
    runs = {name: {turn: window.figures() for turn, window in of.items()} for name, of in windows.items() if of}
    return {name: summary_of(of, windows[name].values(), runs.get("alone-latency", {}), runs.get("alone-batch", {}))
            for name, of in runs.items()}


def short(value):
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def cell(summary, name, with_spread, least_runs=2):
    if name not in summary:
        return "-"
    figure = summary[name]
    text = (">" if name in summary.get("at_least", ()) else "") + short(figure["median"])
    spread = f" ({short(figure['low'])} to {short(figure['high'])})"
    return text + (spread if with_spread and summary["runs"] >= least_runs else "")


def share(summary, name):
    if name not in summary:
        return "-"
    value = summary[name] if isinstance(summary[name], float) else summary[name]["median"]
    return f"{100 * value:.1f} %"


HEAD = ("configuration", "p50", "p95", "p99", "max", "p99/alone", "not answered", "batch kept", "free", "kept/free",
        "turns/s")


def row(title, summary):
    if "failed" in summary:
        return (title, summary["failed"])
    has_requests = "p50" in summary
    has_both = has_requests and "kept" in summary
    turns = sum(summary.get(f"{role}_turns_per_s", {}).get("median", 0.0) for role in ("latency", "batch"))
    return (title, cell(summary, "p50", False), cell(summary, "p95", False), cell(summary, "p99", True),
            cell(summary, "max", False), cell(summary, "p99_of_alone", True),
            str(summary["unanswered"]) if has_requests else "-", share(summary, "kept"), share(summary, "free"),
            share(summary, "kept_of_free") if has_both else "-",
            f"{turns:.1f}" if "latency_held" in summary or "batch_held" in summary else "-")


LEGEND = """\
p50 to max   ms from a request's arrival to its answer, waiting included; the same arrivals in every configuration.
             With several runs: the median over the runs (lowest to highest). ">": not all were answered in time.
p99/alone    p99 by that of the latency task alone; with several runs: median of the runs' ratios.
batch kept   the batch task's steps a second, of those that it makes alone (median of the runs' ratios).
free         the part of the time in which no request was in service: what the batch task would have kept if it had
             had all of that time, and nothing else.
kept/free    more than 100 %: the two overlapped, or requests left parts of the GPU unused. "-": less than a tenth of
             the time was free, so it would say nothing.
turns/s      leases that began, of both tasks, a second.
"""


def table(facts, configurations, summaries, notes):
    rows = [HEAD]
    group = None
    breaks = []
    for configuration in configurations:
        if configuration.name not in summaries:
            continue
        if configuration.group != group:
            group = configuration.group
            breaks.append(len(rows))
        rows.append(row(configuration.title, summaries[configuration.name]))
    whole = [line for line in rows if len(line) == len(HEAD)]
    widths = [max(len(line[i]) for line in whole) for i in range(len(HEAD))]
    widths[0] = max(len(line[0]) for line in rows)
    lines = [f"{key}: {value}" for key, value in facts.items()] + [""]
    for i, line in enumerate(rows):
        if i in breaks:
            lines.append("-" * (sum(widths) + 2 * len(widths) - 2))
        first = f"{line[0]:{widths[0]}}"
        if len(line) != len(HEAD):
            lines.append(f"{first}  {line[1]}")
            continue
        lines.append("  ".join([first] + [f"{text:>{width}}" for text, width in zip(line[1:], widths[1:])]))
    lines += ["", LEGEND.rstrip("\n")]
    for name, summary in summaries.items():
        for role in ("latency", "batch"):
            if f"{role}_fetch_ms" in summary:
                lines.append(f"{name}: the {role} task had its memory {cell(summary, f'{role}_fetch_ms', True, 0)} ms "
                             f"after its lease, and {cell(summary, f'{role}_wait_ms', True, 0)} ms after it had asked.")
    return "\n".join(lines + [""] + notes if notes else lines) + "\n"


def caption(facts, summaries):
    """The two lines below every picture: GPU, machine and date; requests and models."""
    counts = sorted({summary["requests"] for summary in summaries.values() if summary.get("requests")})
    requests = "no requests" if not counts else f"{counts[0]} requests of each configuration" \
        if len(counts) == 1 else f"{counts[0]} to {counts[-1]} requests of each configuration"
    tasks = ", ".join(f"{role}: {facts[f'{role} task']}" for role in ("latency", "batch") if f"{role} task" in facts)
    return f"GPU: {facts['GPU']}. Machine: {facts['machine']}. {facts['date']}.\n{requests}. {tasks}"


STYLE = """\
body { font-family: sans-serif; margin: 2em auto; max-width: 1000px; padding: 0 1em; color: #222; background: #fff; }
dt { float: left; clear: left; width: 9em; color: #777; } dd { margin: 0 0 .3em 9.5em; }
pre { overflow-x: auto; font-size: 12px; border: 1px solid #e4e4e4; padding: 1em; }
img { max-width: 100%; border: 1px solid #e4e4e4; margin-bottom: 1.5em; }
"""


def page(facts, text, notes, pictures):
    """One HTML file without links to others. `text`: what table() gave; `pictures`: (name, SVG as bytes)."""
    parts = ["<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8">',
             '<meta name="viewport" content="width=device-width">',
             "<title>A latency task beside a batch task</title>", f"<style>\n{STYLE}</style></head><body>",
             "<h1>A latency task beside a batch task on one GPU</h1>", "<dl>"]
    parts += [f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>" for key, value in facts.items()]
    parts += ["</dl>"] + [f"<p>{html.escape(note)}</p>" for note in notes]
    for name, picture in pictures:
        data = base64.b64encode(picture).decode()
        parts.append(f'<img alt="{html.escape(name)}" src="data:image/svg+xml;base64,{data}">')
    parts += [f"<h2>All figures</h2><pre>{html.escape(text)}</pre>", "</body></html>"]
    return "\n".join(parts) + "\n"
