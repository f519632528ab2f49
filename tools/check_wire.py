#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the headers of messages in src/wire to the layout that was released: src/wire/released.txt.

    tools/check_wire.py [--root DIR] [--write]

A message only ever grows at its end. So the fields that were released come first, in their order, with their types; an
enumerator that was released keeps its value; and neither goes. A field named `reserved` was always zero, and may get a
name. A field or an enumerator that is not listed yet is an error, too: --write adds it. A line of released.txt is
"Message.field type" or "Enum::kName value".
"""

import argparse
import pathlib
import re
import sys

HEADERS = ("src/wire/header.h", "src/wire/message_types.h", "src/wire/messages.h", "src/wire/retired_messages.h")
RELEASED = "src/wire/released.txt"
BLOCK = re.compile(r"^(struct|enum class) (\w+)(?: : [\w:]+)? \{(?:\n(.*?)\n\};|([^\n]*)\};$)",
                   re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^([\w:]+)\s+(\w+)(\[[^\]]*\])?(?:\s*=[^;]*|\s*\{\s*\})?$")
ENUMERATOR = re.compile(r"(\w+)\s*=\s*([^,]+?)\s*(?:,|$)")


class CannotRead(Exception):
    """The header has a line that is neither a field nor a constant."""


def layout(text):
    """{message or enum: [(name, type or value)]} of a header's text, in the order of the fields."""
    found = {}
    for kind, name, *bodies in BLOCK.findall(re.sub(r"\s*//[^\n]*", "", text)):
        body = "".join(bodies)
        if kind == "enum class":
            found[name] = [(f"{name}::{one}", value) for one, value in ENUMERATOR.findall(body)]
            continue
        if name != "Header" and "kMinimumBytes" not in body:
            continue  # no message
        fields = []
        for statement in (line.strip() for line in re.sub(r"\s+", " ", body).split(";")):
            if not statement or statement.startswith("static constexpr") or "(" in statement:
                continue
            field = FIELD.match(statement)
            if field is None:
                raise CannotRead(f"src/wire: cannot read \"{statement}\" of {name}")
            fields.append((f"{name}.{field[2]}", field[1] + (field[3] or "")))
        found[name] = fields
    return found


def parse(text):
    """As layout(), of released.txt."""
    released = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, what = line.partition(" ")
        released.setdefault(re.split(r"\.|::", name)[0], []).append((name, what))
    return released


def check(now, released):
    problems = []
    for name, before in released.items():
        have = now.get(name, [])
        if "::" in before[0][0]:
            values = dict(have)
            problems += [f"{one} was released as {value} and is {values.get(one, 'gone')}"
                         for one, value in before if values.get(one) != value]
            continue
        for i, one in enumerate(before):
            if i >= len(have):
                problems.append(f"{one[0]} was released and is gone")
            elif have[i] != one and not (one[0].endswith(".reserved") and have[i][1] == one[1]):
                problems.append(f"{one[0]} ({one[1]}) was released where {have[i][0]} ({have[i][1]}) is: "
                                "a message only grows at its end")
                break
    return problems


def missing(now, released):
    return [one for name, have in now.items() for one in have if one not in released.get(name, [])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--write", action="store_true", help="append what is new to released.txt")
    arguments = parser.parse_args()
    path = arguments.root / RELEASED
    text = path.read_text(encoding="utf-8")
    released = parse(text)
    try:
        now = layout("\n".join((arguments.root / header).read_text(encoding="utf-8") for header in HEADERS))
    except CannotRead as error:
        sys.exit(f"wire: {error}")
    problems = check(now, released)
    new = missing(now, released)
    if not problems and arguments.write:
        # Grouped by message, as they stand in the header.
        head = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
        path.write_text(head + "".join(f"{name} {what}\n" for have in now.values() for name, what in have),
                        encoding="utf-8")
    elif not problems:
        problems = [f"{name} is not in {RELEASED}: run tools/check_wire.py --write" for name, _ in new]
    for problem in problems:
        print(f"wire: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
