#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does each rule of the order of turns bring?

Builds the lease core once as it is and once without each rule (variants.py), and of each: runs the simulator's seeds
and a few programs on one GPU (measure.cc), and the tests of src/sched. The sources are not touched. Writes results/.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import statistics
import subprocess
import sys

from variants import VARIANTS, Variant

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CXX = ["g++", "-std=c++20", "-O2", "-g0", "-D_GNU_SOURCE", f"-I{ROOT}/src", f"-I{ROOT}"]
# The whole of sched_test takes about 3 s.
TEST_LIMIT_S = 120
COLUMNS = ["scenario", "seed", "time", "wait", "busy", "grants", "steps", "stalls", "killed", "borrowed", "gave_way",
           "unfair", "least", "wrong"]


def sources(*patterns: str) -> list[pathlib.Path]:
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def core() -> list[pathlib.Path]:
    every = sources("src/sched/**/*.cc", "src/node/*.cc", "src/base/*.cc", "src/settings/*.cc")
    return [path for path in every if not re.search(r"_(test|bench|fuzz)\.cc$", path.name)]


def simulator() -> list[pathlib.Path]:
    return [path for path in sources("sim/sched/*.cc") if path.name not in ("main.cc", "simulation_test.cc")]


def tests() -> list[pathlib.Path]:
    return sources("src/sched/**/*_test.cc")


