# SPDX-License-Identifier: Apache-2.0
"""A control daemon of MPS for a simulated machine, and the commands that it takes."""

import contextlib
import os
import pathlib
import signal
import subprocess

from . import paths
from .waiting import HANG, wait_until


class Mps:
    """`environment()` is what makes a program its client."""

    def __init__(self, machine, directory):
        self.machine = machine
        self.pipes = pathlib.Path(directory, "mps")
        self.logs = pathlib.Path(directory, "mps-log")

    def environment(self):
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.logs)}

    def run(self, *options, commands="", **popen):
        """The program's exit code and output."""
        environment = {"PATH": os.environ["PATH"], **self.machine.environment(), **self.environment()}
        done = subprocess.run([str(paths.MPS_CONTROL), *options], input=commands, env=environment, text=True,
                              timeout=HANG, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **popen)
        return done.returncode, done.stdout

    def start(self, **popen):
        code, said = self.run("-d", **popen)
        if code != 0:
            raise AssertionError(f"nvidia-cuda-mps-control -d ended with {code}: {said}")
        return self

    def ask(self, command):
        """The lines of a command's answer."""
        code, said = self.run(commands=command + "\n")
        if code != 0:
            raise AssertionError(f"{command} ended with {code}: {said}")
        return said.splitlines()

    def status(self):
        """Of the server."""
        [server] = self.ask("get_server_list")
        [status] = self.ask(f"get_server_status {server}")
        return status

    def pid(self):
        """Of the control daemon; None: there is none."""
        try:
            return int((self.pipes / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def kill(self):
        """Ends the control daemon by force; its server dies with it."""
        pid = self.pid()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.run(commands="get_server_list\n")[0] == 1, HANG, "the control daemon is gone")
        (self.pipes / "nvidia-cuda-mps-control.pid").unlink(missing_ok=True)

    def end(self):
        if self.pid() is not None:
            self.kill()
