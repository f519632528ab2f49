#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles C++ files by themselves, without making objects: each must include what it uses.

    tools/check_includes.py [--all | FILE ...]

A build compiles several sources as one and precompiles headers, so it does not find a missing include. This does, as
clangd and clang-tidy would. It also has the warnings that such a build switches off. Without arguments it looks at the
sources and headers that differ from main. On main itself it looks at those that the last 10 commits changed.

A header is compiled with the options of a source that includes it, or of one in its folder. The options are those of
the preset `single`, in whose folder nothing else is built. A link in the root, compile_commands.json, shows them to
clangd.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "single"
LOOK_BACK = 10  # commits of main: about a day's work
SUFFIXES = {".cc", ".h"}
# Headers that are text of a larger source: tables, and what an assembler or another compiler reads.
NOT_ALONE = re.compile(r"\.gen\.|/doors/|old_glibc\.h$|^tests/gpu/|^bench/gpu/")


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def known():
    """All C++ files of the repository, new ones included."""
    names = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return [name for name in names if pathlib.Path(name).suffix in SUFFIXES and (ROOT / name).exists()]


def changed():
    """The names of files that differ from main, or that the last commits of main changed."""
    head = git("rev-parse", "HEAD").strip()
    base = subprocess.run(["git", "merge-base", "HEAD", "main"], cwd=ROOT, capture_output=True, text=True)
    since = base.stdout.strip() if base.returncode == 0 else head
    if since == head:
        commits = git("rev-list", "--first-parent", f"--max-count={LOOK_BACK + 1}", "HEAD").split()
        since = commits[-1]
    names = set(git("diff", "--name-only", "--diff-filter=d", since).splitlines())
    names |= set(git("ls-files", "--others", "--exclude-standard").splitlines())
    return names


def commands():
    """Path from the root to (folder, words) of its compilation. Configures the preset and makes generated sources."""
    quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL}
    subprocess.run(["cmake", "--preset", "single"], check=True, **quiet)
    subprocess.run(["cmake", "--build", TREE, "--target", "generated_sources"], check=True, **quiet)
    link = ROOT / "compile_commands.json"  # where clangd looks
    if not link.is_symlink():
        link.symlink_to(TREE.relative_to(ROOT) / link.name)
    found = {}
    for entry in json.loads((TREE / "compile_commands.json").read_text()):
        path = os.path.relpath(entry["file"], ROOT)
        words = shlex.split(entry["command"])
        if pathlib.Path(words[0]).name == "ccache":
            words = words[1:]
        found.setdefault(path, (entry["directory"], words))
    return found


@functools.cache
def text_of(path):
    """Of a source; nothing of one that a build makes."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""


def command_for(path, by_path):
    """The words that compile `path` alone, or None if no preset compiles it."""
    source = path
    if path.endswith(".h"):
        folder = os.path.dirname(path)
        alone = [other for other in by_path if other.endswith(".cc") and os.path.dirname(other) == folder]
        below = [other for other in by_path if other.endswith(".cc") and other.startswith(folder + "/")]
        is_test = "test" in os.path.basename(path)
        named = f'#include "{path.removeprefix("src/")}"'
        near = [other for other in by_path if named in text_of(other)] or alone or below
        nearest = sorted(near, key=lambda other: (("_test" in other) != is_test, other))
        if not nearest:
            return None
        source = nearest[0]
    if source not in by_path:
        return None
    directory, words = by_path[source]
    words = [word for word in words if word != "-c"]
    out = words.index("-o")
    words = words[:out] + words[out + 2:]
    words.remove(str(ROOT / source))
    # A header is not the main file: what is compiled is a source that has only this header.
    alone = ["-x", "c++", "-"] if path.endswith(".h") else [str(ROOT / path)]
    return directory, [*words, "-fsyntax-only", *alone]


def paths_of(names):
    """The named files' paths from the root. Ends the program if one is not there."""
    paths = [os.path.relpath(pathlib.Path(name).resolve(), ROOT) for name in names]
    missing = [path for path in paths if not (ROOT / path).is_file()]
    if missing:
        print(f"there is no file {', '.join(missing)}", file=sys.stderr)
        sys.exit(2)
    return paths


def compile_each(check, wanted, compile_one, done):
    """Compiles each wanted file: compile_one(directory, words, path) gives the finished process. The check's name and
    what it has done are for its report. Returns the exit code."""
    by_path = commands()
    failed = []

    def look_at(path):
        made = command_for(path, by_path)
        return path, compile_one(*made, path) if made else None

    looked_at = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, result in pool.map(look_at, wanted):
            if result is None:
                print(f"{check}: not looked at, for no preset compiles a source there: {path}")
                continue
            looked_at += 1
            if result.returncode != 0:
                failed.append(path)
                print(result.stderr, file=sys.stderr)
    print(f"{check}: {looked_at} files {done}, {len(failed)} failed")
    for path in failed:
        print(f"{check}: {path}", file=sys.stderr)
    return 1 if failed else 0


def compile_alone(directory, words, path):
    return subprocess.run(words, cwd=directory, input=f'#include "{ROOT / path}"\n', capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="every file, not only what has changed")
    parser.add_argument("files", nargs="*", metavar="FILE")
    arguments = parser.parse_args()
    wanted = paths_of(arguments.files)
    if not wanted:
        names = changed()
        wanted = [name for name in known() if arguments.all or name in names]
    wanted = [name for name in wanted if not NOT_ALONE.search(name)]
    if not wanted:
        print("includes: no C++ file has changed")
        return 0
    return compile_each("includes", wanted, compile_alone, "compiled by themselves")


if __name__ == "__main__":
    sys.exit(main())
