#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: a shell completes what the programs know, and nothing else. Method: the completions of the built gpumux, asked
in bash as bash asks; in zsh and fish, where they are installed, at least read without complaint.

    tools/make_completions_test.py DIR     DIR has gpumux
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import help_text
import make_completions

BIN = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else None

# The shell's part: it hands over the words and takes the answers. _command_offset is what bash-completion brings.
ASK = """
compopt() { echo "compopt $*"; }
_command_offset() { echo "command at $1"; }
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_gpumux
printf '%s\\n' "${COMPREPLY[@]}"
"""


class CompletionsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.whole, cls.commands = help_text.ask_gpumux(BIN / "gpumux")
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = pathlib.Path(cls.folder.name) / "gpumux"
        cls.file.write_text(make_completions.bash(cls.commands), encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def complete(self, *words, path=os.defpath):
        answer = subprocess.run(["bash", "--norc", "-c", ASK, "bash", self.file, "gpumux", *words], text=True,
                                capture_output=True, check=True, timeout=20, env={**os.environ, "PATH": path})
        self.assertEqual(answer.stderr, "")
        return answer.stdout.split("\n")[:-1]

    def test_commands(self):
        names = [command for command, _ in self.commands]
        self.assertEqual(sorted(self.complete("")), sorted([*names, "help"]))
        self.assertEqual(self.complete("st"), ["status"])
        self.assertEqual(sorted(self.complete("help", "")), sorted(names))

    def test_every_option_of_every_command(self):
        for command, found in self.commands:
            flags = sorted(flag for option in found.options() for flag in option.flags)
            self.assertEqual(sorted(self.complete(command, "-")), flags, command)

    def test_values(self):
        self.assertEqual(self.complete("set", "--mode", ""), ["auto", "serial", "concurrent"])
        self.assertEqual(self.complete("set", "--mode", "=", "c"), ["concurrent"])
        self.assertEqual(self.complete("set", "--mode", "="), ["auto", "serial", "concurrent"])
        self.assertEqual(self.complete("set", "0", "--quantum", "u"), ["unlimited"])
        self.assertEqual(self.complete("set", "--step-delay", ""), [""])
        self.assertEqual(self.complete("set", ""), ["all"])
        self.assertEqual(self.complete("trace", "--runtime-dir", "/")[0], "compopt -o dirnames")

    def test_after_run_comes_a_program(self):
        self.assertIn("bash", self.complete("run", "bas"))
        self.assertEqual(self.complete("run", "ls", "--")[0], "command at 2")
        self.assertEqual(self.complete("run", "--no-gang", "--name", "x", "ls", "-")[0], "command at 5")
        self.assertEqual(self.complete("run", "--name", "=", "x", "ls", "-")[0], "command at 5")
        self.assertEqual(self.complete("run", "-v", "--", "--odd", "-")[0], "command at 4")
        self.assertEqual(self.complete("run", "--name", ""), [""])
        self.assertIn("bash", self.complete("submit", "--array", "0-9", "bas"))
        self.assertEqual(self.complete("submit", "--hold", "--mem", "=", "20G", "ls", "-")[0], "command at 6")

    def test_actions(self):
        self.assertEqual(sorted(self.complete("admin", "")), ["drain", "limits", "pause", "resume", "show", "unpause"])
        self.assertEqual(self.complete("admin", "drain", ""), [""])

    def test_ids_of_jobs_are_asked_for(self):
        asked = pathlib.Path(self.folder.name) / "asked"
        asked.mkdir()
        fake = asked / "gpumux"
        fake.write_text('#!/bin/sh\ncase "$*" in "queue --mine --format label") printf "17\\n18_3\\n" ;;\n'
                        '"history --mine --format label") echo 16 ;; esac\n', encoding="utf-8")
        fake.chmod(0o755)
        path = f"{asked}:{os.defpath}"
        for command in ("cancel", "attach", "hold", "release"):
            self.assertEqual(self.complete(command, "", path=path), ["17", "18_3"])
        for command in ("logs", "wait", "show"):
            self.assertEqual(self.complete(command, "", path=path), ["17", "18_3", "16"])
        self.assertEqual(self.complete("cancel", "17", "18", path=path), ["18_3"])
        self.assertEqual(self.complete("wait", ""), [""])

    def test_the_other_shells_read_theirs(self):
        scripts = {"zsh": make_completions.zsh(self.whole, self.commands),
                   "fish": make_completions.fish(self.whole, self.commands)}
        for shell, script in scripts.items():
            for command, found in self.commands:
                self.assertIn(command, script)
                for option in found.options():
                    self.assertIn(option.flags[-1].lstrip("-"), script)
            if shutil.which(shell):
                file = pathlib.Path(self.folder.name) / shell
                file.write_text(script, encoding="utf-8")
                answer = subprocess.run([shell, "-n", file], capture_output=True, text=True, timeout=20)
                self.assertEqual((answer.returncode, answer.stderr), (0, ""), shell)

    def test_odd_characters_stay_text(self):
        option = help_text.Option(["--odd"], "[X]", "it's [a]: $(b) `c`")
        spec = make_completions.zsh_option(option)[0]
        self.assertEqual(shlex.split(spec), ["(--odd)--odd=[it's \\[a\\]\\: $(b) `c`]::X:"])


if __name__ == "__main__":
    if BIN is None:
        sys.exit("which folder has the programs?")
    unittest.main()
