# SPDX-License-Identifier: Apache-2.0
"""The base of every scenario: a machine, a daemon, programs; gone when the test is over, shown when it fails."""

import contextlib
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import unittest

from . import paths
from .daemon import Daemon, errors_in
from .machine import Machine
from .process import Process
from .waiting import HANG, wait_until


class GpumuxTest(unittest.TestCase):
    gpus = 1
    machine_settings = {}
    # Small programs fit together, and would all run at once by default: most tests are about turns.
    daemon_settings = {"mode": "serial"}

    def setUp(self):
        self.started_at = time.monotonic()
        self.failed = False
        self.directory = tempfile.mkdtemp(prefix="gpumux-e2e-")
        self.machine = Machine(self.gpus, **self.machine_settings)
        self.runtime_dir = os.path.join(self.directory, "run")
        os.mkdir(self.runtime_dir, 0o700)
        # Programs that are started with until=self.enough go on until this file is there.
        self.enough = os.path.join(self.directory, "enough")
        self.programs = []
        self.daemons = []
        self.expected_errors = []
        self.addCleanup(self._clean)

    def _callTestMethod(self, method):
        # A clean-up cannot ask unittest whether the test failed.
        try:
            return super()._callTestMethod(method)
        except BaseException:
            self.failed = True
            raise

    def _clean(self):
        for process in self.programs:
            process.end()
        for daemon in self.daemons:
            daemon.end()
        defects = self._defects_of_daemons()
        if self.failed or defects:
            self._show()
        self._remove_locks()
        self.machine.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.assertEqual(defects, [], "a daemon failed, or logged errors that this test does not expect")

    def _remove_locks(self):
        """Removes the locks that killed daemons of root leave. On a real machine the next daemon takes them over."""
        for link in pathlib.Path("/run/gpumux-locks").glob("*.dir"):
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(self.directory):
                    for suffix in (".sock", ".lock", ".dir"):
                        link.with_suffix(suffix).unlink(missing_ok=True)

    def expect_error(self, pattern):
        """A daemon of this test may log errors in which the regular expression is found. Any other fails the test."""
        self.expected_errors.append(re.compile(pattern))

    def _defects_of_daemons(self):
        said = [line for daemon in self.daemons for process in daemon.processes for line in process.errors]
        # Daemons that a program of the test has started, on its terminal or in the background.
        said += [line for program in self.programs for line in program.errors]
        for log in pathlib.Path(self.directory).rglob("gpumuxd.log"):
            said += log.read_text(errors="replace").splitlines()
        defects = [end for daemon in self.daemons for end in daemon.unexpected_ends()]
        return defects + [line for line in errors_in(said)
                          if not any(pattern.search(line) for pattern in self.expected_errors)]

    def _show(self):
        print(f"---- {self.id()}: what the processes said", file=sys.stderr)
        for process in self.programs:
            print(f"{process.name} [{process.pid}] {' '.join(process.arguments)} -> {process.code}", file=sys.stderr)
            for line in process.lines[-30:] + process.errors[-30:]:
                print(f"  {line}", file=sys.stderr)
        for daemon in self.daemons:
            print(f"{daemon.name}:\n{daemon.log()}", file=sys.stderr)
            for event in daemon.trace.events()[-400:]:
                print(f"  {event}", file=sys.stderr)

    # ---- starting things

    def start_daemon(self, name="gpumuxd", runtime_dir=None, machine=None, arguments=(), state_dir=None, program=None,
                     **settings):
        daemon = Daemon(machine or self.machine, runtime_dir or self.runtime_dir, {**self.daemon_settings, **settings},
                        arguments, name, state_dir)
        daemon.program = program or daemon.program
        self.daemons.append(daemon)
        return daemon.start()

    def environment(self, preload=True, **variables):
        """The environment of a user's shell: nothing of the tests' own environment but the path."""
        environment = {"PATH": os.environ["PATH"], "HOME": self.directory, "GPUMUX_RUNTIME_DIR": self.runtime_dir,
                       **self.machine.environment()}
        if preload:
            environment["LD_PRELOAD"] = str(paths.LIBRARY)
        environment.update({key: str(value) for key, value in variables.items()})
        return {key: value for key, value in environment.items() if value != "None"}

    def start_process(self, arguments, name=None, environment=None, **popen):
        environment = dict(environment or self.environment())
        emulator = []
        if paths.EMULATOR and paths.PROGRAMS in pathlib.Path(arguments[0]).parents:
            # The emulator's own loader must not see it.
            preload = environment.pop("LD_PRELOAD", "")
            emulator = [*paths.EMULATOR, "-E", f"LD_PRELOAD={preload}"]
        process = Process(arguments, environment, name=name, emulator=emulator, **popen)
        self.programs.append(process)
        return process

    def start(self, program, *arguments, name=None, preload=True, variables=None, **options):
        """One of tests/programs with --options: start("worker", steps=10, step_us=200)."""
        command = [paths.PROGRAMS / program, *arguments]
        for key, value in options.items():
            command += ["--" + key.replace("_", "-"), str(value)]
        environment = self.environment(preload, **(variables or {}))
        return self.start_process(command, name=name or program, environment=environment)

    def native_digest(self, **options):
        """A worker's digest without gpumux."""
        options = {key: value for key, value in options.items() if key not in ("log", "hold", "say_every", "pause_us")}
        options["step_us"] = 0
        native = self.start("worker", name="native worker", preload=False, **options).expect_success()
        return native.field("digest")

    def work_until(self, condition, what, *programs, timeout=HANG, **natively):
        """These programs, started with until=self.enough, work until the condition holds. Each has then computed what
        it computes without gpumux (there with the options `natively`)."""
        def holds():
            for program in programs:
                if program.code is not None:
                    self.fail(f"{program.name} ended with {program.code} while this was waited for: {what}")
            return condition()

        wait_until(holds, timeout, what, poll=0.01)
        pathlib.Path(self.enough).touch()
        for program in programs:
            program.expect_success(timeout=HANG)
        os.unlink(self.enough)
        for program in programs:
            self.compare_with_native(program, **natively)

    def compare_with_native(self, program, **natively):
        """The same program, doing as much as it says that this one has done, computes the same without gpumux."""
        again = next((line.split()[1:] for line in program.lines if line.startswith("again ")), None)
        if again is None:
            return  # a program that checks by itself what it computes
        command, options = program.arguments[:1], program.arguments[1:]
        for option, value in zip(options[::2], options[1::2]):
            if option not in ("--until", "--log", "--hold", "--say-every", "--pause-us", "--watch"):
                command += [option, "0" if option == "--step-us" else value]
        self.wait_memory_back()
        command += [part for option, value in natively.items() for part in (f"--{option}", str(value))]
        native = self.start_process(command + again, name=f"native {program.name}",
                                    environment=self.environment(preload=False))
        native.expect_success(timeout=HANG)
        self.assertEqual(program.field("digest"), native.field("digest"), program.name)

    def wait_memory_back(self):
        """The memory of a program that has ended is the GPU's again when the daemon counts none as returning."""
        for daemon in self.daemons:
            wait_until(lambda daemon=daemon: daemon.process.code is not None or
                       all(gpu["memory"]["returning_bytes"] == 0 for gpu in daemon.api.status()["gpus"]), HANG,
                       "the GPUs' memory is back")

    # ---- the command

    def gpumux(self, *arguments, name=None, cwd=None, **variables):
        """`gpumux ...`, with what it needs of a build that is not installed."""
        own = {"GPUMUX_LIBRARY": paths.LIBRARY, "GPUMUX_DAEMON": paths.DAEMON, **variables}
        process = Process([paths.COMMAND, *arguments], self.environment(preload=False, **own),
                          name=name or f"gpumux {arguments[0]}", cwd=cwd)
        self.programs.append(process)
        return process

    def ask(self, *arguments, code=0, **variables):
        """The command's standard output, and its standard error without the ends of lines that were too long."""
        process = self.gpumux(*arguments, **variables)
        self.assertEqual(process.wait(), code, process.tail(30))
        return "\n".join(process.lines), "\n".join(process.errors).replace("\n  ", " ")

    # ---- looking at things

    def check_sure_intervals(self, logs, slack_ns=0):
        """Two processes were never certainly at work on one GPU at once (worker --log; for daemons without overlap)."""
        intervals = []
        for owner, path in logs.items():
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    for line in file:
                        parts = line.split()
                        if len(parts) == 3 and line.endswith("\n"):
                            intervals.append((int(parts[0]), int(parts[1]), int(parts[2]), owner))
        intervals.sort()
        latest = {}
        for gpu, begin, end, owner in intervals:
            for other, other_end in latest.get(gpu, {}).items():
                if other != owner and other_end - slack_ns > begin:
                    self.fail(f"GPU {gpu}: {owner} worked from {begin} while {other} worked until {other_end}")
            latest.setdefault(gpu, {})[owner] = max(end, latest.get(gpu, {}).get(owner, 0))
        return len(intervals)


def main():
    unittest.main(module="__main__", verbosity=2)
