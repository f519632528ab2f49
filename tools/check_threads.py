#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks with clang that what a mutex guards is touched under it (-Wthread-safety; src/base/thread_safety.h).

    tools/check_threads.py [FILE ...]

Without arguments it looks at all sources that see src/base/lock.h, tests excepted. Nothing is built. The options are
those of the preset `single`, as for tools/check_includes.py.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

import check_includes

ROOT = check_includes.ROOT
LOCK = "base/lock.h"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NOT_THE_PRODUCT = re.compile(r"_(test|bench|fuzz)\.cc$|_test_\w+\.|^(tests|sim|bench)/")


def sees_lock(path, known, seen):
    """Whether the file includes the mutex, by any way."""
    if path not in seen:
        seen[path] = False  # while it is looked at
        included = INCLUDE.findall(check_includes.text_of(path))
        seen[path] = any(name == LOCK or ("src/" + name in known and sees_lock("src/" + name, known, seen))
                         for name in included)
    return seen[path]


def sources():
    names = set(check_includes.known())
    seen = {}
    return [name for name in sorted(names) if name.startswith("src/") and name.endswith(".cc") and
            ".gen." not in name and not NOT_THE_PRODUCT.search(name) and sees_lock(name, names, seen)]


def check(folder, words):
    """Runs clang as `words` say, which begin with another compiler, for this warning only."""
    words = ["clang++-14", *(word for word in words[1:] if not word.startswith(("-W", "-fpch"))), "-Wno-everything",
             "-Wthread-safety", "-Werror", "-ferror-limit=0"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    wanted = [os.path.relpath(pathlib.Path(name).resolve(), ROOT) for name in arguments.files] or sources()
    by_path = check_includes.commands()
    failed = []

    def look_at(path):
        made = check_includes.command_for(path, by_path)
        return path, check(*made) if made else None

    looked_at = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, result in pool.map(look_at, wanted):
            if result is None:
                print(f"threads: not looked at, for no preset compiles it: {path}")
                continue
            looked_at += 1
            if result.returncode != 0:
                failed.append(path)
                print(result.stderr, file=sys.stderr)
    print(f"threads: {looked_at} sources, {len(failed)} failed")
    for path in failed:
        print(f"threads: {path}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
