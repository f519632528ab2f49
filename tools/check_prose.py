#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the prose of documents, comments and texts in C++: openings, columns, references and broken lines.

    tools/check_prose.py [--root DIR] [--table FILE] [--list] [--write]

Five kinds of fault:

  openings    A sentence that ends in a full stop begins with Who, Whoever, What, Whose or "Of one". Its subject is not
              named. Looked for in documents, in comments and in string literals of C++.
  actors      A comment of C++ says somebody, nobody, whoever and the like, and not which program, seat or user it is.
  columns     A line of a document has more than 120 columns. Rows of tables may be longer in experiments/, and where a
              tool writes them (between <!-- ... --> markers).
  references  A link, or a path of this repository in backticks or in a comment, leads to a file that is not there.
  broken      clang-format has wrapped a comment or a string literal and left a few words alone on a line: three at
              most, or 30 columns stay empty, not at the end of their paragraph, below a full line. Or it has
              wrapped a line of dashes.

No file may have openings or such actors. For the other kinds tools/prose.toml lists the files and folders that still
have faults, and how many. More than listed fails the check. Fewer passes; --write then lowers the numbers in the table.
It never raises one. --list shows every fault.
"""

import argparse
import collections
import pathlib
import re
import sys
import tomllib

import check_style
import documents

CPP = check_style.CPP
HASHED = {".py", ".sh", ".cmake", ".toml", ".table", ".service", ".socket", ".yaml", ".yml"}
TEXTS = {".h", ".cc", ".c", ".cpp", ".S", ".py", ".sh", ".md", ".toml", ".table", ".cmake", ".txt", ".proto", ".yaml",
         ".gen", ".map"}
MAX_COLUMNS = 120
FULL_COLUMNS = 100  # clang-format wraps a line only if its words went beyond column 120: the line above is nearly full
FEW_WORDS = 3
WIDE_GAP = 30

OPENING = re.compile(r"""^[\s"'`*_(\[>#-]*((?:Whoever|Whose|Who|What|Of one)\b)""")
# A sentence ends at . ! or ? with what closes it, before a capital letter or the end of the paragraph.
SENTENCE_END = re.compile(r"""(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)([)"'`*_\]]*)\s+(?=["'`*_(\[]*[A-Z0-9])""")
NAMELESS = re.compile(r"\b((?:some|no|any|every)body|(?:some|any|every)one|whoever)\b(?! of\b)", re.IGNORECASE)
COUNTED = {"columns", "references", "broken"}  # the kinds of which tools/prose.toml may allow some
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
ROW = re.compile(r"^\s*\|")
MARKER = re.compile(r"^<!--\s*(.*?)\s*-->\s*$")
LINK = re.compile(r"\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^ *\[[^\]\n]+\]:\s*(\S+)", re.MULTILINE)
BACKTICKS = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?<![\w./<>$*{~@-])[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+(?![\w/<*{$])")
PLACEHOLDER = re.compile(r"NAME|DATE")
DRAWN = re.compile(r"--|<-|->|\||\S {2,}\S")

Paragraph = collections.namedtuple("Paragraph", "line text")
Comment = collections.namedtuple("Comment", "line lines")  # lines: (number, columns used before the text, text)


def sentences(paragraph):
    """(line, sentence) of each sentence of a paragraph."""
    start = 0
    text = paragraph.text
    for match in SENTENCE_END.finditer(text):
        yield paragraph.line + text.count("\n", 0, start), text[start:match.end(1)]
        start = match.end()
    yield paragraph.line + text.count("\n", 0, start), text[start:]


def openings(paragraphs):
    """The sentences that end in a full stop and name no subject."""
    for paragraph in paragraphs:
        for line, sentence in sentences(paragraph):
            match = OPENING.match(sentence)
            if match and sentence.rstrip(" \n)\"'`*_]").endswith("."):
                yield line, f'"{match.group(1)} ..." names no subject'


def nameless(paragraphs):
    """Words in the place of an actor's name."""
    for paragraph in paragraphs:
        for match in NAMELESS.finditer(paragraph.text):
            yield paragraph.line + paragraph.text.count("\n", 0, match.start()), f'"{match.group(1)}" names no actor'


def markdown_paragraphs(text):
    """Paragraphs, items of lists and cells of tables, without code."""
    found, lines, start, fenced, in_list = [], [], 0, False, False

    def close():
        if lines:
            found.append(Paragraph(start, "\n".join(lines)))
            lines.clear()

    for number, line in enumerate(text.split("\n"), 1):
        if FENCE.match(line):
            close()
            fenced = not fenced
            continue
        if fenced:
            continue
        if not line.strip():
            close()
            continue
        if not lines and line.startswith("    ") and not in_list:
            continue  # a block of code
        if ROW.match(line):
            close()
            found += [Paragraph(number, cell) for cell in line.strip().strip("|").split("|")]
            continue
        item = ITEM.match(line)
        if item or line.startswith("#"):
            close()
        if item:
            in_list = True
            line = line[item.end():]
        elif not line.startswith(" ") and not lines:
            in_list = False
        if not lines:
            start = number
        lines.append(line)
        if line.startswith("#"):
            close()
    close()
    return found


def slashed_comments(text):
    """Comments of C++. A line goes on with the comment above it if its // stands below that one's."""
    comments, slashes = [], None
    for match in check_style.TOKENS.finditer(text):
        token = match.group(0)
        line = check_style.line_of(text, match.start())
        column = match.start() - (text.rfind("\n", 0, match.start()) + 1)
        if token.startswith("/*"):
            parts = [(line + index, 0, part.strip(" */")) for index, part in enumerate(token.split("\n"))]
            comments.append(Comment(line, parts))
        elif token.startswith("//"):
            content = token[2:].removeprefix("/")
            part = (line, column + len(token) - len(content.lstrip()), content.strip())
            is_alone = not text[match.start() - column:match.start()].strip()  # no code before it
            if is_alone and slashes == (line - 1, column):
                comments[-1].lines.append(part)
            else:
                comments.append(Comment(line, [part]))
            slashes = (line, column)
    return comments


def hashed_comments(text):
    comments = []
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"^(\s*)#+(?!!) ?(.*)$", line)
        if not match:
            continue
        part = (number, len(match.group(1)) + 2, match.group(2))
        if comments and comments[-1].lines[-1][0] == number - 1:
            comments[-1].lines.append(part)
        else:
            comments.append(Comment(number, [part]))
    return comments


def comment_paragraphs(comments):
    """Paragraphs of comments; an empty line, an item of a list or a deeper indentation begins another one."""
    found = []
    for comment in comments:
        lines, start = [], 0
        for number, _, text in comment.lines + [(0, 0, "")]:
            if lines and (not text.strip() or ITEM.match(text)):
                found.append(Paragraph(start, "\n".join(lines)))
                lines = []
            if text.strip():
                start = start if lines else number
                lines.append(ITEM.sub("", text))
    return found


def string_paragraphs(text):
    """String literals of C++, neighbours joined as the compiler does, split where the text has its own line breaks."""
    found, joined, start, end = [], "", 0, None
    for match in list(check_style.TOKENS.finditer(text)) + [None]:
        token = match.group(0) if match else ""
        if match and token.startswith("/"):
            continue
        content = None
        if token.startswith('"'):
            content = token[1:-1]
        elif token.startswith('R"'):
            content = token[token.index("(") + 1:token.rindex(")")].replace("\n", "\\n")
        if end is not None and (content is None or text[end:match.start()].strip()):
            found += [Paragraph(start, part) for part in joined.split("\\n") if " " in part]
            joined, end = "", None
        if content is not None:
            start = start if end is not None else check_style.line_of(text, match.start())
            joined += content
            end = match.end()
    return found


def docstrings(text):
    found = []
    for match in re.finditer(r'"""(.*?)"""', text, re.DOTALL):
        line = check_style.line_of(text, match.start())
        for part in re.finditer(r"(?:[^\n]+\n?)+", match.group(1)):
            found.append(Paragraph(line + match.group(1).count("\n", 0, part.start()), part.group(0).rstrip("\n")))
    return found


def long_lines(name, text):
    """Lines of a document beyond MAX_COLUMNS."""
    written = False
    for number, line in enumerate(text.split("\n"), 1):
        marker = MARKER.match(line)
        if marker and not documents.MARK.match(line):
            written = not marker.group(1).startswith("end")
        if ROW.match(line) and (written or name.startswith("experiments/")):
            continue
        if len(line) > MAX_COLUMNS and len(line.split()) > 1:
            yield number, f"{len(line)} columns; at most {MAX_COLUMNS}"


def broken_comments(comments):
    """Comments whose words clang-format has moved to a line of their own."""
    for comment in comments:
        for above, line, below in zip(comment.lines, comment.lines[1:], comment.lines[2:]):
            number, column, text = line
            words = text.split()
            if not words or not below[2].strip() or ITEM.match(below[2]) or ITEM.match(text) or DRAWN.search(text):
                continue
            is_full = above[1] + len(above[2]) >= FULL_COLUMNS
            gap = MAX_COLUMNS - (column + len(text) + 1 + len(below[2].split()[0]))
            is_short = len(words) <= FEW_WORDS and gap >= 0 or gap >= WIDE_GAP
            if is_short and is_full and below[1] == column and not text.endswith((".", ":", ";")):
                yield number, f'"{text}" stands alone: join the lines of this paragraph again'
        for (_, _, above), (number, _, text) in zip(comment.lines, comment.lines[1:]):
            if re.fullmatch(r"[-=]{8,}", text) and above.startswith("----"):
                yield number, "a line of dashes has been wrapped"


def broken_strings(text):
    """String literals that clang-format has cut within a sentence, so that a few words stand alone."""
    lines = text.split("\n")
    only = re.compile(r'^\s*("(?:\\.|[^"\\])*")\s*$')
    for number, (above, line, below) in enumerate(zip(lines, lines[1:], lines[2:]), 2):
        match = only.match(line)
        if not match or not only.match(below.rstrip(";,) ")) or not above.rstrip().endswith('"'):
            continue
        content = match.group(1)[1:-1]
        if len(above) >= FULL_COLUMNS and 0 < len(content.split()) <= FEW_WORDS and not content.endswith("\\n"):
            yield number, f'"{content}" stands alone: join the literals of this text again'


class References:
    """The files and folders that a text may name."""

    def __init__(self, names):
        paths = [pathlib.PurePosixPath(name) for name in names]
        self.there = {path.as_posix() for name in paths for path in (name, *name.parents)}
        self.ends = {"/".join(path.split("/")[start:]) for path in self.there for start in range(path.count("/") + 1)}
        self.tops = {name.parts[0] for name in paths if len(name.parts) > 1}
        self.inner = {name.parts[1] for name in paths if len(name.parts) > 2 and name.parts[0] == "src"}

    def finds(self, name, path):
        """Whether `path`, as the file `name` writes it, is there: with the folders before it, or without the first."""
        return path in self.ends or normal((pathlib.PurePosixPath(name).parent / path).as_posix()) in self.there

    def is_ours(self, path, needs_suffix):
        """Whether a path looks like one of this repository."""
        first = path.split("/")[0]
        suffix = pathlib.PurePosixPath(path).suffix
        if (first not in self.tops and first not in self.inner) or PLACEHOLDER.search(path):
            return False
        return suffix in TEXTS or (not needs_suffix and first in self.tops and not suffix)

    def links(self, name, text):
        folder = pathlib.PurePosixPath(name).parent
        text = without_code(text)
        for match in LINK.finditer(text):
            target = (match.group(1) or match.group(2)).split("#")[0]
            if not target or "://" in target or target.startswith(("mailto:", "/")):
                continue
            if normal((folder / target).as_posix()) not in self.there:
                yield check_style.line_of(text, match.start()), f"the link leads to {target}, which is not there"

    def paths(self, name, line, text, needs_suffix):
        for match in PATH.finditer(text):
            path = match.group(0).rstrip(".")
            if self.is_ours(path, needs_suffix) and not self.finds(name, path):
                yield line + text.count("\n", 0, match.start()), f"{path} is not there"


def normal(path):
    parts = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ""):
            parts.append(part)
    return "/".join(parts) or "."


