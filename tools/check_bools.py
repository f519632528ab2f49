#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no struct or class has more than four members of type bool.

    tools/check_bools.py [--root DIR] [--table FILE]

Five of them have 32 states, of which few have a meaning: an enum, a std::optional or a std::variant names those.
Looks at src, sim and bench, but not at tests and generated files. tools/bools.toml lists the exceptions, each with how
many members it has and the reason. An exception that has fewer fails too, so the table stays true.
"""

import argparse
import pathlib
import re
import sys
import tomllib

MOST = 4
FOLDERS = ("src", "sim", "bench")
ENDINGS = {".h", ".cc"}
NOT_READ = re.compile(r"\.gen\.|_(test|bench|fuzz)\.cc$")

# Comments and literals, which may have braces in them.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\s]*)\(.*?\)(?P=d)"|"(?:[^"\\\n]|\\.)*"|'
                     r"(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'", re.DOTALL)
HEAD = re.compile(r"\b(?:struct|class)\s+(?:\[\[\w+\]\]\s*|alignas\([^)]*\)\s*)*(?P<name>[\w:]*)[^;{}()=]*$")
MEMBER = re.compile(r"^(?:(?:public|private|protected)\s*:\s*|\[\[\w+\]\]\s*|mutable\s+|volatile\s+)*"
                    r"(?:bool|std::atomic<bool>|std::atomic_bool)\s+(?P<names>\w[^()]*)$", re.DOTALL)


class Type:
    """A struct or class: its name with those around it, where it begins, and its members of type bool."""

    def __init__(self, name, line):
        self.name = name
        self.line = line
        self.bools = []


def types(text):
    """Every struct and class of a C++ text, in the order of their ends."""
    text = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = []
    open_braces = []  # (a Type, or None for another pair of braces; where the declaration before it began)
    start = 0  # of the declaration that is being read
    line = 1
    for at, char in enumerate(text):
        if char == "\n":
            line += 1
        elif char == "{":
            head = HEAD.search(text[start:at])
            is_type = head is not None and "enum" not in text[start:at].split()
            outer = next((brace for brace, _ in reversed(open_braces) if brace is not None), None)
            name = (head["name"] if head else "") or "(no name)"
            brace = Type(f"{outer.name}::{name}" if outer else name, line) if is_type else None
            open_braces.append((brace, start))
            start = at + 1
        elif char == "}" and open_braces:
            brace, began = open_braces.pop()
            if brace is not None:
                found.append(brace)
            is_initializer = brace is None and text[at + 1:at + 40].lstrip()[:1] in (";", ",", ")")
            start = began if is_initializer else at + 1
        elif char == ";":
            if open_braces and open_braces[-1][0] is not None:
                member = MEMBER.match(text[start:at].strip())
                if member:
                    open_braces[-1][0].bools += names_in(member["names"])
            start = at + 1
    return found


def names_in(declarators):
    return re.findall(r"(\w+)[^,]*", re.sub(r"\{[^}]*\}", "", declarators))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--root", type=pathlib.Path, default=here.parent)
    parser.add_argument("--table", type=pathlib.Path, default=here / "bools.toml")
    arguments = parser.parse_args()
    exceptions = {}
    for one in tomllib.loads(arguments.table.read_text(encoding="utf-8"))["exceptions"]:
        if not one["reason"].endswith("."):
            sys.exit(f"bools: {arguments.table}: the reason of {one['type']} is no sentence")
        exceptions[one["file"], one["type"]] = one["bools"]
    wrong = []
    files = [path for folder in FOLDERS for path in sorted((arguments.root / folder).rglob("*"))
             if path.suffix in ENDINGS and not NOT_READ.search(path.name)]
    for path in files:
        file = str(path.relative_to(arguments.root))
        for one in types(path.read_text(encoding="utf-8")):
            allowed = exceptions.pop((file, one.name), None)
            count = len(one.bools)
            if allowed is not None and count != allowed:
                wrong.append(f"{file}:{one.line}: {one.name} has {count} members of type bool, and the table says "
                             f"{allowed}")
            elif allowed is None and count > MOST:
                names = ", ".join(one.bools)
                wrong.append(f"{file}:{one.line}: {one.name} has {count} members of type bool ({names}), not {MOST}")
    wrong += [f"{file} has no {name}, which the table names" for file, name in exceptions]
    for fault in wrong:
        print(f"bools: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