def compile_one(source: pathlib.Path, into: pathlib.Path, *includes: str) -> pathlib.Path:
    done = subprocess.run(["ccache", CXX[0], *includes, *CXX[1:], "-c", str(source), "-o", str(into)],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{source} does not compile:\n{done.stderr[:2000]}")
    return into


def link(objects: list[pathlib.Path], into: pathlib.Path, *libraries: str) -> None:
    subprocess.run(["g++", *map(str, objects), "-o", str(into), *libraries, "-ldl", "-lpthread"], check=True)


def edited(variant: Variant) -> dict[str, str]:
    """The files that the variant changes, changed."""
    texts: dict[str, str] = {}
    for path, before, after in variant.edits:
        text = texts.get(path) or (ROOT / path).read_text()
        if text.count(before) != 1:
            sys.exit(f"{path} has the text of '{variant.name}' {text.count(before)} times, not once: mend variants.py\n"
                     f"{before}")
        texts[path] = text.replace(before, after)
    return texts


def build(variant: Variant, objects: dict[pathlib.Path, pathlib.Path], folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    own = dict(objects)
    changed = set()
    for path, text in edited(variant).items():
        source = folder / pathlib.Path(path).relative_to("src")
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text)
        changed.add(ROOT / path)
    # An edited header is found before the one in src, and may be in any object.
    again = own if any(path.suffix == ".h" for path in changed) else changed
    for path in again:
        source = folder / path.relative_to(ROOT / "src") if path in changed else path
        own[path] = compile_one(source, folder / objects[path].name, f"-I{folder}")
    common = [own[path] for path in core()]
    link([own[HERE / "measure.cc"], *common, *(own[path] for path in simulator())], folder / "measure")
    link([*(own[path] for path in tests()), *common], folder / "sched_test", "-lgtest_main", "-lgtest")


def failed_tests(folder: pathlib.Path) -> list[str]:
    command = [str(folder / "sched_test"), "--gtest_brief=1"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TEST_LIMIT_S)
        output, end = done.stdout, [] if done.returncode in (0, 1) else ["(crashes)"]
    except subprocess.TimeoutExpired as stopped:
        output, end = stopped.stdout or b"", ["(one never ends)"]
    return sorted(set(re.findall(r"^\[  FAILED  \] (\w+\.\w+)", output.decode(), re.MULTILINE))) + end


def measure(folder: pathlib.Path, divisor: int) -> None:
    seeds = subprocess.run([str(folder / "measure"), "sim", str(divisor)], capture_output=True, text=True, check=True)
    hands = subprocess.run([str(folder / "measure"), "hands"], capture_output=True, text=True, check=True)
    (folder / "seeds.tsv").write_text(seeds.stdout)
    (folder / "hands.tsv").write_text(hands.stdout)
    (folder / "tests.json").write_text(json.dumps(failed_tests(folder)))


def load(folder: pathlib.Path) -> dict:
    rows = [dict(zip(COLUMNS, line.split("\t"))) for line in (folder / "seeds.tsv").read_text().splitlines()]
    return {"seeds": rows, "hands": [line.split("\t") for line in (folder / "hands.tsv").read_text().splitlines()],
            "tests": json.loads((folder / "tests.json").read_text())}


# ---- tables ---------------------------------------------------------------------------------------

def kind(wrong: str) -> str:
    """The failed check, without the numbers of one seed."""
    wrong = re.sub(r"^at \d+ ns, step \d+: ", "", wrong)
    wrong = re.sub(r"(tenants?|GPUs?|gang|unit|job|claim) ?[\w@.,]*\d+", r"\1", wrong)
    wrong = re.sub(r"\d+(\.\d+)?", "N", wrong)
    return re.sub(r", more than N, for GPU.*|\bN ns\b.*$", "", wrong)[:90].strip(" ,:")


def by_scenario(rows: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = collections.OrderedDict()
    for row in rows:
        groups.setdefault(row["scenario"], []).append(row)
    return groups


def figures(rows: list[dict]) -> dict[str, float]:
    """Of the seeds in which nothing was wrong, and the number of the others."""
    good = [row for row in rows if not row["wrong"]] or rows
    time = sum(float(row["time"]) for row in good) or 1.0
    waits = sorted(float(row["wait"]) for row in good)
    return {"wrong": sum(1 for row in rows if row["wrong"]), "seeds": len(rows), "worst": waits[-1],
            "median": statistics.median(waits), "busy": sum(float(row["busy"]) for row in good) / time,
            "grants": sum(int(row["grants"]) for row in good) / time,
            "steps": sum(int(row["steps"]) for row in good) / time,
            "stalls": sum(int(row["stalls"]) for row in good),
            "borrowed": sum(int(row["borrowed"]) for row in good),
            "gave_way": sum(int(row["gave_way"]) for row in good),
            "unfair": max(float(row["unfair"]) for row in good), "least": min(int(row["least"]) for row in good)}


def summary_line(name: str, result: dict, base: dict) -> str:
    wrong = collections.Counter(kind(row["wrong"]) for row in result["seeds"] if row["wrong"])
    count = sum(wrong.values())
    most = f" ({wrong.most_common(1)[0][0]})" if wrong else ""
    tests_failed = [test for test in result["tests"] if test not in base["tests"]]
    return f"{name:<24} {count:>4} of {len(result['seeds'])} seeds{most}; {len(tests_failed)} tests fail"


def write(out: pathlib.Path, results: dict[str, dict]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    base = results["none"]
    lines = [f"{'without':<24} seeds wrong, of them most often; tests of src/sched that fail"]
    for variant in VARIANTS:
        if variant.name not in results:
            continue
        result = results[variant.name]
        lines.append(summary_line(variant.name, result, base))
        wrong = collections.Counter((row["scenario"], kind(row["wrong"])) for row in result["seeds"] if row["wrong"])
        lines += [f"    {count:>4} {scenario}: {what}" for (scenario, what), count in wrong.most_common(8)]
        lines += [f"         {test}" for test in result["tests"]]
    (out / "failures.txt").write_text("\n".join(lines) + "\n")

    head = (f"{'scenario':<28}{'without':<24}{'wrong':>9} {'worst':>8} {'median':>8} {'busy':>6} {'grants':>8} "
            f"{'steps':>7} {'stalls':>6} {'lent':>6} {'gave':>5} {'unfair':>7} {'least':>7}")
    lines = ["wait: worst and median of the seeds' longest, in s; busy: GPUs at work; grants, steps: a second of",
             "virtual time; stalls, lent turns, leases given up for want of memory: all seeds; unfair: the greatest",
             "difference of a claim's part of the time from its weight's; least: kernels of the slowest program. Of a",
             "variant, a row that is as the core's own is left out.", "", head]
    for scenario, rows in by_scenario(base["seeds"]).items():
        for variant in VARIANTS:
            if variant.name not in results:
                continue
            f = figures(by_scenario(results[variant.name]["seeds"])[scenario])
            if variant.name != "none" and f == figures(rows):
                continue
            lines.append(f"{scenario:<28}{variant.name:<24}{f['wrong']:>4}/{f['seeds']:<4} {f['worst']:>8.3f} "
                         f"{f['median']:>8.3f} {f['busy']:>6.3f} {f['grants']:>8.2f} {f['steps']:>7.2f} "
                         f"{f['stalls']:>6} "
                         f"{f['borrowed']:>6} {f['gave_way']:>5} {f['unfair']:>7.4f} {f['least']:>7}")
    (out / "seeds.txt").write_text("\n".join(lines) + "\n")

    head = (f"{'programs':<48}{'without':<24}{'program':<10}{'worked %':>9} {'turns/s':>8} {'late ms':>9} "
            f"{'p99 ms':>9}")
    lines = ["late: how much longer than alone a step took, mean and 99th percentile. Of a variant, a row that is as",
             "the core's own is left out.", "", head]
    of = {name: {(row[0], row[1]): row[2:] for row in reversed(result["hands"])}
          for name, result in results.items()}
    order = list(reversed(of["none"]))
    for setup, program in order:
        cells = of["none"][setup, program]
        for variant in VARIANTS:
            if variant.name not in results:
                continue
            own = of[variant.name].get((setup, program))
            if own is None or (variant.name != "none" and own == cells):
                continue
            own = [*own, "", "", "", ""]
            cells_of_row = f"{own[0]:>9} {own[1]:>8} {own[2]:>9} {own[3]:>9}"
            lines.append(f"{setup:<48}{variant.name:<24}{program:<10}{cells_of_row}".rstrip())
    (out / "hands.txt").write_text("\n".join(lines) + "\n")
    print((out / "failures.txt").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/order-of-turns", help="for programs built")
    parser.add_argument("--only", nargs="*", help="names of variants; `none` is always run")
    parser.add_argument("--divisor", type=int, default=1, help="run this part of the seeds")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--go-on", action="store_true", help="measure only what has no results in the work folder yet")
    parser.add_argument("--check", action="store_true", help="only check that each variant's text is there, once")
    given = parser.parse_args()
    if (given.only or given.divisor != 1) and given.out == HERE / "results":
        parser.error("results/ has the tables of a whole run: name another folder with --out")
    for variant in VARIANTS:
        edited(variant)
    if given.check:
        return 0
    chosen = [one for one in VARIANTS if not given.only or one.name in given.only or one.name == "none"]
    (given.work / "base").mkdir(parents=True, exist_ok=True)
    every = [*core(), *simulator(), *tests(), HERE / "measure.cc"]
    objects = {path: given.work / "base" / (str(path.relative_to(ROOT)).replace("/", "_") + ".o") for path in every}

    def one(variant: Variant) -> tuple[str, dict]:
        folder = given.work / re.sub(r"\W+", "-", variant.name)
        if not (given.go_on and (folder / "tests.json").exists()):
            build(variant, objects, folder)
            measure(folder, given.divisor)
            print(f"{variant.name}: measured", flush=True)
        return variant.name, load(folder)

    with concurrent.futures.ThreadPoolExecutor(max_workers=given.parallel) as pool:
        list(pool.map(lambda path: compile_one(path, objects[path]), every))
        results = dict(pool.map(one, chosen))
    write(given.out, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
