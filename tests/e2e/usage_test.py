#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A wrong command line is refused in our words: what was wrong, named as it was typed, and what to do.

Method: a table of command lines with all that each prints; then the same mistakes with every option that --help lists.
No daemon runs. Everything is printed on stderr, in lines of at most 100 characters, and exits with 2.
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import help_text  # noqa: E402
from framework import paths  # noqa: E402
from framework.waiting import HANG  # noqa: E402

BIN = paths.BUILD / "bin"
# Words of the library that reads command lines.
FOREIGN = ("Could not convert", "not expected", "is required", "excludes", "required ", "REQUIRED")

SEE = "See `{} --help`.\n"

# (command line, what it prints before "See `... --help`.")
PARSED = [
    ("gpumux run --shaer 2 -- true", "gpumux run: there is no option '--shaer'. Did you mean '--share'?"),
    ("gpumux run --mem 20 -- true", "gpumux run: --mem: '20' has no unit: write 20M or 20G"),
    ("gpumux run --mem 20X -- true",
     "gpumux run: --mem: unknown unit of memory in '20X' (use K, M, G or T)"),
    ("gpumux run --priority high -- true",
     "gpumux run: --priority: 'high': a priority is a whole number from -1000 to 1000, higher first"),
    # No guess leads to --mps: programs under MPS share faults.
    ("gpumux run --gpu 0 -- true", "gpumux run: there is no option '--gpu'"),
    ("gpumux run --msp -- true", "gpumux run: there is no option '--msp'"),
    ("gpumux submit --mp -- true", "gpumux submit: there is no option '--mp'"),
    ("gpumux run --no-mp -- true", "gpumux run: there is no option '--no-mp'. Did you mean '--no-mps'?"),
    ("gpumux run --no-gang --gang x -- true", "gpumux run: --gang and --no-gang cannot be combined"),
    ("gpumux run", "gpumux run: no program was named\nUsage: gpumux run [OPTIONS] [--] PROGRAM [ARGUMENTS...]"),
    ("gpumux status --watch never", "gpumux status: --watch: 'never' is not a number of seconds from 0.1 to 86400"),
    ("gpumux status 7 --json", "gpumux status: --json and GPU cannot be combined"),
    ("gpumux status --json=yes", "gpumux status: --json takes no value"),
    ("gpumux top --watch", "gpumux top: there is no option '--watch'"),
    ("gpumux set --mode", "gpumux set: --mode needs a value: --mode WORD"),
    ("gpumux trace --gpu=", "gpumux trace: --gpu needs a value: --gpu GPU"),
    ("gpumux doctor --strcit", "gpumux doctor: there is no option '--strcit'. Did you mean '--strict'?"),
    ("gpumux submit --gpus 1 --gpu-ids 0 -- true", "gpumux submit: --gpus and --gpu-ids cannot be combined"),
    ("gpumux submit --gpu-ids= -- true", "gpumux submit: --gpu-ids needs a value: --gpu-ids IDS"),
    ("gpumux submit --name a --name b -- true", "gpumux submit: --name is given twice"),
    ("gpumux submit --output -- true", "gpumux submit: --output needs a value: --output PATTERN"),
    ("gpumux run --name -- true", "gpumux run: --name needs a value: --name NAME"),
    ("gpumux set --prio", "gpumux set: there is no option '--prio'. Did you mean '--priority'?"),
    ("gpumux queue -u", "gpumux queue: -u needs a value: -u USER"),
    ("gpumux queue --mine --user eva", "gpumux queue: --user and --mine cannot be combined"),
    ("gpumux show", "gpumux show: ID is missing"),
    ("gpumux cancel --evrybody", "gpumux cancel: there is no option '--evrybody'. Did you mean '--everybody'?"),
    ("gpumux logs -n some 1", "gpumux logs: -n: 'some' is not a whole number from 0 to 1000000000"),
    ("gpumux attach", "gpumux attach: ID is missing"),
    ("gpumux wait --colour", "gpumux wait: there is no option '--colour'"),
    ("gpumux hold --everybody --all", "gpumux hold: --all and --everybody cannot be combined"),
    ("gpumux release -x", "gpumux release: there is no option '-x'"),
    ("gpumux suspend --forse", "gpumux suspend: there is no option '--forse'"),
    ("gpumux resume -x", "gpumux resume: there is no option '-x'"),
    ("gpumux requeue -x", "gpumux requeue: there is no option '-x'"),
    ("gpumux history -n 0", "gpumux history: -n: '0' is not a whole number from 1 to 1000000000"),
    ("gpumux report --by colour", "gpumux report: --by: 'colour' is none of user, job, pod, program"),
    ("gpumux admin", "gpumux admin: ACTION is missing: write show, pause, unpause, drain, resume or limits"),
    ("gpumux web --port 80x", "gpumux web: --port: '80x' is not a port: name one from 1 to 65535"),
    ("gpumux web --port 65536", "gpumux web: --port: '65536' is not a port: name one from 1 to 65535"),
    ("gpumux version now", "gpumux version: the word 'now' is one too many"),
    ("gpumuxd 3 --max-job-tim", "gpumuxd: there is no option '--max-job-tim'. Did you mean '--max-job-time'?"),
    ("gpumuxd --notify-fd three", "gpumuxd: --notify-fd: 'three' is not a number"),
    ("gpumuxd --gpus", "gpumuxd: --gpus needs a value: --gpus GPUS"),
    ("gpumuxd now", "gpumuxd: the word 'now' is one too many"),
    ("gpumux-kubelet-plugin --chek",
     "gpumux-kubelet-plugin: there is no option '--chek'. Did you mean '--check'?"),
    ("mgpu_srun -- true", "mgpu_srun: --gpu-ids is missing"),
    ("mgpu_srun --gpu_ids 0 -- true", "mgpu_srun: there is no option '--gpu_ids'. Did you mean '--gpu-ids'?"),
    ("mgpu_queue all", "mgpu_queue: the word 'all' is one too many"),
    ("mgpu_cancel", "mgpu_cancel: ID is missing"),
    ("mgpu_scheduler_server --max-job-time",
     "mgpu_scheduler_server: --max-job-time needs a value: --max-job-time SECONDS"),
]

