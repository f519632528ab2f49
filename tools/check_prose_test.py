#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the prose check finds each kind of fault where it is, leaves lawful text alone, and its table only shrinks.

Method: one small text for each fault and for what only looks like one; a table that allows as many, more and fewer.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check_prose

NAMES = ["README.md", "docs/a.md", "src/sched/core.h", "src/sched/core.cc", "src/shim/memory/mover.h", "tools/x.py"]
FULL = "x" * 55 + " " + "y" * 55  # with "// " a line of 114 columns


class ProseTest(unittest.TestCase):

    def faults(self, name, text):
        return check_prose.check_file(name, text, check_prose.References(NAMES))

    def passes(self, name, text):
        self.assertEqual(self.faults(name, text), [])

    def refuses(self, name, text, kind, line, *words):
        faults = self.faults(name, text)
        self.assertEqual([(fault[0], fault[1]) for fault in faults], [(kind, line)], faults)
        for word in words:
            self.assertIn(word, faults[0][2])

    def test_openings_in_documents(self):
        for start in ("Who", "Whoever", "What", "Whose", "Of one", "**Who", "- What", "1. Whose", "> Who"):
            self.refuses("docs/a.md", f"# Title\n\nText goes\nhere. And on.\n\n{start} comes next goes\nfirst.\n",
                         "openings", 6, "subject")
        self.refuses("docs/a.md", "The seat waits. What it\nlacks is taken.\n", "openings", 1, '"What ..."')
        self.refuses("docs/a.md", "The seat waits.\nWhat it lacks is taken.\n", "openings", 2)
        self.refuses("docs/a.md", "| a | b |\n|---|---|\n| x | What comes goes. |\n", "openings", 3)
        self.refuses("docs/a.md", "It ends. (What comes goes.)\n", "openings", 1)

    def test_lawful_openings(self):
        self.passes("docs/a.md", "Who comes next?\n\n## What it is\n\nWhat follows from it:\n\n- Whole pages move.\n")
        self.passes("docs/a.md", "One of them waits for what comes. Offers of one seat lapse, e.g. What else.\n")
        self.passes("docs/a.md", "```\nWhat comes goes.\n```\n\n    What comes goes.\n")

    def test_openings_in_comments(self):
        self.refuses("src/sched/core.h", "int a;\n\n// A seat.\n// Who waits\n// is next.\nint b;\n", "openings", 4)
        self.refuses("src/sched/core.h", "int a;  // Who waits is next.\n", "openings", 1)
        self.refuses("src/sched/core.h", "/* A seat.\n * Who waits is next.\n */\n", "openings", 2)
        self.refuses("tools/x.py", "a = 1\n# Who waits is next.\n", "openings", 2)
        self.refuses("tools/x.py", '"""Goal: x.\n\nWho waits is next.\n"""\n', "openings", 3)
        self.passes("src/sched/core.h", "// Who waits\nint a;\n// is next.\n")

    def test_actors_in_comments(self):
        for word in ("somebody", "Nobody", "whoever", "anybody", "everyone"):
            self.refuses("src/sched/core.h", f"// A seat waits.\n// Then {word} is next.\nint a;\n", "actors", 2, word)
        self.passes("src/sched/core.h", "// No seat waits. Any one of them may be next, and everyone of that group.\n")
        self.passes("src/sched/core.cc", 'f("nobody waits");\n')

    def test_openings_in_strings(self):
        self.refuses("src/sched/core.cc", 'f("a seat. "\n  "Who waits is next.");\n', "openings", 1)
        self.refuses("src/sched/core.cc", 'f(R"(a seat\nWho waits is next.\n)");\n', "openings", 1)
        self.passes("src/sched/core.cc", 'f("Who waits is next", "a.");\n')

    def test_columns(self):
        line = "word " * 24  # 120 columns with its last space
        self.passes("docs/a.md", line + "\n")
        self.refuses("docs/a.md", line + "x\n", "columns", 1, "121")
        self.refuses("docs/a.md", "| " + line + "|\n", "columns", 1)
        self.passes("docs/a.md", "<!-- settings: gpu -->\n| " + line + "|\n<!-- end -->\n")
        self.refuses("docs/a.md", "<!-- settings: gpu -->\n<!-- end -->\n| " + line + "|\n", "columns", 3)
        self.passes("experiments/001/README.md", "| " + line + "|\n")
        self.passes("docs/a.md", "https://example.org/" + "x" * 120 + "\n")

    def test_links(self):
        self.passes("docs/a.md", "[core](../src/sched/core.h#x), [web](https://example.org/a.md), [here](#here)\n")
        self.passes("docs/a.md", "[folder](../src/sched), [itself](a.md)\n\n```\n[x](nowhere.md)\n```\n")
        self.refuses("docs/a.md", "A [core](../src/sched/gone.h).\n", "references", 1, "../src/sched/gone.h")
        self.refuses("docs/a.md", "A [core].\n\n[core]: gone.md\n", "references", 3, "gone.md")

    def test_paths(self):
        self.passes("docs/a.md", "`src/sched`, `sched/core.cc`, `memory/mover.h`, `src/sched/*.h`, `src/NAME.cc`\n")
        self.passes("docs/a.md", "`/etc/gone.h`, `other/gone.h`, `a/b`, `sched/gone`, `https://x.org/docs/gone.md`\n")
        self.refuses("docs/a.md", "\nSee `sched/gone.h`.\n", "references", 2, "sched/gone.h")
        self.refuses("docs/a.md", "See `src/gone`.\n", "references", 1, "src/gone")
        self.refuses("src/sched/core.h", "// A seat\n// (docs/gone.md).\n", "references", 2, "docs/gone.md")
        self.passes("src/sched/core.h", '// A seat: docs/a.md.\n#include "sched/gone.h"\n')

    def test_broken_comments(self):
        self.refuses("src/sched/core.h", f"// {FULL}\n// gives it\n// up and goes on.\n", "broken", 2, "gives it")
        self.passes("src/sched/core.h", f"// {FULL}\n// gives it up.\n")
        self.refuses("src/sched/core.h", f"// {FULL}\n// {'more ' * 12}\n// and so on\n", "broken", 2, "more")
        self.passes("src/sched/core.h", f"// {FULL}\n// {'more ' * 20}\n// and so on\n")
        self.passes("src/sched/core.h", f"// {FULL}\n// gives it\n//     as drawn\n")
        self.passes("src/sched/core.h", f"// name  {FULL[6:]}\n//       {'more ' * 18}\n//       and so on\n")
        self.passes("src/sched/core.h", f"// {FULL}\n// the end.\n// And so on and on.\n")
        self.passes("src/sched/core.h", f"// {FULL}\n// the end\n//\n// And so on.\n")
        self.passes("src/sched/core.h", "// A short line\n// gives it\n// up and goes on.\n")
        self.passes("src/sched/core.h", f"// {FULL}\n//  <---- Answer\n//  and so on\n")
        code = f"int {'a' * 90};  "
        self.passes("src/sched/core.h", f"{code}// {'x' * 20}\n{code}// few\n{code}// x\n")
        self.refuses("src/sched/core.h", "// ---- a title\n// ---------------------\n", "broken", 2, "dashes")

    def test_broken_strings(self):
        text = f'f("{FULL} "\n  "drawn "\n  "from the seed");\n'
        self.refuses("src/sched/core.cc", text, "broken", 2, "drawn")
        self.passes("src/sched/core.cc", text.replace("drawn ", "drawn\\n"))
        self.passes("src/sched/core.cc", 'f("short "\n  "drawn "\n  "from the seed");\n')

    def test_the_table_allows_what_it_lists(self):
        faults = [("src/sched/core.h", "references", 1, "a"), ("src/sched/core.cc", "references", 2, "b")]
        self.assertEqual(check_prose.judge(faults, {"references": {"src/sched": 2}}), ([], []))
        problems, _ = check_prose.judge(faults, {"references": {"src/sched": 1}})
        self.assertEqual(len(problems), 3, problems)
        self.assertIn("allows 1", problems[2])
        problems, _ = check_prose.judge(faults, {"columns": {"src/sched": 2}})
        self.assertEqual(problems[:2], ["src/sched/core.cc:2: b", "src/sched/core.h:1: a"])
        problems, _ = check_prose.judge(faults, {"references": {"src/sched": 1, "src/sched/core.h": 1}})
        self.assertEqual(problems, [])

    def test_the_table_shrinks(self):
        table = {"references": {"src/sched": 3, "docs/a.md": 1}, "columns": {"docs/a.md": 2}}
        faults = [("src/sched/core.h", "references", 1, "a"), ("docs/a.md", "columns", 1, "b")]
        problems, fewer = check_prose.judge(faults, table)
        self.assertEqual(problems, [])
        self.assertEqual(len(fewer), 3)
        text = '# Why.\n[columns]\n"docs/a.md" = 2\n[references]\n"docs/a.md" = 1\n"src/sched" = 3\n'
        self.assertEqual(check_prose.lowered(text, fewer),
                         '# Why.\n[columns]\n"docs/a.md" = 1\n[references]\n"src/sched" = 1\n')

    def test_the_table_allows_no_openings(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "prose.toml")
            for kind, code in (("openings", 2), ("columns", 0)):
                table.write_text(f'exempt = []\n[{kind}]\n"a.md" = 1\n', encoding="utf-8")
                command = [sys.executable, check_prose.__file__, "--root", folder, "--table", table]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, code, done.stderr)


if __name__ == "__main__":
    unittest.main()
