#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on any #include that tools/layers.toml does not allow, and on any such DEPS of a component.

It reads src/, sim/ and the leaf products. Also refused: a leaf product in another folder's row, an include without its
folder or through "..", an unknown folder, cycles of folders in the table, cycles of files, and two folders that meet in
more places than the table says. Tests, benchmarks and fuzzers (*_test.cc, *_bench.cc, *_fuzz.cc, test_support.cc and
headers named the same way) stand outside the layers and may include any folder.

docs/architecture.md shows the table. It is compared here, and written by --write.

    tools/check_layers.py [--root DIR] [--table FILE] [--write]
"""

import argparse
import pathlib
import re
import sys
import tomllib

SOURCE_SUFFIXES = {".cc", ".h", ".c", ".S"}
OUTSIDE_THE_LAYERS = re.compile(r"(^|[_/])(test|bench|fuzz)(_[a-z0-9_]+)?\.(cc|h|c)$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
COMPONENT = re.compile(r"gpumux_component\(\s*(\w+)([^)]*)\)")
# Folders of the root that have C++ sources, with how an include of one begins; and those that a build may leave out.
TOPS = {"src": "", "sim": "sim/", "kubernetes": "kubernetes/", "slurm": "slurm/", "web": "web/"}
LEAVES = ("kubernetes", "slurm", "web")
KEYWORDS = {"SOURCES", "DEPS", "LIBRARIES", "EXCEPTIONS"}
DOCUMENT = "docs/architecture.md"
BEGIN, END = "<!-- layers: written by tools/check_layers.py --write -->", "<!-- end of layers -->"


def folder_of(path, folders):
    """The folder of the table that a path like "wire/messages.h" or "shim/doors/doors.h" is in, or None."""
    parts = path.split("/")
    for length in (2, 1):
        name = "/".join(parts[:length])
        if len(parts) > length and name in folders:
            return name
    return None


def is_inside(folder, outer):
    return folder == outer or folder.startswith(outer + "/")


def find_cycle(graph):
    """A cycle as a list of nodes, the first one repeated at the end, or None. Iterative: include chains can be long."""
    done = set()
    for start in sorted(graph):
        if start in done:
            continue
        path, on_path = [start], {start}
        stack = [iter(sorted(graph.get(start, ())))]
        while stack:
            for following in stack[-1]:
                if following in on_path:
                    return path[path.index(following):] + [following]
                if following not in done:
                    path.append(following)
                    on_path.add(following)
                    stack.append(iter(sorted(graph.get(following, ()))))
                    break
            else:
                stack.pop()
                finished = path.pop()
                on_path.discard(finished)
                done.add(finished)
    return None


def sources(root):
    """(path for people, name as an include would spell it) of every source file in the layers."""
    for top, prefix in TOPS.items():
        base = root / top
        for path in sorted(base.rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                yield path, prefix + path.relative_to(base).as_posix()


def check_table(table):
    folders = table["folders"]
    problems = [
        f"layers.toml: {name} may include {dep}, which is not in the table"
        for name, deps in folders.items() for dep in deps if dep not in folders
    ]
    for name, deps in folders.items():
        for leaf in LEAVES:
            if not is_inside(name, leaf):
                problems += [f"layers.toml: {name} may include {dep}, which can be left out of a build"
                             for dep in deps if is_inside(dep, leaf)]
    cycle = find_cycle({name: set(deps) for name, deps in folders.items()})
    if cycle:
        problems.append("layers.toml: the folders form a cycle: " + " -> ".join(cycle))
    return problems


def check_includes(root, table):
    folders = table["folders"]
    problems, files, meeting = [], {}, {}
    for path, name in sources(root):
        shown = path.relative_to(root).as_posix()
        own = folder_of(name, folders)
        if own is None:
            problems.append(f"{shown}: its folder is not in tools/layers.toml")
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        seen = set()
        for match in INCLUDE.finditer(text):
            included = match.group(1)
            line = text.count("\n", 0, match.start()) + 1
            folder = folder_of(included, folders)
            files.setdefault(name, set()).add(included)
            if ".." in included.split("/") or folder is None:
                problems.append(f'{shown}:{line}: "{included}": name the folder, as in "wire/messages.h"')
                continue
            seen.add(folder)
            if OUTSIDE_THE_LAYERS.search(name) or folder == own or folder in folders[own]:
                continue
            allowed = ", ".join(folders[own]) or "nothing"
            problems.append(f'{shown}:{line}: {own} may not include "{included}"; it may include {allowed}')
        if not OUTSIDE_THE_LAYERS.search(name):
            place = (own, re.sub(r"\.\w+$", "", name))
            meeting.setdefault(place, set()).update(seen)
    # A file that nobody has cannot close a cycle.
    known = {name: {i for i in included if i in files} for name, included in files.items()}
    cycle = find_cycle(known)
    if cycle:
        problems.append("files include each other in a cycle: " + " -> ".join(cycle))
    for rule in table.get("meet", []):
        pair = set(rule["pair"])
        places = sorted(name for (own, name), seen in meeting.items()
                        if is_inside(own, rule["inside"]) and pair <= seen)
        if len(places) > rule["places"]:
            problems.append(f"{' and '.join(rule['pair'])} may meet in {rule['places']} place of {rule['inside']}, "
                            f"and meet in {len(places)}: {', '.join(places)}")
    return problems


def check_components(root, table):
    """A component may be linked only with what its folder may use.

    An edge could hide in a declaration without an include.
    """
    folders = table["folders"]
    by_component = {name.replace("/", "_"): name for name in folders}
    problems = []
    for path in sorted(path for top in TOPS for path in (root / top).rglob("CMakeLists.txt")):
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        for match in COMPONENT.finditer(text):
            own = by_component.get(match.group(1))
            keyword = None
            for word in match.group(2).split():
                if word in KEYWORDS:
                    keyword = word
                elif keyword == "DEPS" and own is not None:
                    dep = by_component.get(word)
                    if dep is not None and dep != own and dep not in folders[own]:
                        problems.append(f"{path.relative_to(root).as_posix()}: {own} may not be linked with {dep}")
    return problems


def rows(table):
    """The table as documents show it."""
    lines = ["| folder | may include |", "|---|---|"]
    for name, deps in table["folders"].items():
        lines.append(f"| `{name}` | {' '.join(f'`{dep}`' for dep in deps) or 'nothing'} |")
    return "\n".join(lines)


def shown(text, table):
    """The document with the table as it is now. None: it has no place for it."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        return None
    return f"{text[:begin]}{BEGIN}\n\n{rows(table)}\n\n{text[end:]}"


def check_document(root, table):
    path = root / DOCUMENT
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if shown(text, table) == text:
        return []
    return [f"{DOCUMENT} does not show tools/layers.toml as it is: run tools/check_layers.py --write"]


def check(root, table):
    problems = check_table(table)
    return problems or check_includes(root, table) + check_components(root, table) + check_document(root, table)


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=here.parent)
    parser.add_argument("--table", type=pathlib.Path, default=here / "layers.toml")
    parser.add_argument("--write", action="store_true", help=f"write the table into {DOCUMENT} first")
    arguments = parser.parse_args()
    table = tomllib.loads(arguments.table.read_text(encoding="utf-8"))
    if arguments.write:
        path = arguments.root / DOCUMENT
        path.write_text(shown(path.read_text(encoding="utf-8"), table), encoding="utf-8")
    problems = check(arguments.root, table)
    for problem in problems:
        print(f"layers: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
