#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the environment check sees a variable that is missing on either side. Method: a small tree for each case."""

import pathlib
import tempfile
import unittest

import check_environment

TABLE = "| variable | default | reader | alias | meaning |\n|---|---|---|---|---|\n" \
        "| `GPUMUX_MODE` | `serial` | daemon | `NVSHARE_MODE` (old) | not `GPUMUX_PROSE` |\n"
SOURCE = '{"mode", "GPUMUX_MODE", "NVSHARE_MODE"}; // "GPUMUX_COMMENT"\nfail("set GPUMUX_TEXT");\ngetenv("PATH");\n'


class EnvironmentTest(unittest.TestCase):

    def check(self, document, source):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "src/base").mkdir(parents=True)
            (root / "docs/environment.md").write_text(document, encoding="utf-8")
            (root / "src/base/a.cc").write_text(source, encoding="utf-8")
            (root / check_environment.NAMES_ONLY).parent.mkdir(parents=True)
            (root / check_environment.NAMES_ONLY).write_text('"GPUMUX_GONE"', encoding="utf-8")
            return check_environment.check(root)

    def test_equal(self):
        self.assertEqual(self.check(TABLE, SOURCE), [])

    def test_read_and_not_listed(self):
        for more in ('get("GPUMUX_NEW");', 'secure_getenv("NO_COLOR");', 'count_variable("WORLD_SIZE");'):
            problems = self.check(TABLE, SOURCE + more)
            self.assertEqual(len(problems), 1, problems)
            self.assertIn("src/base/a.cc reads", problems[0])

    def test_the_simulators_variables_have_a_document_of_their_own(self):
        self.assertEqual(self.check(TABLE, SOURCE + 'set("GPUMUX_SIM_DIR", path);'), [])

    def test_listed_and_not_read(self):
        problems = self.check(TABLE + "| `GPUMUX_GONE` | | | | |\n", SOURCE)
        self.assertEqual(problems, ["docs/environment.md lists GPUMUX_GONE; no source reads it"])
        self.assertEqual(self.check(TABLE + "| `GPUMUX_GONE` | | none | | |\n", SOURCE), [])

    def test_listed_twice(self):
        problems = self.check(TABLE + TABLE.splitlines()[-1], SOURCE)
        self.assertEqual([problem.split(" lists ")[1] for problem in problems],
                         ["GPUMUX_MODE more than once", "NVSHARE_MODE more than once"])

    def test_alias_counts(self):
        problems = self.check(TABLE.replace("`NVSHARE_MODE` (old)", ""), SOURCE)
        self.assertEqual(problems, ["src/base/a.cc reads NVSHARE_MODE; docs/environment.md does not list it"])


if __name__ == "__main__":
    unittest.main()
