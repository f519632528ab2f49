#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands that documents show work.

Method: for each document one bash runs all of its command blocks in order, but for those that are marked as needing
more than this machine has (tools/documents.py). It runs them as a new user would, with a HOME of its own, on simulated
GPUs, in a folder that has dist/ and the programs of tests/documents/. Every command ends with the status that the block
says, 0 by default. Output that a console shows is compared loosely: most of its words must be in what the command
printed.
"""

import math
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
import documents  # noqa: E402
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402

# A document's commands take a few seconds together. This is for a machine that others keep busy.
LIMIT = 400
# How long a command that goes on until the user ends it is left to run.
LOOK = 2
# Part of the words that a document shows below a command and that the command must have printed.
SHARED_WORDS = 0.75

# A command that only looks is repeated for this long until it shows what the document shows.
PATIENCE = 60
LOOKS = re.compile(r"(\w+=\S+ )*gpumux (--simulated )?(status|trace|queue|history|report|doctor)\b")

PRELUDE = f"""\
exec 3>&1
set -e
trap 'echo "stopped $at $?" >&3' EXIT
# Whether the file $2 has at least $3 of the patterns in the file $1.
shows() {{
  local count=0 pattern
  while IFS= read -r pattern; do if grep -qi -e "$pattern" "$2"; then count=$((count + 1)); fi; done <"$1"
  [ "$count" -ge "$3" ]
}}
# Programs in the background end by themselves with 0, or the document has ended them (143).
background=()
newest=
note_background() {{ if [ "${{!:-}}" != "$newest" ]; then newest=$!; background+=("$!"); fi; }}
settle() {{
  local program status
  for program in "${{background[@]}}"; do
    status=0
    builtin wait "$program" || status=$?
    case $status in 0 | 143) ;; *) return "$status" ;; esac
  done
  builtin wait
  background=() newest=${{!:-}}
}}
wait() {{ if [ $# = 0 ]; then settle; else builtin wait "$@"; fi; }}
# On a busy machine a program may have ended before the document ends it.
kill() {{ builtin kill "$@" || true; }}
in_time() {{ [ "$SECONDS" -lt "$deadline" ] && sleep 0.2; }}
"""
POSTLUDE = """\
at=background
settle
trap - EXIT
"""


def words(lines):
    return {word.lower() for line in lines for word in re.findall(r"[A-Za-z][A-Za-z-]{2,}", line)}


def run(command, exits, output, path, names):
    """The shell's commands that run one command of a document, and stop the script if it fails. A command that looks
    is repeated until it shows enough of the words, and all of the programs' `names` that the document shows there. A
    name that begins a line of the document must begin a line: a job has a name before it has a program."""
    if documents.ENDLESS.search(command):
        # Ended as by Ctrl+C, with any status.
        return f"{{\ntimeout --signal=INT --kill-after=20 {LOOK} {command}\n}} >{path} 2>&1 || true"
    wanted = words(output)
    if exits:
        once = f"status=0\n{{\n{command}\n}} >{path} 2>&1 || status=$?\n"
        check = f'[ "$status" = {exits} ]'
    else:
        once = f"{{\n{command}\n}} >{path} 2>&1\n"
        check = "true"
    if not wanted or not LOOKS.match(command):
        return once + check
    path.with_suffix(".words").write_text("".join(word + "\n" for word in sorted(wanted)), encoding="utf-8")
    need = math.ceil(SHARED_WORDS * len(wanted))
    named = path.with_suffix(".names")
    first = {line.split()[0].lower() for line in output if line.strip()}
    named.write_text("".join(("^ *" if word in first else "") + word + "\n" for word in sorted(wanted & names)),
                     encoding="utf-8")
    return (f"deadline=$((SECONDS + {PATIENCE}))\n"
            f"while {once} ! {{ {check} && shows {path.with_suffix('.words')} {path} {need} &&"
            f" shows {named} {path} {len(wanted & names)}; }}\n"
            f"do in_time || break; done\n{check}")


def script_of(text, outputs):
    """The script that runs a document, and its commands as (place, output shown, path of the output printed)."""
    parts, shown = [PRELUDE], []
    names = {name.lower() for name in re.findall(r"--name ([A-Za-z-]+)", text)}
    for block in documents.blocks(text):
        if block.language not in documents.COMMANDS or block.needs:
            continue
        pairs = documents.commands(block)
        for number, (command, output) in enumerate(pairs):
            path = outputs / f"{len(shown)}.txt"
            parts.append(f"at={len(shown)}")
            exits = block.exits if number == len(pairs) - 1 else 0
            parts += [run(command, exits, output, path, names), "note_background"]
            shown.append((f"line {block.line}: {command}", output, path))
    return "\n".join([*parts, POSTLUDE]), shown


class Documents(GpumuxTest):
    gpus = 2
    machine_settings = {"memory": "80GiB"}  # documents speak of memory as GPUs have it
    daemon_settings = {}

    def make_folder(self):
        """The folder of a new user after `make build`, with programs to run."""
        folder = pathlib.Path(self.directory) / "gpumux"
        (folder / "dist" / "demo").mkdir(parents=True)
        for name, target in (("bin", paths.BUILD / "bin"), ("lib", paths.BUILD / "lib"),
                             ("sim", paths.SIM_LIBRARIES), ("demo/gpumux_demo", paths.BUILD / "bin" / "gpumux_demo")):
            (folder / "dist" / name).symlink_to(target)
        for name in ("packaging", "tools", "deploy"):
            (folder / name).symlink_to(ROOT / name)
        for program in (ROOT / "tests" / "documents").glob("*.py"):
            shutil.copy(program, folder)
        return folder

    def check(self, name):
        text = (ROOT / name).read_text(encoding="utf-8")
        outputs = pathlib.Path(self.directory) / "outputs"
        outputs.mkdir()
        folder = self.make_folder()
        home = pathlib.Path(self.directory) / "home"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
        script, shown = script_of(text, outputs)
        path = pathlib.Path(self.directory) / "script.sh"
        path.write_text(script, encoding="utf-8")
        self.runtime_dir = str(home / "run")
        os.mkdir(self.runtime_dir, 0o700)
        # `gpumux --simulated` has a machine of its own next to this one.
        self.addCleanup(shutil.rmtree, f"{self.machine.directory}-simulated", ignore_errors=True)
        self.start_daemon()
        environment = self.environment(
            preload=False, HOME=home, PATH=f"{folder}/dist/bin:{home}/bin:{os.environ['PATH']}", TMPDIR=self.directory,
            XDG_RUNTIME_DIR="None", XDG_STATE_HOME=home / "state", PYTHONDONTWRITEBYTECODE=1)
        process = self.start_process(["bash", path], name=name, environment=environment, cwd=folder)
        status = process.wait(LIMIT)
        printed = [out.read_text(errors="replace") if out.exists() else "" for _, _, out in shown]
        if status != 0:
            _, at, ended = next(line for line in process.lines if line.startswith("stopped ")).split()
            place = shown[int(at)][0] if at.isdigit() else "a program in the background"
            self.fail(f"{name}, {place}\nended with status {ended}: {printed[int(at)] if at.isdigit() else ''}")
        for (place, output, _), text in zip(shown, printed):
            wanted = words(output)
            missing = wanted - words(text.split("\n"))
            self.assertGreaterEqual(len(wanted) - len(missing), math.ceil(SHARED_WORDS * len(wanted)),
                                    f"{name}, {place} shows words that are not printed: {sorted(missing)}; "
                                    f"printed:\n{text[-3000:]}")


def add_tests():
    for name in documents.names(ROOT, "README.md", "docs/**/*.md", "docs/*.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        if any(block.language in documents.COMMANDS and not block.needs for block in documents.blocks(text)):
            test = "test_" + re.sub(r"\W", "_", name.removesuffix(".md").removeprefix("docs/"))
            setattr(Documents, test, lambda self, name=name: self.check(name))


add_tests()

if __name__ == "__main__":
    main()
