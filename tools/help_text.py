# SPDX-License-Identifier: Apache-2.0
"""Reads what `gpumux ... --help` and `gpumuxd --help` print, for who makes manuals and completions of it.

The programs' own words are the one source: an option that is not in a manual page or a completion cannot exist. A line
that is not understood is an error, and ends the build.
"""

import re
import subprocess
from dataclasses import dataclass, field

_FLAG = re.compile(r"-{1,2}[A-Za-z][\w-]*")


@dataclass
class Option:
    flags: list        # ["-w", "--watch"]
    placeholder: str   # "[SECONDS]"; "" for a switch
    text: str

    def values(self):
        """The words that its sentence says it may be: 'auto' and 'unlimited' of 'a time, auto, or unlimited'."""
        if not self.placeholder:
            return []
        allowed = re.search(r"(?:: |\()((?:[^:()])*)\)?$", self.text)
        words = re.split(r",? or |, ", allowed.group(1)) if allowed else []
        return [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)]


@dataclass
class Block:
    """Something between two empty lines. Of header, options, lines and text each but the first may be empty."""
    header: str = ""
    items: list = field(default_factory=list)    # Option, or (word, text) of a list
    lines: list = field(default_factory=list)    # indented, to be shown as they are
    text: str = ""


@dataclass
class Help:
    name: str
    summary: str
    usage: str
    blocks: list

    def options(self):
        return [item for block in self.blocks for item in block.items if isinstance(item, Option)]


def _option(term, text):
    names, _, placeholder = term.partition(" ")
    flags = names.split(",")
    if not all(_FLAG.fullmatch(flag) for flag in flags):
        raise ValueError(f"not an option: {term!r}")
    # " ...": it takes several values.
    return Option(flags, placeholder.removesuffix(" ..."), text)


def _items(lines):
    """Lines of two columns; what the second one says may go on in lines that begin far to the right."""
    terms = []
    for line in lines:
        if re.match(r" {1,4}\S", line):
            term, _, text = line.strip().partition("  ")
            # A long option leaves one space before its sentence.
            long = re.match(r"(-\S+ [A-Z|]+) ([A-Z].*)", term)
            if long:
                term, text = long.group(1), long.group(2)
            terms.append([term, text.strip()])
        elif terms:
            terms[-1][1] = f"{terms[-1][1]} {line.strip()}".strip()
        else:
            raise ValueError(f"not understood: {line!r}")
    return [_option(*term) if term[0].startswith("-") else tuple(term) for term in terms]


def parse(name, text):
    match = re.match(r"(\S.*?)\n\s*Usage: ([^\n]*)\n", text.strip("\n") + "\n", re.DOTALL)
    if not match:
        raise ValueError(f"{name}: --help begins without a sentence and a line of usage")
    summary, usage = " ".join(match.group(1).split()), match.group(2)
    blocks = []
    for part in re.split(r"\n\s*\n", text.strip("\n")[match.end():].strip("\n")):
        lines = [line for line in part.split("\n") if line.strip()]
        block = Block()
        # A line of a paragraph may end with a colon, too.
        if lines and re.fullmatch(r"\S.*:", lines[0]) and all(line.startswith(" ") for line in lines[1:]):
            block.header = lines.pop(0)[:-1]
        if block.header and "xample" in block.header or block.header == "Try it":
            block.lines = lines
        elif block.header:
            block.items = _items(lines)
        elif all(not line.startswith(" ") for line in lines):
            block.text = " ".join(lines)
        else:
            raise ValueError(f"{name}: not understood in its --help:\n{part}")
        if block.text or block.items or block.lines:
            blocks.append(block)
    return Help(name, summary, usage, blocks)


def ask(program, name, *arguments):
    """The help of one program or command, by running it."""
    answer = subprocess.run([program, *arguments, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            timeout=60, check=True)
    return parse(name, answer.stdout)


def ask_gpumux(program):
    """(the help of gpumux, [(command, its help)])"""
    whole = ask(program, "gpumux")
    commands = next(block.items for block in whole.blocks if block.header == "Commands")
    return whole, [(command, ask(program, f"gpumux {command}", command)) for command, _ in commands]
