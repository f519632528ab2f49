#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which random tests of memory code find which of twenty faults (faults.py)?

Puts one fault after the other into the sources, builds, and runs each harness whose program the fault has changed. The
sources are restored after each fault, and must have no changes before. Writes table.txt and summary.json.
"""
import argparse
import concurrent.futures
import hashlib
import itertools
import json
import pathlib
import subprocess
import sys

from faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/dev"
# A harness that takes this many times as long has hung: the slowest takes 25 s.
LIMIT_S = 150

LIBRARY = ["lib/libgpumux.so", "bin/gpumuxd"]
# name: (what it runs, files that decide whether a fault is in it)
HARNESSES = {
    "pools": (["bin/pools_test"], ["bin/pools_test"]),
    "stress": (["bin/pager_stress_test"], ["bin/pager_stress_test"]),
    "memory": (["bin/memory_test"], ["bin/memory_test"]),
    "managed": (["bin/managed_memory_test", "--gtest_filter=*Meanwhile"], ["bin/managed_memory_test"]),
    "acquisition": (["bin/remedies_test"], ["bin/remedies_test"]),
    "simulation": (["bin/simsched_test", "--gtest_filter=Memory.*"], ["bin/simsched_test"]),
    "mixed": ([sys.executable, str(ROOT / "tests/e2e/memory_test.py"), "Mixed"], LIBRARY),
    "paging": (["bin/pager_paging_test"], ["bin/pager_paging_test"]),
    "bounds": (["bin/device_memory_test"], ["bin/device_memory_test"]),
    "planner": (["bin/sched_test", "--gtest_filter=Residency*"], ["bin/sched_test"]),
    "allocations": ([sys.executable, str(ROOT / "tests/e2e/allocations_test.py")], LIBRARY),
}


def build() -> bool:
    targets = sorted({path for _, files in HARNESSES.values() for path in files})
    done = subprocess.run(["ninja", "-C", str(BUILD), *targets], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-2000:], file=sys.stderr)
    return done.returncode == 0


def digests() -> dict[str, str]:
    def digest(harness: str) -> str:
        return hashlib.sha256(b"".join((BUILD / path).read_bytes() for path in HARNESSES[harness][1])).hexdigest()
    return {harness: digest(harness) for harness in HARNESSES}


def fails(harness: str) -> bool:
    command = HARNESSES[harness][0]
    try:
        return subprocess.run(command, cwd=BUILD, capture_output=True, timeout=LIMIT_S).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def smallest_set(found: dict[str, list[str]]) -> list[str]:
    """Of the smallest sets of harnesses that find all that any finds, the first."""
    wanted = {fault for fault, by in found.items() if by}
    for count in range(len(HARNESSES) + 1):
        for chosen in itertools.combinations(HARNESSES, count):
            if all(set(found[fault]) & set(chosen) for fault in wanted):
                return list(chosen)
    return list(HARNESSES)


def write(out: pathlib.Path, found: dict[str, list[str]]) -> None:
    width = max(len(fault.name) for fault in FAULTS)
    lines = [" ".join([" " * width, *HARNESSES])]
    for fault, by in found.items():
        cells = [("x" if harness in by else ".").center(len(harness)) for harness in HARNESSES]
        lines.append(" ".join([fault.ljust(width), *cells]).rstrip())
    lines += ["", f"found {sum(1 for by in found.values() if by)} of {len(found)}",
              "smallest set: " + ", ".join(smallest_set(found))]
    (out / "table.txt").write_text("\n".join(lines) + "\n")
    summary = {"found": found, "smallest_set": smallest_set(found)}
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print("\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of faults, from 1")
    parser.add_argument("--parallel", type=int, default=2, help="how many harnesses run at a time")
    parser.add_argument("--check", action="store_true", help="only check that each fault's text is there, once")
    given = parser.parse_args()
    for fault in FAULTS:
        count = (ROOT / fault.path).read_text().count(fault.before)
        if count != 1:
            sys.exit(f"{fault.path} has the text of '{fault.name}' {count} times, not once: mend faults.py")
    if given.check:
        return 0
    changed = subprocess.run(["git", "status", "--porcelain", "--", "src"], cwd=ROOT, capture_output=True, text=True)
    if changed.stdout:
        sys.exit("src has changes, which the faults would mix with: commit or stash them")
    if not build():
        sys.exit("the sources do not build without a fault")
    sound = digests()
    broken = [harness for harness in HARNESSES if fails(harness)]
    if broken:
        sys.exit(f"fails without a fault: {', '.join(broken)}")
    found = {}
    for number, fault in enumerate(FAULTS, 1):
        if given.only and number not in given.only:
            continue
        path = ROOT / fault.path
        source = path.read_text()
        try:
            path.write_text(source.replace(fault.before, fault.after))
            if not build():
                sys.exit(f"does not build with the fault '{fault.name}': mend faults.py")
            now = digests()
            changed = [harness for harness in HARNESSES if now[harness] != sound[harness]]
            with concurrent.futures.ThreadPoolExecutor(max_workers=given.parallel) as pool:
                found[fault.name] = [harness for harness, failed in zip(changed, pool.map(fails, changed)) if failed]
        finally:
            path.write_text(source)
        print(f"{number}. {fault.name}: {', '.join(found[fault.name]) or 'not found'}", flush=True)
    build()
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
