#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks with clang that what a mutex guards is touched under it (-Wthread-safety; src/base/thread_safety.h).

    tools/check_threads.py [FILE ...]

Without arguments it looks at all sources that see src/base/lock.h, tests excepted. Nothing is built. The options are
those of the preset `single`, as for tools/check_includes.py.
"""

import argparse
import re
import subprocess
import sys

import check_includes
import check_layers

ROOT = check_includes.ROOT
LOCK = "base/lock.h"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NOT_THE_PRODUCT = re.compile(r"_(test|bench|fuzz)\.cc$|_test_\w+\.|^(\w+/)?(tests|sim|bench)/")


def sees_lock(path, known, seen):
    """Whether the file includes the mutex, by any way."""
    if path not in seen:
        seen[path] = False  # while it is looked at
        included = INCLUDE.findall(check_includes.text_of(path))
        ours = [file for name in included for file in ("src/" + name, name) if file in known]
        seen[path] = LOCK in included or any(sees_lock(file, known, seen) for file in ours)
    return seen[path]


def sources():
    names = set(check_includes.known())
    seen = {}
    return [name for name in sorted(names) if name.split("/")[0] in check_layers.TOPS and name.endswith(".cc") and
            ".gen." not in name and not NOT_THE_PRODUCT.search(name) and sees_lock(name, names, seen)]


def check_locks(directory, words, _):
    """Runs clang as `words` say, which begin with another compiler, for this warning only."""
    words = ["clang++-14", *(word for word in words[1:] if not word.startswith(("-W", "-fpch"))), "-Wno-everything",
             "-Wthread-safety", "-Werror", "-ferror-limit=0"]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    wanted = check_includes.paths_of(arguments.files) or sources()
    return check_includes.compile_each("threads", wanted, check_locks, "looked at")


if __name__ == "__main__":
    sys.exit(main())