def without_code(text):
    """The document with its fenced blocks blanked, every line where it was."""
    fenced, lines = False, []
    for line in text.split("\n"):
        fence = FENCE.match(line)
        lines.append("" if fence or fenced else line)
        fenced = fenced != bool(fence)
    return "\n".join(lines)


def check_file(name, text, references):
    """(kind, line, what) of every fault in one file."""
    suffix = pathlib.PurePosixPath(name).suffix
    found = []

    def add(kind, faults):
        found.extend((kind, line, what) for line, what in faults)

    if suffix == ".md":
        add("openings", openings(markdown_paragraphs(text)))
        add("columns", long_lines(name, text))
        add("references", references.links(name, text))
        for number, line in enumerate(without_code(text).split("\n"), 1):
            for match in BACKTICKS.finditer(line):
                add("references", references.paths(name, number, match.group(1), needs_suffix=False))
        return found
    comments = []
    if suffix in CPP:
        comments = slashed_comments(text)
        add("openings", openings(string_paragraphs(text)))
        add("broken", broken_comments(comments))
        add("broken", broken_strings(text))
    elif suffix in HASHED or text.startswith("#!") or name.endswith("CMakeLists.txt"):
        comments = hashed_comments(text)
        if suffix == ".py":
            add("openings", openings(docstrings(text)))
    paragraphs = comment_paragraphs(comments)
    add("openings", openings(paragraphs))
    if suffix in CPP:
        add("actors", nameless(paragraphs))
    for paragraph in paragraphs:
        add("references", references.paths(name, paragraph.line, paragraph.text, needs_suffix=True))
    return found


