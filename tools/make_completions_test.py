#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: a shell completes what the programs know, and nothing else. Method: the completions of the built gpumux, asked
in bash as bash asks, in fish by its own `complete -C`, and in zsh by keys on a terminal. Without zsh or fish those
tests are skipped.

    tools/make_completions_test.py DIR     DIR has gpumux
"""

import os
import pathlib
import pty
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
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
function=$(complete -p "$1")
function=${function#*-F }
"${function%% *}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

# Ctrl+X writes the line as it has become, and begins a new one.
ZSHRC = """
fpath=({folder} $fpath)
autoload -Uz compinit
compinit -u -D
show() {{ print -r -- "$BUFFER" > {lines}; BUFFER= }}
zle -N show
bindkey '^I' complete-word
bindkey '^X' show
unsetopt beep
print ready > {lines}
"""


class ZshOnATerminal:
    """A zsh with the completion of gpumux. `complete` presses the keys, then Tab."""

    def __init__(self, folder, script, path):
        (folder / "_gpumux").write_text(script, encoding="utf-8")
        self.lines = folder / "lines"
        os.mkfifo(self.lines)
        (folder / ".zshrc").write_text(ZSHRC.format(folder=folder, lines=self.lines), encoding="utf-8")
        self.terminal, theirs = pty.openpty()
        environment = {"PATH": path, "ZDOTDIR": str(folder), "HOME": str(folder), "TERM": "xterm"}
        # Without start-up files of the system, which may ask questions.
        self.shell = subprocess.Popen(["zsh", "-d", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
                                      start_new_session=True)
        os.close(theirs)
        self.drain = threading.Thread(target=self.read_all, daemon=True)
        self.drain.start()
        self.lines.read_text(encoding="utf-8")

    def read_all(self):
        try:
            while os.read(self.terminal, 4096):
                pass
        except OSError:
            pass  # zsh has ended

    def complete(self, line):
        os.write(self.terminal, line.encode() + b"\t\x18")
        return self.lines.read_text(encoding="utf-8").removesuffix("\n")

    def close(self):
        self.shell.kill()
        self.shell.wait()
        self.drain.join()
        os.close(self.terminal)


class CompletionsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.whole, cls.commands = help_text.ask_gpumux(BIN / "gpumux")
        cls.folder = tempfile.TemporaryDirectory()
        cls.others = {name: help_text.ask(BIN / name, name) for name in make_completions.built(BIN)}
        cls.file("gpumux").write_text(make_completions.bash(cls.commands), encoding="utf-8")
        for name, found in cls.others.items():
            cls.file(name).write_text(make_completions.bash_program(name, found), encoding="utf-8")
        # A machine with GPUs, programs and jobs.
        fake = cls.file("asked") / "gpumux"
        fake.parent.mkdir()
        fake.write_text("""#!/bin/sh
case "$*" in
  "__complete gpus") printf '0\\n1\\n' ;;
  "__complete users") echo eva ;;
  "__complete tenants") printf '4711\\n4712\\n' ;;
  "__complete jobs") printf '17\\n18_3\\n' ;;
  "__complete all-jobs") printf '17\\n18_3\\n16\\n' ;;
  "__complete conditions") printf 'ok:17\\nany:17\\nok:18_3\\nany:18_3\\n' ;;
