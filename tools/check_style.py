#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a compiler does not know: licence lines, lengths, banned calls, leftovers; see tools/style.toml.

    tools/check_style.py [--root DIR] [--table FILE]

Looks at what is under version control and at new files that are not ignored. Generated files (*.gen.* and *_gen.py)
need a licence line and #pragma once; their lengths are their own.
"""

import argparse
import fnmatch
import pathlib
import re
import subprocess
import sys
import tomllib

import check_layers

CPP = {".cc", ".h", ".c", ".cpp"}
LICENSED = CPP | {".S", ".py", ".sh", ".service", ".socket"}
MEASURED = CPP | {".py", ".sh", ".cmake"}
SPDX = "SPDX-License-Identifier: Apache-2.0"
BINARY = {".png", ".ico", ".gz", ".bin"}

# Comments, then raw strings, strings and characters. A digit separator (1'000) is no character, hence the look-behind.
TOKENS = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)


def code_only(text):
    """The text with comments and literals blanked and every line where it was. Names in #include stay."""

    def blank(match):
        token = match.group(0)
        if token.startswith('"'):
            line = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
            if re.match(r"\s*#\s*include\b", line):
                return token
        return re.sub(r"[^\n]", " ", token)

    return TOKENS.sub(blank, text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def is_generated(name):
    return ".gen." in name or name.endswith("_gen.py")


def is_in(folder, folders):
    return folder is not None and any(check_layers.is_inside(folder, outer) for outer in folders)


class Style:

    def __init__(self, table, folders):
        self.table = table
        self.folders = folders
        self.bans = [(set(ban["folders"]), ban["why"], ban.get("unless"), [re.compile(p) for p in ban["patterns"]])
                     for ban in table["banned"]]
        self.leftovers = re.compile(table["text"]["leftovers"])
        self.foreign = re.compile(table["text"]["foreign"], re.IGNORECASE)
        self.exempt = table["text"]["exempt"]

    def check_file(self, name, text):
        """Every problem of one file, `name` being its path from the root."""
        suffix = pathlib.PurePosixPath(name).suffix
        lines = text.splitlines()
        problems = []
        if suffix in LICENSED or text.startswith("#!"):
            if not any(SPDX in line for line in lines[:2]):
                problems.append(f"{name}:1: the first line (the second after #!) must say {SPDX}")
        if suffix == ".h" and "#pragma once" not in text:
            problems.append(f"{name}: a header needs #pragma once")
        if not is_generated(name) and suffix in MEASURED:
            problems += self.check_lengths(name, lines)
        if suffix in CPP:
            problems += self.check_calls(name, text)
        if not is_generated(name) and not any(fnmatch.fnmatch(name, pattern) for pattern in self.exempt):
            problems += self.check_words(name, text)
        return problems

    def check_lengths(self, name, lines):
        problems = []
        if len(lines) > self.table["max_lines"] and name not in self.table["long_files"]:
            problems.append(f"{name}: {len(lines)} lines; at most {self.table['max_lines']}: split it by what it does")
        if any(fnmatch.fnmatch(name, pattern) for pattern in self.table["long_lines"]):
            return problems
        for number, line in enumerate(lines, 1):
            # A string that cannot be broken, such as an address, is let be.
            if len(line) > self.table["max_columns"] and "://" not in line:
                problems.append(f"{name}:{number}: {len(line)} columns; at most {self.table['max_columns']}")
        return problems

    def check_calls(self, name, text):
        code = code_only(text)
        folder = None
        for top, prefix in check_layers.TOPS.items():
            if name.startswith(top + "/"):
                folder = check_layers.folder_of(prefix + name.removeprefix(top + "/"), self.folders)
        outside = check_layers.OUTSIDE_THE_LAYERS.search(name) is not None
        problems = []
        lines = text.splitlines()
        for folders, why, unless, patterns in self.bans:
            if "everywhere" not in folders and (outside or not is_in(folder, folders)):
                continue
            for pattern in patterns:
                for match in pattern.finditer(code):
                    if unless and unless in lines[line_of(code, match.start()) - 1]:
                        continue
                    found = " ".join(match.group(0).split())
                    problems.append(f"{name}:{line_of(code, match.start())}: {found}: {why}")
        return problems

    def check_words(self, name, text):
        problems = []
        rules = ((self.leftovers, "finish it, or file it as an issue"),
                 (self.foreign, "the project speaks of itself only"))
        for pattern, why in rules:
            for match in pattern.finditer(text):
                problems.append(f"{name}:{line_of(text, match.start())}: {match.group(0)}: {why}")
        return problems


class Includes:
    """Which files name an integer type of the library without its header: only some compilers let that pass."""
    INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
    NAMES = re.compile(r"\bstd::u?int(8|16|32|64)_t\b")

    def __init__(self, texts):
        self.texts = texts  # {path from the root: text}
        self.known = {}

    def has_cstdint(self, name):
        """Whether the file includes it, or a header of ours that does."""
        if name not in self.known:
            self.known[name] = False
            included = self.INCLUDE.findall(self.texts.get(name, ""))
            self.known[name] = "cstdint" in included or any(
                self.has_cstdint(prefix + other) for other in included for prefix in ("src/", ""))
        return self.known[name]

    def problems(self):
        return [f"{name}: it names std::int64_t or the like: include <cstdint>" for name, text in self.texts.items()
                if not self.has_cstdint(name) and self.NAMES.search(code_only(text))]


def files_of(root):
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"]
    listing = subprocess.run(command, capture_output=True, check=False)
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
    else:  # a source archive without its history
        tops = (*check_layers.TOPS, "tools", "test", "tests", "bench", "docs", "cmake", "deploy", "experiments",
                "packaging", "python")
        paths = [path for top in tops for path in (root / top).rglob("*") if "__pycache__" not in path.parts]
        paths += root.iterdir()
        names = [path.relative_to(root).as_posix() for path in paths]
    return sorted(name for name in names if (root / name).is_file())


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=here.parent)
    parser.add_argument("--table", type=pathlib.Path, default=here / "style.toml")
    arguments = parser.parse_args()
    folders = tomllib.loads((here / "layers.toml").read_text(encoding="utf-8"))["folders"]
    style = Style(tomllib.loads(arguments.table.read_text(encoding="utf-8")), folders)
    problems = []
    texts = {}
    for name in files_of(arguments.root):
        if pathlib.PurePosixPath(name).suffix in BINARY or "/corpus/" in name:
            continue
        try:
            text = (arguments.root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            problems.append(f"{name}: not UTF-8 text; fuzz inputs belong in a corpus/ folder")
            continue
        problems += style.check_file(name, text)
        if pathlib.PurePosixPath(name).suffix in CPP:
            texts[name] = text
    problems += Includes(texts).problems()
    for problem in problems:
        print(f"style: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
