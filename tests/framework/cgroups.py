# SPDX-License-Identifier: Apache-2.0
"""Cgroups: of version 1 each controller has a hierarchy of its own, and the one of version 2 has no name here."""

import contextlib
import os
import pathlib

from .waiting import HANG, wait_until


def hierarchies():
    """Controllers of each hierarchy of cgroups, with the folder that is this process's cgroup there."""
    mounted = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, after = line.split(" - ")
        kind = after.split()[0]
        if kind in ("cgroup", "cgroup2"):
            options = set(after.split()[2].split(",")) if kind == "cgroup" else {""}
            mounted.append((options, *before.split()[3:5]))
    found = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for options, root, place in mounted:
            if set(controllers.split(",")) <= options:
                found[controllers] = pathlib.Path(place, os.path.relpath(path, root))
    return found


class Cgroup:
    """One folder in each hierarchy."""

    def __init__(self, name):
        self.name = name
        self.folders = {}
        for controllers, parent in hierarchies().items():
            folder = parent.resolve() / name
            folder.mkdir()
            self.folders[controllers] = folder
            if "cpuset" in controllers.split(","):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((folder.parent / file).read_text(encoding="ascii"), encoding="ascii")

    def join_and(self, *command):
        """A command line that runs another one in this cgroup."""
        joined = [str(folder / "cgroup.procs") for folder in self.folders.values()]
        script = f'for file in {" ".join(joined)}; do echo $$ >"$file" || exit; done; exec "$@"'
        return ["sh", "-c", script, "sh", *(str(word) for word in command)]

    def pids(self, part):
        """Processes, by the host's numbers, in the cgroup below this one whose name ends with `part`."""
        for path, _, _ in os.walk(self.folders["memory"]):
            if path.endswith(part):
                with contextlib.suppress(OSError):
                    procs = pathlib.Path(path, "cgroup.procs").read_text(encoding="ascii")
                    return [int(pid) for pid in procs.split()]
        return []

    def remove(self):
        """The kernel lets go of a cgroup a moment after its last process has ended."""
        def removed():
            for folder in self.folders.values():
                for path, _, _ in os.walk(folder, topdown=False):
                    try:
                        os.rmdir(path)
                    except FileNotFoundError:
                        pass
                    except OSError:
                        return False
            return True

        wait_until(removed, HANG, "the node's cgroups are removed")