esac
""", encoding="utf-8")
        fake.chmod(0o755)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def file(cls, name):
        return pathlib.Path(cls.folder.name) / name

    def complete(self, *words, program="gpumux", has_gpumux=True):
        path = f"{self.file('asked')}:{os.defpath}" if has_gpumux else os.defpath
        answer = subprocess.run(["bash", "--norc", "-c", ASK, "bash", self.file(program), program, *words], text=True,
                                capture_output=True, check=True, timeout=60, env={**os.environ, "PATH": path})
        self.assertEqual(answer.stderr, "")
        return answer.stdout.split("\n")[:-1]

    def test_commands(self):
        names = [command for command, _ in self.commands]
        self.assertEqual(sorted(self.complete("")), sorted([*names, "help"]))
        self.assertEqual(self.complete("st"), ["status"])
        self.assertEqual(sorted(self.complete("help", "")), sorted(names))

    def test_commands_on_the_simulated_machine(self):
        self.assertEqual(self.complete("--s"), ["--simulated"])
        self.assertEqual(self.complete("--simulated", "st"), ["status"])
        self.assertEqual(self.complete("--simulated", "set", "--mode", "c"), ["concurrent"])

    def test_every_option_of_every_command(self):
        for command, found in self.commands:
            flags = sorted(flag for option in found.options() for flag in option.flags)
            self.assertEqual(sorted(self.complete(command, "-")), flags, command)

    def test_values(self):
        self.assertEqual(self.complete("set", "--mode", ""), ["auto", "serial", "concurrent"])
        self.assertEqual(self.complete("set", "--mode", "=", "c"), ["concurrent"])
        self.assertEqual(self.complete("set", "--mode", "="), ["auto", "serial", "concurrent"])
        self.assertEqual(self.complete("set", "0", "--quantum", "u"), ["unlimited"])
        self.assertEqual(self.complete("set", "--stall-timeout", ""), [""])
        self.assertEqual(self.complete("set", ""), ["all", "0", "1"])
        self.assertEqual(self.complete("set", "--tenant", ""), ["4711", "4712"])
        self.assertEqual(self.complete("set", "--job", "1"), ["17", "18_3"])
        self.assertEqual(self.complete("set", "--priority", ""), ["default"])
        self.assertEqual(self.complete("trace", "--gpu", ""), ["0", "1"])
        self.assertEqual(self.complete("queue", "--user", "e"), ["eva"])
        self.assertEqual(self.complete("report", "--by", ""), ["user", "job", "pod", "program"])
        self.assertEqual(self.complete("submit", "--on-time-limit", "c"), ["cancel"])
        self.assertEqual(self.complete("trace", "--runtime-dir", "/")[0], "compopt -o dirnames")

    def test_lists(self):
        fields = self.complete("queue", "--format", "")
        self.assertEqual(fields[0], "compopt -o nospace")
        self.assertIn("state", fields)
        self.assertEqual(self.complete("queue", "--format", "id,sta"), [
            "compopt -o nospace", "id,state", "id,started", "id,starts-in"])
        self.assertEqual(self.complete("history", "--state", "failed,c"), ["compopt -o nospace", "failed,cancelled"])
        self.assertEqual(self.complete("submit", "--gpu-ids", "=", "1,"), ["compopt -o nospace", "1,0"])

    def test_conditions(self):
        self.assertEqual(self.complete("submit", "--after", "o"), ["ok:17", "ok:18_3"])
        # bash takes the colon for the end of a word.
        self.assertEqual(self.complete("submit", "--after", "ok", ":"), ["17", "18_3"])
        self.assertEqual(self.complete("submit", "--after", "=", "ok", ":", "18"), ["18_3"])
        self.assertEqual(self.complete("submit", "--after", "ok", ":", "18", "--na"), ["--name"])

    def test_other_programs(self):
        for name, found in self.others.items():
            flags = sorted(flag for option in found.options() for flag in option.flags)
            self.assertEqual(sorted(self.complete("-", program=name)), flags, name)
        self.assertEqual(self.complete("--log-level", "w", program="gpumuxd"), ["warning"])
        self.assertEqual(self.complete("--mode", "", program="gpumuxd"), ["auto", "serial", "concurrent"])
        self.assertEqual(self.complete("--gpus", "0,", program="gpumuxd"), ["compopt -o nospace", "0,1"])
        self.assertEqual(self.complete("--config", "", program="gpumuxd")[0], "compopt -o default")
        if "gpumux-kubelet-plugin" in self.others:
            self.assertEqual(self.complete("--api", "d", program="gpumux-kubelet-plugin"), ["device-plugin", "dra"])
        self.assertEqual(self.complete("1", program="mgpu_cancel"), ["17", "18_3"])
        self.assertEqual(self.complete("--gpu-ids", "", program="mgpu_srun"), ["compopt -o nospace", "0", "1"])
        self.assertEqual(self.complete("--gpu-ids", "0", "ls", "-", program="mgpu_srun")[0], "command at 3")

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
        self.assertEqual(self.complete("admin", "drain", ""), ["all", "0", "1"])
        self.assertEqual(self.complete("admin", "limits", ""), ["eva"])
        self.assertEqual(self.complete("admin", "limits", "eva", ""), [
            "compopt -o nospace", "running=", "queued=", "gpus=", "priority_cap=", "default"])
        self.assertEqual(self.complete("admin", "limits", "eva", "running", "="), ["unlimited"])
        self.assertEqual(self.complete("admin", "limits", "eva", "running", "=", "u"), ["unlimited"])

    def test_ids_of_jobs_are_asked_for(self):
        for command in ("cancel", "attach", "hold", "release", "suspend", "resume"):
            self.assertEqual(self.complete(command, ""), ["17", "18_3"])
        for command in ("logs", "wait", "show"):
            self.assertEqual(self.complete(command, ""), ["17", "18_3", "16"])
        self.assertEqual(self.complete("cancel", "17", "18"), ["18_3"])
        self.assertEqual(self.complete("wait", "", has_gpumux=False), [""])

    def test_the_other_shells_read_theirs(self):
        scripts = {"zsh": make_completions.zsh(self.whole, self.commands),
                   "fish": make_completions.fish(self.whole, self.commands)}
        for name, found in self.others.items():
            scripts[f"zsh {name}"] = make_completions.zsh_program(name, found)
            scripts[f"fish {name}"] = make_completions.fish_program(name, found)
            for shell in ("zsh", "fish"):
                for option in found.options():
                    self.assertIn(option.flags[-1].lstrip("-"), scripts[f"{shell} {name}"])
        self.read_by_their_shells(scripts)
        for shell in ("zsh", "fish"):
            script = scripts[shell]
            for command, found in self.commands:
                self.assertIn(command, script)
                for option in found.options():
                    self.assertIn(option.flags[-1].lstrip("-"), script)

    def read_by_their_shells(self, scripts):
        for name, script in scripts.items():
            shell = name.split()[0]
            if shutil.which(shell):
                file = pathlib.Path(self.folder.name) / name.replace(" ", "-")
                file.write_text(script, encoding="utf-8")
                answer = subprocess.run([shell, "-n", file], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual((answer.returncode, answer.stderr), (0, ""), name)

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_completes(self):
        script = self.file("gpumux.fish")
        script.write_text(make_completions.fish(self.whole, self.commands), encoding="utf-8")

        def complete(line):
            command = f"source {script}; complete -C {shlex.quote(line)}"
            path = f"{self.file('asked')}:{os.defpath}"
            answer = subprocess.run(["fish", "--no-config", "-c", command], text=True, capture_output=True, check=True,
                                    timeout=60, env={"PATH": path, "HOME": self.folder.name})
            self.assertEqual(answer.stderr, "")
            return [found.split("\t")[0] for found in answer.stdout.splitlines()]

        self.assertEqual(complete("gpumux st"), ["status"])
        self.assertEqual(complete("gpumux status --js"), ["--json"])
        self.assertEqual(sorted(complete("gpumux set --mode ")), ["auto", "concurrent", "serial"])
        self.assertEqual(complete("gpumux set --mode=c"), ["--mode=concurrent"])
        self.assertEqual(sorted(complete("gpumux show 1")), ["16", "17", "18_3"])
        self.assertEqual(sorted(complete("gpumux trace --gpu ")), ["0", "1"])
        self.assertEqual(complete("gpumux admin dr"), ["drain"])
        self.assertEqual(complete("gpumux --simulated st"), ["status"])
        self.assertEqual(complete("gpumux --simulated set --mode=c"), ["--mode=concurrent"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_completes(self):
        folder = self.file("zsh-home")
        folder.mkdir()
        zsh = ZshOnATerminal(folder, make_completions.zsh(self.whole, self.commands),
                             f"{self.file('asked')}:{os.defpath}")
        self.addCleanup(zsh.close)
        for line, completed in (("gpumux statu", "gpumux status "), ("gpumux status --js", "gpumux status --json "),
                                ("gpumux set --mode s", "gpumux set --mode serial "),
                                ("gpumux set --mode=c", "gpumux set --mode=concurrent "),
                                ("gpumux show 18", "gpumux show 18_3 "), ("gpumux queue --user e",
                                                                          "gpumux queue --user eva "),
                                ("gpumux report --by po", "gpumux report --by pod "),
                                ("gpumux set --tenant 4712 --prior", "gpumux set --tenant 4712 --priority"),
                                ("gpumux admin dr", "gpumux admin drain "),
                                ("gpumux --simulated statu", "gpumux --simulated status "),
                                ("gpumux --simulated set --mode s", "gpumux --simulated set --mode serial "),
                                ("gpumux help sta", "gpumux help status ")):
            self.assertEqual(zsh.complete(line), completed)

    def test_odd_characters_stay_text(self):
        option = help_text.Option(["--odd"], "[X]", "it's [a]: $(b) `c`")
        spec = make_completions.zsh_option(option, make_completions.Kind())[0]
        self.assertEqual(shlex.split(spec), ["(--odd)--odd=[it's \\[a\\]\\: $(b) `c`]::X:"])


if __name__ == "__main__":
    if BIN is None:
        sys.exit("which folder has the programs?")
    unittest.main()
