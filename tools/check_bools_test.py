#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the check counts the members of type bool of each struct and class, and nothing that only looks like one.

Method: small texts, and trees with a table of exceptions that the tool itself is run on.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check_bools

TOOL = pathlib.Path(check_bools.__file__).resolve()
FIVE = "struct Five {\n  bool a;\n  bool b = false;\n  std::atomic<bool> c{false};\n  mutable bool d, e = true;\n};\n"


class CountTest(unittest.TestCase):

    def counts(self, text):
        return {one.name: one.bools for one in check_bools.types(text)}

    def test_all_kinds_of_members(self):
        self.assertEqual(self.counts(FIVE), {"Five": ["a", "b", "c", "d", "e"]})
        text = "class A final : public B<C> {\n public:\n  bool a_;\n private:\n  bool b_{true};\n};"
        self.assertEqual(self.counts(text), {"A": ["a_", "b_"]})

    def test_nested_types_count_for_themselves(self):
        text = "class A {\n  struct B { bool b; };\n  std::vector<B> all;\n  bool a;\n  enum class C { kOne };\n};"
        self.assertEqual(self.counts(text), {"A::B": ["b"], "A": ["a"]})

    def test_functions_and_their_variables_are_no_members(self):
        text = ("struct A {\n  bool f() const;\n  bool g(bool x, bool y) { bool z = x; return z; }\n  bool h{};\n"
                "  static bool make(int = {});\n  explicit A(bool x) : h{x} {}\n  bool i = false;\n};\n"
                "bool global; void f() { bool local; }")
        self.assertEqual(self.counts(text), {"A": ["h", "i"]})

    def test_comments_and_literals_are_no_code(self):
        text = ("struct A {\n  // struct B { bool no;\n  /* bool no; */\n  const char* a = \"{ bool no;\";\n"
                "  bool b = c == '{';\n};")
        self.assertEqual(self.counts(text), {"A": ["b"]})


class TableTest(unittest.TestCase):

    def run_on(self, *exceptions):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src").mkdir()
            (root / "src/a.h").write_text(FIVE)
            (root / "src/a_test.cc").write_text(FIVE)
            (root / "table.toml").write_text("exceptions = [\n" + ",\n".join(exceptions) + "]\n")
            done = subprocess.run([sys.executable, TOOL, "--root", root, "--table", root / "table.toml"],
                                  capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

    def test_more_than_four_are_refused(self):
        status, said = self.run_on()
        self.assertEqual(status, 1)
        self.assertIn("src/a.h:1: Five has 5 members of type bool (a, b, c, d, e)", said)
        self.assertNotIn("a_test", said)

    def test_an_exception_passes(self):
        self.assertEqual(self.run_on('{file = "src/a.h", type = "Five", bools = 5, reason = "It is."}'), (0, ""))

    def test_an_exception_that_is_not_true_is_refused(self):
        for wrong in ('{file = "src/a.h", type = "Five", bools = 6, reason = "It is."}',
                      '{file = "src/a.h", type = "Five", bools = 5, reason = "no sentence"}'):
            self.assertEqual(self.run_on(wrong)[0], 1)
        gone = self.run_on('{file = "src/a.h", type = "Five", bools = 5, reason = "It is."}',
                           '{file = "src/b.h", type = "Gone", bools = 5, reason = "It was."}')
        self.assertEqual(gone[0], 1)
        self.assertIn("src/b.h has no Gone", gone[1])


if __name__ == "__main__":
    unittest.main()
