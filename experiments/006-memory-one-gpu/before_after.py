#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two programs of 60 % change hands under two builds, in turn: how long does a switch take?

    before_after.py --before DIST --after DIST --out DIR [--pairs N]

DIST: as tests/gpu/bundle.sh makes it. Needs a GPU and PyTorch. Prints each switch's median, and the pairs' ratio.
"""
import argparse
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "gpu"), str(ROOT / "bench" / "gpu")]
sys.dont_write_bytecode = True

import parts_memory  # noqa: E402
from support import INFO, Session  # noqa: E402


def session_of(dist, out, natives):
    session = Session(argparse.Namespace(dist=dist, out=out, gpus=1, quick=True, budget=1200, within=None))
    session.natives = natives
    return session


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    natives, switches, took = {}, {"before": [], "after": []}, {"before": [], "after": []}
    sessions = {name: session_of(getattr(arguments, name), os.path.join(arguments.out, name), natives)
                for name in switches}
    first = sessions["before"]
    parts_memory.native_of(first, "large-handed", parts_memory.large(first, "--share", "0.6", "--seconds", "5"))
    for pair in range(arguments.pairs):
        for name in (("before", "after"), ("after", "before"))[pair % 2]:
            session = sessions[name]
            argv = parts_memory.large(session, "--share", "0.6", "--steps", str(natives["large-handed"]["steps"]))
            title = f"{name}-{pair + 1}"
            members = [(f"large{i}", "large-handed", argv, {}) for i in range(2)]
            seconds = parts_memory.at_once(session, title, members, 120, mode="auto", quantum="1s", hand_over=True)
            row = next(row for row in session.rows if row["name"] == f"{title}: from grant to complete")
            switches[name].append(float(row["figure"].split("median ")[1].split(" s")[0]))
            took[name].append(seconds or float("nan"))
    for what, of in (("switch, median of each run", switches), ("until both have ended", took)):
        ratio = statistics.median(after / before for before, after in zip(of["before"], of["after"]))
        first.add(INFO, what, "; ".join(f"{name} {' '.join(f'{value:.2f}' for value in values)} s"
                                        for name, values in of.items()) + f"; after by before, median {ratio:.3f}")


if __name__ == "__main__":
    main()
