#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks documents: links with their anchors, marks of command blocks, the site's navigation.

    tools/check_documents.py [--root DIR] [--list]

  links       A relative link leads to a file that is there. Its anchor is a heading of that document.
  commands    Every block of README.md and docs/ that is fenced as sh, bash or console can be parsed by bash, and its
              mark by tools/documents.py. tests/e2e/documents_test.py runs the blocks without `needs:`.
  navigation  docs/site.toml has every page of docs/ once, and no page that is not there.

--list shows the blocks that are not run, with what they need.
"""

import argparse
import collections
import pathlib
import posixpath
import re
import subprocess
import sys
import tomllib

import documents

UNMARKED = re.compile(r"([$] |(gpumux|curl|kubectl|srun|make|docker) )")
SHELLS = ("README.md", "docs/")  # in these, command blocks are run or marked


def check_links(texts, there):
    """(name, line, what) of every link that leads nowhere."""
    for name, text in texts.items():
        for link in documents.links(text):
            if "://" in link.target or link.target.startswith("mailto:"):
                continue
            path, _, anchor = link.target.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if target not in there:
                yield name, link.line, f"the link leads to {target}, which is not there"
            elif anchor and target in texts and anchor not in documents.anchors(texts[target]):
                yield name, link.line, f"{target} has no heading whose anchor is #{anchor}"


def parse_error(script):
    """The error of bash about a script that it cannot parse, or None."""
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    return done.stderr.strip().replace("\n", "; ") or None


def check_commands(texts):
    """(faults, marked): faults as check_links has them; marked: (name, block) of each block that is not run."""
    faults, marked = [], []
    for name, text in texts.items():
        try:
            for block in documents.blocks(text):
                if block.language not in documents.COMMANDS:
                    if not block.language and UNMARKED.match("\n".join(block.lines)):
                        faults.append((name, block.line, "a block of commands is fenced as sh or console"))
                    continue
                script = "\n".join(command for command, _ in documents.commands(block))
                error = parse_error(script)
                if error:
                    faults.append((name, block.line, f"bash cannot parse this block: {error}"))
                if block.needs:
                    marked.append((name, block))
        except documents.DocumentError as error:
            faults.append((name, error.line, str(error)))
    return faults, marked


def check_navigation(navigation, names):
    found = collections.Counter(page for _, pages in documents.sections(navigation, names)
                                for top, below in pages for page in (top, *below))
    for page, count in sorted(found.items()):
        if page not in names:
            yield "docs/site.toml", 1, f"{page} is not there"
        elif count > 1:
            yield "docs/site.toml", 1, f"{page} is in the navigation {count} times"
    for name in sorted(names):
        if name.startswith("docs/") and name not in found:
            yield "docs/site.toml", 1, f"{name} is in no section"


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=here.parent)
    parser.add_argument("--list", action="store_true", help="show the blocks that are not run")
    arguments = parser.parse_args()
    root = arguments.root
    there = {"."}
    for name in documents.names(root):
        there |= {name, *(parent.as_posix() for parent in pathlib.PurePosixPath(name).parents)}
    texts = {name: (root / name).read_text(encoding="utf-8") for name in there if name.endswith(".md")}
    shells = {name: text for name, text in sorted(texts.items()) if name.startswith(SHELLS)}
    faults, marked = check_commands(shells)
    if arguments.list:
        for name, block in marked:
            print(f"{name}:{block.line}: needs {', '.join(sorted(block.needs))}")
        return 0
    faults += check_links(texts, there)
    navigation = tomllib.loads((root / "docs" / "site.toml").read_text(encoding="utf-8"))
    faults += check_navigation(navigation, texts)
    for name, line, what in faults:
        print(f"documents: {name}:{line}: {what}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
