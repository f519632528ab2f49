#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do two commits decide the same for the same seeds? Builds the simulator of the lease core of each commit, runs the
same seeds with both, and compares their logs.

    experiments/019-same-decisions/run.py BEFORE AFTER [--seeds N] [--without REGEX] [--out FILE]

Two logs are the same if one is the beginning of the other. Lines that only say that time has passed do not count: a
commit may tell the core more ticks that change nothing, and a seed ends after a number of events. Nor do lines in which
REGEX is found, for a commit that gives an event another form. Exit status: 0 all are the same, 1 some are not.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "-O2", "-g0", "-D_GNU_SOURCE", "-Isrc", "-I."]
FOLDERS = ("src/sched", "src/node", "src/base", "src/settings", "sim/sched")
# (name, first seed, part of all seeds, arguments)
SCENARIOS = [
    ("faults", 1, 0.30, ["--steps", "600"]),
    ("calm", 100_000, 0.10, ["--steps", "2000", "--no-faults"]),
    ("overloaded", 400_000, 0.15, ["--steps", "1000", "--overloaded"]),
    ("eager", 600_000, 0.08, ["--steps", "1000", "--eager", "--overloaded"]),
    ("strangers", 910_000, 0.05, ["--steps", "1500", "--collectives", "--strangers", "--overloaded"]),
    ("suspend", 800_000, 0.08, ["--steps", "1000", "--suspend"]),
    ("memory", 700_000, 0.12, ["--steps", "1500", "--memory"]),
    ("memory, overloaded, suspend", 840_000, 0.04, ["--steps", "1500", "--memory", "--overloaded", "--suspend"]),
    ("hostile", 740_000, 0.02, ["--steps", "1500", "--memory", "--hostile"]),
    ("claims", 1_100_000, 0.06, ["--steps", "1000", "--claims"]),
]


def build(commit: str, folder: pathlib.Path, pool: concurrent.futures.Executor) -> pathlib.Path:
    folder.mkdir()
    tree = subprocess.run(["git", "-C", ROOT, "archive", commit, "src", "sim"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
    sources = [path.relative_to(folder) for name in FOLDERS for path in sorted((folder / name).glob("*.cc"))
               if not re.search(r"_(test|bench|fuzz)\.cc$", path.name)]
    objects = [f"{str(source).replace('/', '_')}.o" for source in sources]
    compiles = [pool.submit(subprocess.run, ["g++", *FLAGS, "-c", source, "-o", into], cwd=folder, check=True)
                for source, into in zip(sources, objects)]
    for one in compiles:
        one.result()
    subprocess.run(["g++", *objects, "-o", "simulator", "-lfmt", "-ldl", "-lpthread"], cwd=folder, check=True)
    return folder / "simulator"


def log_of(simulator: pathlib.Path, seed: int, arguments: list[str], without: str) -> tuple[bool, list[str]]:
    """Whether the seed's checks held, and its events and commands without some."""
    done = subprocess.run([simulator, "--log", "--seed", str(seed), *arguments], capture_output=True, text=True,
                          check=False)
    lines = [line for line in done.stdout.splitlines()
             if line and not line.startswith("seed ") and not line.endswith(" time")
             and not (without and re.search(without, line))]
    return done.returncode == 0, lines


def compare(simulators: list[pathlib.Path], name: str, seed: int, arguments: list[str],
            without: str) -> tuple[str, int, str]:
    (good_before, before), (good_after, after) = (log_of(simulator, seed, arguments, without)
                                                  for simulator in simulators)
    # The last event of the shorter log may miss some of its commands.
    length = min(len(before), len(after)) - 1
    if good_before != good_after:
        return name, seed, "one fails"
    if length < 1:
        return name, seed, "no log"
    return name, seed, "same" if before[:length] == after[:length] else "differs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--without", metavar="REGEX", default="")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    counts: dict[str, collections.Counter] = collections.OrderedDict()
    others = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        simulators = [build(commit, pathlib.Path(folder) / name, pool)
                      for name, commit in (("before", arguments.before), ("after", arguments.after))]
        runs = [pool.submit(compare, simulators, name, first + i, options, arguments.without)
                for name, first, part, options in SCENARIOS for i in range(max(1, int(arguments.seeds * part)))]
        for run in runs:
            name, seed, verdict = run.result()
            counts.setdefault(name, collections.Counter())[verdict] += 1
            if verdict != "same":
                others.append(f"{name}, seed {seed}: {verdict}")
    report = [f"{arguments.before} and {arguments.after}"]
    report += [f"{name:<28} {count['same']:>5} of {count.total():>5} the same" for name, count in counts.items()]
    total = sum((count for count in counts.values()), collections.Counter())
    report.append(f"{'all':<28} {total['same']:>5} of {total.total():>5} the same")
    report += others[:20] + ([f"and {len(others) - 20} more"] if len(others) > 20 else [])
    text = "\n".join(report) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
