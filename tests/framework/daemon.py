# SPDX-License-Identifier: Apache-2.0
"""A private daemon of one test's own: started when it says that it is ready, killed and started again at will."""

import contextlib
import os
import re
import select
import signal
import time

from . import paths
from .api import Api, ApiError
from .process import Process
from .trace import Trace
from .waiting import HANG

# A line of level error, before and after the daemon has started its log.
ERROR = re.compile(r"(gpumuxd: error: |\d{4}-\d\d-\d\dT[\d:.]+ error )")
CRASHES = {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGSEGV}


def errors_in(lines):
    """The lines of a daemon's log that report an error."""
    return [line for line in lines if ERROR.match(line)]


class Daemon:

    def __init__(self, machine, runtime_dir, settings=None, arguments=(), name="gpumuxd", state_dir=None):
        self.machine = machine
        self.runtime_dir = str(runtime_dir)
        self.settings = dict(settings or {})
        self.arguments = list(arguments)
        self.name = name
        self.private = True
        self.make_process = Process
        self.program = paths.DAEMON
        self.state_dir = state_dir or f"{self.runtime_dir}.state"
        self.trace_path = f"{self.runtime_dir}.trace"
        self.processes = []
        self.api = Api(f"{self.runtime_dir}/api.sock")
        self.trace = Trace(self.trace_path, Api(f"{self.runtime_dir}/api.sock", timeout=3))

    @property
    def process(self):
        return self.processes[-1]

    @property
    def pid(self):
        return self.process.pid

    def environment(self):
        environment = {"PATH": os.environ["PATH"], "GPUMUX_RUNTIME_DIR": self.runtime_dir, **self.machine.environment()}
        environment.update({f"GPUMUX_{key.upper()}": str(value) for key, value in self.settings.items()})
        return environment

    def start(self, timeout=HANG):
        """Returns when it serves; raises if it ends or says nothing."""
        self.trace.expect_a_new_daemon()
        reading, writing = os.pipe()
        command = [self.program, *(["--private"] if self.private else []), "--runtime-dir", self.runtime_dir,
                   "--notify-fd", str(writing), "--trace", self.trace_path, "--state-dir", self.state_dir,
                   *self.arguments]
        process = self.make_process(command, self.environment(), name=self.name, pass_fds=(writing,))
        os.close(writing)
        self.processes.append(process)
        try:
            ready, _, _ = select.select([reading], [], [], timeout)
            if not ready or not os.read(reading, 64):
                process.end()
                raise AssertionError(f"{self.name} is not ready (exit code {process.code}): {process.tail(40)}")
        finally:
            os.close(reading)
        return self

    def kill(self):
        self.process.send(signal.SIGKILL)
        self.process.wait()

    def terminate(self, timeout=HANG):
        self.process.send(signal.SIGTERM)
        return self.process.wait(timeout)

    def restart(self):
        self.kill()
        return self.start()

    def cancel_jobs(self):
        """Jobs outlive their daemon, and are not to outlive the test. A daemon that does not answer has done so."""
        api = Api(f"{self.runtime_dir}/api.sock", timeout=3)
        with contextlib.suppress(OSError, ApiError):
            api.ask("PATCH", "/v1/jobs/all", {"cancel": True})
            deadline = time.monotonic() + 15
            while api.ask("GET", "/v1/jobs")["jobs"] and time.monotonic() < deadline:
                time.sleep(0.01)

    def end(self):
        if any(process.code is None for process in self.processes):
            self.cancel_jobs()
        for process in self.processes:
            process.end()

    def unexpected_ends(self):
        """Ends by which only a defect ends a daemon."""
        return [f"{self.name} [{process.pid}] was ended by signal {-process.code}"
                for process in self.processes if process.code in CRASHES]

    def log(self):
        return "\n".join(f"  [{process.pid}] {line}" for process in self.processes
                         for line in process.errors + process.lines)


def watcher_of(pid):
    """The process that starts this private daemon again when it is killed; None: there is none (any more)."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            parent = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
        with open(f"/proc/{parent}/comm", encoding="utf-8") as name:
            return parent if name.read().strip() == "gpumux-watcher" else None
    except (FileNotFoundError, ProcessLookupError):
        return None
