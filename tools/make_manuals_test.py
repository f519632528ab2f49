#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the manual pages say all that the programs and the documents say, and typeset. Method: making them from the
built programs, looking for each option and variable; the formatter's own warnings, where there is one.

    tools/make_manuals_test.py DIR     DIR has gpumux, gpumuxd and gpumux-kubelet-plugin
"""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import check_environment
import help_text
import make_manuals

BIN = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else None


class ManualsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        commands = make_manuals.command_pages(BIN / "gpumux", "1.2.3") | make_manuals.old_command_pages(BIN, "1.2.3")
        cls.pages = {
            **{f"{name}.1": text for name, text in commands.items()},
            "gpumux.1": make_manuals.gpumux_page(BIN / "gpumux", "1.2.3"),
            "gpumux.toml.5": make_manuals.toml_page("1.2.3"),
            "gpumuxd.8": make_manuals.gpumuxd_page(BIN / "gpumuxd", "1.2.3"),
        }
        cls.plugin = BIN / "gpumux-kubelet-plugin"
        if cls.plugin.exists():
            cls.pages["gpumux-kubelet-plugin.8"] = make_manuals.plugin_page(cls.plugin, "1.2.3")

    def test_every_option_is_there(self):
        _, commands = help_text.ask_gpumux(BIN / "gpumux")
        daemon = help_text.ask(BIN / "gpumuxd", "gpumuxd")
        plugin = []
        if self.plugin.exists():
            plugin = [("gpumux-kubelet-plugin.8", help_text.ask(self.plugin, self.plugin.name))]
        old = [(f"{name}.1", help_text.ask(BIN / name, name)) for name in make_manuals.OLD_COMMANDS]
        for page, found in [*((f"gpumux-{command}.1", found) for command, found in commands), *old,
                            ("gpumuxd.8", daemon), *plugin]:
            self.assertGreater(len(found.options()), 0)
            for option in found.options():
                self.assertIn(rf"\fB{option.flags[-1]}\fP".replace("-", r"\-"), self.pages[page])

    def test_every_command_has_a_page_that_the_overview_names(self):
        _, commands = help_text.ask_gpumux(BIN / "gpumux")
        for name in [*(f"gpumux-{command}" for command, _ in commands), *make_manuals.OLD_COMMANDS]:
            self.assertIn(rf"\fB{make_manuals.escape(name)}\fP(1)", self.pages["gpumux.1"])
            self.assertRegex(self.pages[f"{name}.1"], r"\.SH NAME\n\S+ \\- \S")

    def test_what_the_document_tells_of_a_command_is_on_its_page(self):
        told = make_manuals.sections(make_manuals.ROOT / "docs/cli.md")
        headings = [heading for heading in told if heading.startswith("gpumux ")]
        self.assertGreater(len(headings), 8)
        for heading in headings:
            for command in heading.removeprefix("gpumux ").split(", "):
                if command == "web" and "gpumux-web.1" not in self.pages:
                    continue  # this build has left it out
                self.assertIn("\n.SH NOTES\n", self.pages[f"gpumux-{command}.1"])

    def test_every_variable_is_there(self):
        if not self.plugin.exists():
            self.skipTest("this build has left out the plugin, whose page has some of them")
        text = (make_manuals.ROOT / "docs/environment.md").read_text(encoding="utf-8")
        listed, _ = check_environment.listed_in_document(text)
        self.assertGreater(len(listed), 30)
        for name in listed:
            self.assertTrue(any(name in page for page in self.pages.values()), name)

    def test_every_setting_is_there(self):
        for option in help_text.ask(BIN / "gpumuxd", "gpumuxd").options():
            if option.placeholder == "VALUE":
                key = option.flags[0][2:].replace("-", "_")
                self.assertIn(rf"\fB{key}\fP", self.pages["gpumux.toml.5"])

    def test_nothing_of_markdown_is_left(self):
        for name, page in self.pages.items():
            prose = re.sub(r"\n\.nf\n.*?\n\.fi\n", "\n", page, flags=re.S)
            for line in prose.splitlines():
                self.assertNotRegex(line, r"^#|\]\(|\*\*|\|.*\||^```", name)

    def test_the_formatter_has_nothing_to_complain_of(self):
        if shutil.which("groff") is None:
            self.skipTest("no groff here")
        for name, page in self.pages.items():
            answer = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page, capture_output=True,
                                    text=True, check=True)
            # Lines of examples and long names are not filled: that is no fault.
            complaints = [line for line in answer.stderr.splitlines() if "adjust line" not in line
                          and "break line" not in line]
            self.assertEqual(complaints, [], name)


class MarkdownTest(unittest.TestCase):

    def test_what_begins_like_a_request_is_text(self):
        for text in (".so /etc/passwd", "'tis"):
            self.assertTrue(make_manuals.markdown(text)[1].startswith(r"\&"), text)
        self.assertEqual(make_manuals.verbatim([".x", r"a\b"])[3:5], [r"\&.x", r"a\(rsb"])

    def test_parts(self):
        text = "A `--flag` of **this** [page](cli.md) or [that](api.md#x).\n\n1. one\n   more\n2. two\n\n| a | b |\n" \
               "|---|---|\n| `x` | y |\n\n```sh\nls\n\nls -l\n```\n\n### Last\n"
        self.assertEqual(make_manuals.markdown(text), [
            ".PP", r"A \fB\-\-flag\fP of \fBthis\fP gpumux(1) or that.",
            ".IP 1. 4", "one more", ".IP 2. 4", "two", ".TP", r"\fBx\fP", "y",
            ".PP", ".RS 4", ".nf", "ls", "", r"ls \-l", ".fi", ".RE", ".SS Last"])

    def test_what_is_not_converted_is_an_error(self):
        for text in ("#### Deep", "<b>x</b>", "```\nnever closed"):
            with self.assertRaises(ValueError):
                make_manuals.markdown(text)


if __name__ == "__main__":
    if BIN is None:
        sys.exit("which folder has the programs?")
    unittest.main()
