# SPDX-License-Identifier: Apache-2.0
"""Namespaces of one test's own, which look like a machine that nothing else uses (node_init.py).

Programs there have mounts, network, processes and cgroups of their own. The end of the first process there ends all
of it. The daemon runs there too, so all of them know processes by the same numbers.
"""

import os
import pathlib
import signal
import subprocess

from .cgroups import Cgroup, hierarchies
from .process import Process

HERE = pathlib.Path(__file__).resolve().parent
NAMESPACES = ("--mount", "--net", "--pid", "--cgroup")


def reason_to_skip(what):
    """Why there can be none here for this, in words; empty if there can."""
    if os.geteuid() != 0:
        return f"needs root: {what}"
    if not any(controllers == "memory" for controllers in hierarchies()):
        return f"needs cgroups of version 1, in hierarchies of their own: {what}"
    if subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, check=False).returncode != 0:
        return f"needs the right to make namespaces (CAP_SYS_ADMIN): {what}"
    return ""


class InsideProcess(Process):
    """A process in there. It is a child of nsenter, and both are one process group."""

    def send(self, number):
        """To the process. nsenter waits for it, and ends as it does."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii").split()
        os.kill(int(children[0]) if children else self.pid, number)

    def kill(self):
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Inside:

    def __init__(self, case):
        self.case = case
        self.directory = pathlib.Path(case.directory) / "node"
        (self.directory / "tmp").mkdir(parents=True)
        self.processes = []
        self.cgroup = Cgroup(os.path.basename(case.directory))
        self.alive = None
        self.first = None
        case.addCleanup(self.end)

    def environment(self):
        return {"PATH": os.environ["PATH"], "TMPDIR": str(self.directory / "tmp")}

    @property
    def root(self):
        """The node's root folder, as the machine sees it."""
        return pathlib.Path(f"/proc/{self.init_pid}/root")

    def proc(self, pid):
        """The kernel's folder of the process that has this number in the node."""
        return self.root / "proc" / str(pid)

    def _start_first(self):
        reading, self.alive = os.pipe()
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "python3", "-B",
                   HERE / "node_init.py", self.case.directory, self.directory, reading,
                   *filter(None, self.cgroup.folders)]
        self.first = Process(self.cgroup.join_and(*command), {"PATH": os.environ["PATH"]}, name="node",
                             pass_fds=(reading,))
        os.close(reading)
        self._keep(self.first)
        self.first.wait_for_line("ready")
        children = pathlib.Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children").read_text(encoding="ascii")
        self.init_pid = int(children)

    def command(self, *arguments):
        """A command line that runs this one in the node."""
        enter = ["nsenter", "--target", self.init_pid, *NAMESPACES, "--", *arguments]
        return self.cgroup.join_and(*enter)

    def run(self, *arguments):
        """In the node, until it ends; its output."""
        done = subprocess.run(self.command(*arguments), env=self.environment(), capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def start_process(self, *arguments, name=None):
        return self._keep(self.make_process(arguments, self.environment(), name=name or os.path.basename(arguments[0])))

    def make_process(self, arguments, environment, **options):
        """As Process(...), in the node."""
        return InsideProcess(self.command(*arguments), environment, **options)

    def _keep(self, process):
        self.processes.append(process)
        self.case.programs.append(process)  # the test shows what it said
        return process

    def end(self):
        """Its first process's end kills all others of the node."""
        if self.alive is not None:
            os.close(self.alive)
            self.alive = None
            self.first.wait()
        for process in self.processes:
            process.end()
        self.cgroup.remove()

    def traces(self):
        """The node's mounts and cgroups that are left on the machine."""
        names = (str(self.directory), self.cgroup.name)
        mounts = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        left = [line for line in mounts if any(name in line for name in names)]
        left += [str(folder) for folder in self.cgroup.folders.values() if folder.exists()]
        return left
