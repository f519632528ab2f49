#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What do trials of "at once or by turns" find, how soon, and at what cost?

Builds measure.cc with the gain.h and gain.cc of a commit, with those of the working tree, and with each rule of these
left out. Runs all, and writes results/.
"""
import argparse
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = ("src/daemon/gpus/gain.h", "src/daemon/gpus/gain.cc")
CXX = ["g++", "-std=c++20", "-O2"]
# Name, text, text without the rule.
RULES = [
    ("noise raises the threshold", "kClearlyBetter + noise", "kClearlyBetter"),
    ("pauses: more is asked", "kPausesAsk = 5", "kPausesAsk = 1"),
    ("pauses: trials are rare", "if (has_pauses && way_ == Way::kAtOnce)", "if (false)"),
    ("doubling", "kMostTrialDoublings = 4", "kMostTrialDoublings = 0"),
    ("another load", "kAnotherLoad = 1.5", "kAnotherLoad = 1e9"),
    ("the second present window", "compare(windows[1], windows[0], windows[2])",
     "compare(windows[1], windows[0], windows[0])"),
    ("whole rounds", "return one * ((kTrialWindow + one - Duration(1)) / one);", "return kTrialWindow;"),
    ("turns stay if half as good", "kClearlyBetter / 2", "kClearlyBetter"),
]


def measure(name: str, texts: dict[str, str], work: pathlib.Path, seeds: int) -> list[str]:
    folder = work / name.replace(" ", "-").replace(":", "")
    for path, text in texts.items():
        file = folder / pathlib.Path(path).relative_to("src")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    program = folder / "measure"
    subprocess.run([*CXX, f"-I{folder}", f"-I{ROOT}/src", f"-I{ROOT}", str(folder / "daemon/gpus/gain.cc"),
                    str(HERE / "measure.cc"), "-o", str(program)], check=True)
    done = subprocess.run([str(program), str(seeds)], check=True, capture_output=True, text=True)
    print(f"{name}: measured", flush=True)
    return done.stdout.splitlines()


def without(name: str, texts: dict[str, str]) -> dict[str, str]:
    _, before, after = next(rule for rule in RULES if rule[0] == name)
    if sum(text.count(before) for text in texts.values()) != 1:
        sys.exit(f"the text of '{name}' is not there once: mend RULES")
    return {path: text.replace(before, after) for path, text in texts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="measure that commit's, too")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/trials")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.before:
        texts = {path: subprocess.run(["git", "-C", str(ROOT), "show", f"{given.before}:{path}"], check=True,
                                      capture_output=True, text=True).stdout for path in FILES}
        lines = measure("before", texts, given.work, given.seeds)
        (given.out / "before.txt").write_text("\n".join(lines) + "\n")
    texts = {path: (ROOT / path).read_text() for path in FILES}
    now = measure("now", texts, given.work, given.seeds)
    (given.out / "now.txt").write_text("\n".join(now) + "\n")
    lines = ["Loads for which the rule makes a difference.", "", f"{'':<8} {now[0]}"]
    for name, _, _ in RULES:
        lines += ["", f"without: {name}"]
        for mine, other in zip(now, measure(name, without(name, texts), given.work, given.seeds)):
            if mine != other:
                lines += [f"{'now':<8} {mine}", f"{'without':<8} {other}"]
    (given.out / "without.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
