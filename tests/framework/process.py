# SPDX-License-Identifier: Apache-2.0
"""A process under test: its output is read as it comes, and shown if the test fails."""

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time

from .waiting import HANG, wait_until


class Process:
    """`lines` grows while the process runs. Each leads a group of its own, so that nothing of it survives the test."""

    def __init__(self, arguments, environment, name=None, cwd=None, emulator=(), **popen):
        self.name = name or os.path.basename(str(arguments[0]))
        self.arguments = [str(argument) for argument in arguments]
        self.lines = []
        self.errors = []
        self.started = time.monotonic()
        self.ended = None
        self.popen = subprocess.Popen(
            [*emulator, *self.arguments], env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, text=True, errors="replace", **{"stdin": subprocess.DEVNULL, **popen})
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True)
                         for pair in ((self.popen.stdout, self.lines), (self.popen.stderr, self.errors))]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self):
        return self.popen.pid

    @property
    def code(self):
        """The exit code once it has ended; negative: the signal that killed it. None: it runs."""
        return self.popen.poll()

    def _read(self, pipe, into):
        with pipe:
            for line in pipe:
                into.append(line.rstrip("\n"))

    def wait_for_line(self, start, timeout=HANG):
        """The first line of its output that starts so."""

        def look():
            found = next((line for line in list(self.lines) if line.startswith(start)), None)
            if found is None and self.code is not None:
                self._join()
                found = next((line for line in self.lines if line.startswith(start)), None)
                if found is None:
                    raise AssertionError(f"{self.name} ended with {self.code} without saying '{start}': {self.tail()}")
            return found

        return wait_until(look, timeout, lambda: f"{self.name} says '{start}'; it said {self.tail()}")

    def count(self, start):
        return sum(1 for line in list(self.lines) if line.startswith(start))

    def field(self, name, start=""):
        """The value of `name=value` in the last line that has it. Of a process that has ended all lines count."""
        if self.code is not None:
            self._join()
        for line in reversed(self.lines):
            if line.startswith(start):
                for word in line.split():
                    if word.startswith(name + "="):
                        return word[len(name) + 1:]
        return None

    def wait(self, timeout=HANG):
        wait_until(lambda: self.popen.poll() is not None, timeout, lambda: f"{self.name} ends; it said {self.tail()}")
        self._join()
        return self.popen.returncode

    def expect_success(self, timeout=HANG):
        code = self.wait(timeout)
        if code != 0:
            raise AssertionError(f"{self.name} ended with {code}: {self.tail()}")
        return self

    def send(self, number):
        """SIGSTOP stops each thread when it is next scheduled: this returns when all of them stand still."""
        self.popen.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until(self._stands_still, HANG, f"{self.name} stands still")

    def _stands_still(self):
        states = set()
        for stat in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                states.add(stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0])
        return states <= {"T", "Z", "X"}

    def end(self):
        """Whatever is left of it and its children."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
        self.popen.wait()
        self._join()

    def _join(self):
        # Children that outlive the process may hold the pipes: what they say later does not matter.
        for reader in self._readers:
            reader.join(timeout=1)

    def tail(self, count=12):
        return " | ".join(list(self.lines)[-count:] + ["stderr:"] + list(self.errors)[-count:])
