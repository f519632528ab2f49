# SPDX-License-Identifier: Apache-2.0
"""Shared by the tools for documents: fenced blocks with their marks, links, and the anchors of headings.

A block of commands is fenced as sh, bash or console. A comment in the line before the fence, which no reader of the
page sees, says how a test treats the block:

    <!-- needs: gpu, root -->    the block is not run, only parsed; one or more of NEEDS
    <!-- exits: 3 -->            the last command of the block ends with this status instead of 0
"""

import collections
import fnmatch
import os
import pathlib
import re
import subprocess

NEEDS = {
    "gpu": "an NVIDIA GPU, and a framework or program that uses it",
    "cluster": "a Kubernetes or Slurm cluster",
    "systemd": "a machine on which systemd runs the daemon",
    "network": "packages or images from the network",
    "root": "root's rights",
}
COMMANDS = {"sh", "bash", "console"}
# Commands that go on until the user ends them.
ENDLESS = re.compile(r"\s(--watch|--follow|--interactive)\b|gpumux (logs .*-f|attach|top)\b")

FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*([\w+-]*)")
MARK = re.compile(r"^\s*<!--\s*(needs|exits):\s*(.*?)\s*-->\s*$")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")

Block = collections.namedtuple("Block", "line language lines needs exits")
Link = collections.namedtuple("Link", "line start end is_image text target")


class DocumentError(Exception):
    """A mark that cannot be read, with the number of its line."""

    def __init__(self, line, what):
        super().__init__(what)
        self.line = line


def _files_below(root):
    for folder, names_here, files in os.walk(root):
        inside = pathlib.Path(folder).relative_to(root)
        names_here[:] = [name for name in names_here
                         if name != "__pycache__" and not (inside == pathlib.Path() and name in ("build", "dist"))]
        yield from ((inside / name).as_posix() for name in files)


def names(root, *patterns):
    """Files under version control, and those that are about to be, as paths below `root`. A source archive has no
    version control: there it is every file that no build has made."""
    if not (pathlib.Path(root) / ".git").exists():
        return sorted(name for name in _files_below(pathlib.Path(root)) if not patterns or any(
            fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in patterns))
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "--",
                             *patterns], check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted({name for name in listed if name and (pathlib.Path(root) / name).is_file()})


def _read_mark(number, match):
    kind, value = match.groups()
    if kind == "exits":
        if not value.isdigit() or not 0 < int(value) < 256:
            raise DocumentError(number, f"exits: {value}: the status is a number from 1 to 255")
        return frozenset(), int(value)
    needs = frozenset(word.strip() for word in value.split(","))
    if not needs <= NEEDS.keys():
        raise DocumentError(number, f"needs: {value}: there are {', '.join(NEEDS)}")
    return needs, 0


def blocks(text):
    """Every fenced block. Raises DocumentError for a mark without a block of commands below it."""
    found, opened, mark = [], None, None
    for number, line in enumerate(text.split("\n"), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened = (number, fence, mark)
                body = []
            elif mark:
                raise DocumentError(mark[0], "a fence must follow this comment")
            match = MARK.match(line)
            mark = (number, match) if match else None
            continue
        start, fence_opened, mark_opened = opened
        if fence and fence.group(2).startswith(fence_opened.group(2)) and not fence.group(3):
            language = fence_opened.group(3)
            needs, exits = _read_mark(*mark_opened) if mark_opened else (frozenset(), 0)
            if mark_opened and language not in COMMANDS:
                raise DocumentError(mark_opened[0], f"a block of {language or 'no language'} is not run; no mark")
            found.append(Block(start, language, body, needs, exits))
            opened = None
        else:
            indent = len(fence_opened.group(1))
            body.append(line[indent:] if not line[:indent].strip() else line)
    if opened:
        raise DocumentError(opened[0], "this fence is not closed")
    return found


def commands(block):
    """(command, output) pairs of a block; `output` are the lines shown below a command of a console."""
    if block.language != "console":
        return [("\n".join(block.lines), [])]
    found = []
    for line in block.lines:
        if line.startswith(("$ ", "# ")):
            found.append([line[2:], []])
        elif found and not found[-1][1] and (line.startswith("> ") or found[-1][0].endswith("\\")):
            found[-1][0] += "\n" + line.removeprefix("> ")
        elif found:
            found[-1][1].append(line)
        else:
            raise DocumentError(block.line, "a console begins with `$ command`, or with `# command` of root's")
    return [tuple(pair) for pair in found]


def _without_code(text):
    """The text with the contents of fenced blocks and of code spans blanked, every character where it was."""
    lines, opened = [], None
    for line in text.split("\n"):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened = fence.group(2)
        elif opened is not None:
            if fence and fence.group(2).startswith(opened) and not fence.group(3):
                opened = None
        else:
            lines.append(line)
            continue
        lines.append(" " * len(line))
    return re.sub(r"(`+)(.+?)\1", lambda code: code.group(0).replace("[", "_").replace("]", "_").replace("(", "_"),
                  "\n".join(lines))


def links(text):
    """Every inline link and picture, outside code."""
    blanked = _without_code(text)
    return [Link(text.count("\n", 0, match.start()) + 1, match.start(), match.end(), bool(match.group(1)),
                 text[match.start(2):match.end(2)], match.group(3)) for match in LINK.finditer(blanked)]


def slug(heading):
    """The anchor that GitHub gives a heading."""
    heading = LINK.sub(lambda link: link.group(2), heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text):
    """Anchors of all headings; one that comes again gets a number, as on GitHub."""
    found, seen = set(), collections.Counter()
    for line, blanked in zip(text.split("\n"), _without_code(text).split("\n")):
        heading = HEADING.match(blanked) and HEADING.match(line)
        if heading:
            name = slug(heading.group(2))
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def title(text):
    """The document's first heading, or None."""
    for line in text.split("\n"):
        if HEADING.match(line):
            return HEADING.match(line).group(2)
    return None


def sections(navigation, names):
    """(title, pages) of each section of docs/site.toml; pages: (page, pages below it). A README.md of a folder has
    every other document in the folder below it."""
    found = []
    for section in navigation["section"]:
        pages = []
        for page in section["pages"]:
            folder = page.removesuffix("README.md")
            below = [] if folder in (page, "") else [name for name in sorted(names)
                                                     if name.startswith(folder) and name != page]
            pages.append((page, [name for name in below if name.endswith(".md")]))
        found.append((section["title"], pages))
    return found
