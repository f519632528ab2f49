#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: a daemon that logs an error fails the test that does not expect it. Method: tests whose only program prints the
lines of a daemon."""

import contextlib
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import GpumuxTest  # noqa: E402

STARTED = "2026-01-02T03:04:05.678 "


def failures_of(*lines, expected=None, in_file=False):
    """The failures that a test reports if its daemon logs these lines."""

    class Scenario(GpumuxTest):

        def test(self):
            if expected:
                self.expect_error(expected)
            if in_file:
                pathlib.Path(self.runtime_dir, "gpumuxd.log").write_text("\n".join(lines), encoding="utf-8")
            else:
                self.start_process(["sh", "-c", 'printf "%s\\n" "$@" >&2', "sh", *lines]).expect_success()

    result = unittest.TestResult()
    with contextlib.redirect_stderr(io.StringIO()):
        Scenario("test").run(result)
    return [text for _, text in result.failures + result.errors]


class Case(unittest.TestCase):

    def test_other_lines_are_no_errors(self):
        lines = (STARTED + "info ready", STARTED + "warning it says error ", "worker: error: no")
        self.assertEqual(failures_of(*lines), [])

    def test_an_error_of_a_daemon_fails_the_test(self):
        for line in (STARTED + "error it broke", "gpumuxd: error: it broke"):
            for in_file in (False, True):
                with self.subTest(line=line, in_file=in_file):
                    failures = failures_of(STARTED + "info ready", line, in_file=in_file)
                    self.assertEqual(len(failures), 1)
                    self.assertIn(line, failures[0])

    def test_an_expected_error_does_not(self):
        self.assertEqual(failures_of(STARTED + "error it broke", expected="it br.ke"), [])
        self.assertEqual(len(failures_of(STARTED + "error it broke", expected="it fell")), 1)


if __name__ == "__main__":
    unittest.main()