def entry_of(name, entries):
    """The entry of the table that counts for a file: itself, or the innermost folder around it. None if it has none."""
    for path in (name, *[parent.as_posix() for parent in pathlib.PurePosixPath(name).parents]):
        if path in entries:
            return path
    return None


def judge(faults, table):
    """Compares faults, as (name, kind, line, what), with the table. Gives problems, and what has become fewer."""
    found = collections.defaultdict(list)
    for name, kind, line, what in faults:
        found[kind, entry_of(name, table.get(kind, {})) or name].append(f"{name}:{line}: {what}")
    problems, fewer = [], []
    for (kind, path), lines in sorted(found.items()):
        allowed = table.get(kind, {}).get(path, 0)
        if len(lines) > allowed:
            problems += lines
            if allowed:
                problems.append(f"{path}: {len(lines)} faults of the kind {kind}; tools/prose.toml allows {allowed}")
    for kind, entries in table.items():
        for path, allowed in entries.items():
            count = len(found.get((kind, path), []))
            if count < allowed:
                fewer.append((kind, path, count, allowed))
    return problems, fewer


def lowered(text, fewer):
    """The table's text with the lower numbers; a file or folder without faults leaves it."""
    counts = {(kind, path): count for kind, path, count, _ in fewer}
    lines, kind = [], None
    for line in text.split("\n"):
        section = re.match(r"^\[(\w+)\]", line)
        kind = section.group(1) if section else kind
        entry = re.match(r'^"([^"]+)" = \d+', line)
        count = counts.get((kind, entry.group(1))) if entry else None
        if count is None:
            lines.append(line)
        elif count > 0:
            lines.append(f'"{entry.group(1)}" = {count}')
    return "\n".join(lines)


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=here.parent)
    parser.add_argument("--table", type=pathlib.Path, default=here / "prose.toml")
    parser.add_argument("--list", action="store_true", help="show every fault, listed in the table or not")
    parser.add_argument("--write", action="store_true", help="lower the numbers of the table to what there is")
    arguments = parser.parse_args()
    written = arguments.table.read_text(encoding="utf-8")
    table = tomllib.loads(written)
    exempt = table.pop("exempt")
    if not table.keys() <= COUNTED:
        parser.error(f"{arguments.table}: only {', '.join(sorted(COUNTED))} may be allowed")
    names = check_style.files_of(arguments.root)
    references = References(names)
    faults = []
    for name in names:
        if check_style.is_generated(name) or "/corpus/" in name or any(name.startswith(path) for path in exempt):
            continue
        if pathlib.PurePosixPath(name).suffix in check_style.BINARY:
            continue
        try:
            text = (arguments.root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # tools/check_style.py says so
        faults += [(name, *fault) for fault in check_file(name, text, references)]
    if arguments.list:
        for name, kind, line, what in faults:
            print(f"{kind}: {name}:{line}: {what}")
        return 0
    problems, fewer = judge(faults, table)
    if arguments.write and fewer:
        arguments.table.write_text(lowered(written, fewer), encoding="utf-8")
    for kind, path, count, allowed in fewer:
        ending = "lowered" if arguments.write else "run tools/check_prose.py --write, and commit the table"
        print(f"prose: {path}: {kind}: {count} instead of {allowed}: {ending}")
    for problem in problems:
        print(f"prose: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
