#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long do the benchmarks of several builds take?

    compare.py ROUNDS NAME=BUILD...

Runs each benchmark program that all builds have, the builds in turn, ROUNDS times. Prints the least CPU time of each
benchmark in nanoseconds, with its ratio to the first build's: other programs on the machine only make it longer.
Left out are benchmarks with a million jobs, and daemon_bench and runners_bench, which print tables of their own.
"""
import collections
import json
import pathlib
import subprocess
import sys

UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def run(build: pathlib.Path, name: str) -> dict[str, float]:
    out = subprocess.run([build / "bin" / name, "--benchmark_format=json", "--benchmark_min_time=0.05",
                          "--benchmark_filter=-/1000000"], cwd=build, capture_output=True, text=True, check=True).stdout
    found = json.loads(out[out.index("{"):])["benchmarks"]
    return {one["name"]: one["cpu_time"] * UNITS[one["time_unit"]] for one in found if "cpu_time" in one}


def main() -> None:
    if len(sys.argv) < 3 or not sys.argv[1].isdigit() or not all("=" in word for word in sys.argv[2:]):
        sys.exit(__doc__)
    builds = {name: pathlib.Path(build).resolve() for name, build in (word.split("=", 1) for word in sys.argv[2:])}
    programs = set.intersection(*({path.name for path in build.glob("bin/*_bench")} for build in builds.values()))
    least = collections.defaultdict(dict)
    for program in sorted(programs - {"daemon_bench", "runners_bench"}) * int(sys.argv[1]):
        for name, build in builds.items():
            for benchmark, time in run(build, program).items():
                of = least[program, benchmark]
                of[name] = min(time, of.get(name, time))
    first = next(iter(builds))
    for (program, benchmark), times in sorted(least.items()):
        if first in times:
            print(program, benchmark, *(f"{name}={time:.1f} ({time / times[first]:.3f})"
                                        for name, time in times.items()))


if __name__ == "__main__":
    main()
