# SPDX-License-Identifier: Apache-2.0
"""The table for people, from the figures of each configuration's runs."""

import math

import measures


def summary_of(windows):
    """One configuration's figures: for each the median over its runs, with the lowest and the highest."""
    runs = [window.figures() for window in windows]
    found = {"runs": len(runs), "requests": sum(run.get("requests", 0) for run in runs),
             "unanswered": sum(run.get("unanswered", 0) for run in runs)}

    def over(name, values):
        values = [value for value in values if value is not None]
        if values:
            found[name] = dict(zip(("median", "low", "high"), measures.middle(values)))

    for name in ("p50", "p95", "p99", "max"):
        over(name, [run["latency_ms"][name] for run in runs if "latency_ms" in run])
        if any(name in run["latency_ms"]["at_least"] for run in runs if "latency_ms" in run):
            found.setdefault("at_least", []).append(name)
    for name in ("free", "steps_per_s", "latency_held", "batch_held", "latency_turns_per_s", "batch_turns_per_s"):
        over(name, [run.get(name) for run in runs])
    restores = [restore for window in windows for restore in window.restores]
    if restores:
        found["restore_ms"] = dict(zip(("median", "low", "high"), measures.middle(restores)))
    return found


def complete(summaries):
    """Adds what is compared with the batch task alone."""
    alone = summaries.get("alone-batch", {}).get("steps_per_s", {}).get("median")
    for summary in summaries.values():
        if alone and "steps_per_s" in summary:
            summary["kept"] = {key: value / alone for key, value in summary["steps_per_s"].items()}
            if "free" in summary and summary["free"]["median"] > 0:
                summary["kept_of_free"] = summary["kept"]["median"] / summary["free"]["median"]
    return summaries


def short(value):
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def cell(summary, name, spread):
    if name not in summary:
        return "-"
    figure = summary[name]
    text = (">" if name in summary.get("at_least", ()) else "") + short(figure["median"])
    return text + (f" ({short(figure['low'])} to {short(figure['high'])})" if spread and summary["runs"] > 1 else "")


def share(summary, name):
    if name not in summary:
        return "-"
    value = summary[name] if isinstance(summary[name], float) else summary[name]["median"]
    return f"{100 * value:.1f} %"


HEAD = ("configuration", "p50", "p95", "p99", "max", "not answered", "batch kept", "free", "kept/free", "turns/s")


def row(name, title, summary):
    if "failed" in summary:
        return (name, summary["failed"])
    has_requests = "p50" in summary
    has_both = has_requests and "kept" in summary
    turns = sum(summary.get(f"{role}_turns_per_s", {}).get("median", 0.0) for role in ("latency", "batch"))
    return (title, cell(summary, "p50", False), cell(summary, "p95", False), cell(summary, "p99", True),
            cell(summary, "max", False), str(summary["unanswered"]) if has_requests else "-", share(summary, "kept"),
            share(summary, "free"), share(summary, "kept_of_free") if has_both else "-",
            f"{turns:.1f}" if "latency_held" in summary or "batch_held" in summary else "-")


LEGEND = """\
p50 to max   ms from a request's arrival to its answer, waiting included; the same arrivals in every configuration.
             With several runs: the median over the runs (p99: lowest to highest). ">": not all were answered in time.
batch kept   the batch task's steps a second, of those that it makes alone.
free         the part of the time in which no request was in service: what the batch task would have kept if it had
             had all of that time, and nothing else.
kept/free    more than 100 %: the two overlapped, or requests left parts of the GPU unused. In a mode where requests
             are in service nearly all of the time it says nothing.
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
        rows.append(row(configuration.title, configuration.title, summaries[configuration.name]))
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
    for summary_name, summary in summaries.items():
        if "restore_ms" in summary:
            figure = summary["restore_ms"]
            lines.append(f"{summary_name}: the latency task's memory was there {short(figure['median'])} ms after each "
                         f"grant ({short(figure['low'])} to {short(figure['high'])})")
    return "\n".join(lines + [""] + notes if notes else lines) + "\n"