# (command line, all that it prints)
SAID = [
    ("gpumux stauts", "gpumux: there is no command 'stauts'. Did you mean `gpumux status`?"),
    ("gpumux ps", "gpumux: there is no command 'ps'. Did you mean `gpumux status`?"),
    ("gpumux squeue", "gpumux: there is no command 'squeue'. Did you mean `gpumux queue`?"),
    ("gpumux --simulated", "gpumux: --simulated needs a command, such as `gpumux --simulated status`"),
    ("gpumux submit --mem 20 -- true", "gpumux submit: --mem: '20' has no unit: write 20M or 20G"),
    ("gpumux submit -- ", "gpumux submit: no command was named: write it after --"),
    ("gpumux cancel", "gpumux cancel: no job was named: name ids, --all (yours), --user NAME or --everybody"),
    ("gpumux show x", "gpumux show: 'x' is no job's id: it is a number such as 17, or 17_3 for element 3 of array 17;\n"
     "  `gpumux queue` lists them"),
    ("gpumux set", "gpumux set: nothing to change: name at least one setting, such as --quantum 50ms"),
    ("gpumux set --tenant a --mem 4G",
     "gpumux set: --time-limit, --mem, --gpus and --gpu-ids need a job: add --job ID"),
    ("gpumuxd --exit-when-unused soon", "gpumuxd: --exit-when-unused must be a time such as 10s"),
]


# Parts that a build may leave out: programs, and one command.
PROGRAMS = [name for name in ("gpumuxd", "gpumux-kubelet-plugin", "mgpu_srun", "mgpu_queue", "mgpu_cancel",
                              "mgpu_scheduler_server") if (BIN / name).exists()]
HAS_WEB = "web" in {name for name, _ in help_text.ask_gpumux(BIN / "gpumux")[1]}


def is_built(words):
    program, _, rest = words.partition(" ")
    return (HAS_WEB or not rest.startswith("web")) if program == "gpumux" else program in PROGRAMS


class Usage(unittest.TestCase):

    def refused(self, words):
        answer = subprocess.run([BIN / words[0], *words[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=HANG, check=False, env={"PATH": os.defpath, "GPUMUX_RUNTIME_DIR": "/nowhere"})
        err = answer.stderr
        self.assertEqual((answer.returncode, answer.stdout), (2, ""), f"{words}: {err}")
        for line in err.splitlines():
            self.assertLessEqual(len(line), 100, line)
        for text in FOREIGN:
            self.assertNotIn(text, err)
        return err

    def test_the_whole_text(self):
        for words, text in filter(lambda line: is_built(line[0]), PARSED):
            program = " ".join(words.split(" ")[:2 if words.startswith("gpumux ") else 1])
            self.assertEqual(self.refused(words.split(" ")), f"{text}\n{SEE.format(program)}", words)
        for words, text in SAID:
            self.assertEqual(self.refused(words.split(" ")), text + "\n", words)

    @unittest.skipIf(HAS_WEB, "this build has the web view")
    def test_web_in_a_build_without_it(self):
        self.assertEqual(self.refused(["gpumux", "web"]),
                         "gpumux: this gpumux was built without `gpumux web` (GPUMUX_WEB=OFF)\n")

    def test_every_command_is_in_the_table(self):
        told = {tuple(words.split(" ")[:2]) for words, _ in PARSED if " " in words and is_built(words)}
        _, commands = help_text.ask_gpumux(BIN / "gpumux")
        self.assertEqual({name for name, _ in commands}, {name for program, name in told if program == "gpumux"})

    def test_help_fits_80_columns(self):
        """A terminal has 80 columns at least. So an example, which cannot be broken, is short."""
        _, commands = help_text.ask_gpumux(BIN / "gpumux")
        asked = [["gpumux"], *(["gpumux", name] for name, _ in commands)]
        asked += [[name] for name in PROGRAMS]
        for words in asked:
            text = subprocess.run([BIN / words[0], *words[1:], "--help"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=HANG, check=True).stdout
            self.assertIn("Usage: ", text)
            for line in text.splitlines():
                self.assertLessEqual(len(line), 80, f"{words}: {line}")

    def test_every_option(self):
        _, commands = help_text.ask_gpumux(BIN / "gpumux")
        programs = [(["gpumux", name], found) for name, found in commands]
        programs += [([name], help_text.ask(BIN / name, name))
                     for name in ("gpumuxd", "gpumux-kubelet-plugin", "mgpu_srun") if name in PROGRAMS]
        for words, found in programs:
            name = " ".join(words)
            for option in found.options():
                flag = option.flags[-1]
                if flag in ("--help", "--version"):
                    continue
                if not option.placeholder:
                    want = f"{name}: {flag} takes no value\n"
                    got = self.refused([*words, f"{flag}=soon"]) if flag.startswith("--") else want
                elif option.placeholder.startswith("["):
                    continue    # its value may be left out
                else:
                    want = f"{name}: {flag} needs a value: {flag} {option.placeholder}\n"
                    got = self.refused([*words, flag])
                self.assertEqual(got, want + SEE.format(name))


if __name__ == "__main__":
    unittest.main()
