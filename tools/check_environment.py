#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the variables that the sources name with the tables of docs/environment.md, both ways.

    tools/check_environment.py [--root DIR]

A variable that is read and not listed cannot be found by users; one that is listed and not read is a promise that
nobody keeps; one that is listed twice is soon described in two ways. Counted as named by the sources: a string literal
that is a whole name beginning with GPUMUX_, NVSHARE_ or CUDA_OVERRIDE_, and whatever is asked of getenv, secure_getenv,
the daemon's environment() or the library's variable() and count_variable(). The simulator's GPUMUX_SIM_* do not count:
its own document lists them. src/settings/variables.gen.h names what others read, so it does not count. A variable that
no part reads has the reader `none` in the document.
"""

import argparse
import pathlib
import re
import sys

import check_layers

OURS = re.compile(r'"((?:GPUMUX|NVSHARE|CUDA_OVERRIDE)_[A-Z0-9_]+)"')
ASKED = re.compile(r'\b(?:getenv|secure_getenv|environment|variable|count_variable)\(\s*"([A-Z][A-Z0-9_]*)"')
LISTED = re.compile(r"`([A-Z][A-Z0-9_]*)`")
TEST_CODE = re.compile(r"^(fake|scripted|test)_|_(test|bench|fuzz)(_\w+)?\.(cc|h)$")
NAMES_ONLY = "src/settings/variables.gen.h"
# Not settings: the loader's own, and how programs are found.
NOT_OURS = {"LD_LIBRARY_PATH", "LD_PRELOAD", "PATH"}
SIMULATORS = "GPUMUX_SIM_"
FOLDERS = ("src", *check_layers.LEAVES)


def named_in_sources(root):
    names = {}
    for path in sorted(path for top in FOLDERS for path in (root / top).rglob("*")):
        if {"tests", "node_modules"} & set(path.relative_to(root).parts):
            continue
        if path.suffix not in {".cc", ".h"} or TEST_CODE.search(path.name) or path == root / NAMES_ONLY:
            continue
        text = re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
        for name in OURS.findall(text) + ASKED.findall(text):
            if name not in NOT_OURS and not name.endswith("_") and not name.startswith(SIMULATORS):
                names.setdefault(name, path.relative_to(root).as_posix())
    return names


def listed_in_document(text):
    """Names in the first and the alias column of the tables, and the set of those that no part reads."""
    names, unread = [], set()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) >= 7 and cells[1].startswith("`"):
            row = LISTED.findall(cells[1]) + LISTED.findall(cells[4])
            names += row
            unread |= set(row) if cells[3] == "none" else set()
    return names, unread


def check(root):
    document = root / "docs/environment.md"
    named = named_in_sources(root)
    listed, unread = listed_in_document(document.read_text(encoding="utf-8"))
    problems = [f"{where} reads {name}; docs/environment.md does not list it"
                for name, where in sorted(named.items()) if name not in listed]
    problems += [f"docs/environment.md lists {name}; no source reads it"
                 for name in sorted(set(listed) - set(named) - unread)]
    problems += [f"docs/environment.md lists {name} more than once"
                 for name in sorted({name for name in listed if listed.count(name) > 1})]
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    problems = check(parser.parse_args().root)
    for problem in problems:
        print(f"environment: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
