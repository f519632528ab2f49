# SPDX-License-Identifier: Apache-2.0
"""A clean Debian with systemd as its first process, in a folder, cgroups and namespaces of its own. Needs root.

mmdebstrap makes the root once; it stays in build/packages/root.tar. Each test unpacks it. The kernel ends every process
of it when the first one ends.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

from framework.cgroups import Cgroup
from framework.waiting import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = ROOT / "build" / "packages" / "root.tar"
# The packages need nothing more than Debian's essential ones and this.
INCLUDED = "systemd,systemd-sysv"
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
# For what hangs.
LIMIT = 120


def make_base():
    if BASE.exists():
        return
    BASE.parent.mkdir(parents=True, exist_ok=True)
    shown = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages",
                            "Origin: Debian", "Codename: bookworm"], capture_output=True, text=True, check=True)
    mirror = (shown.stdout.split() or ["http://deb.debian.org/debian"])[0]
    unfinished = BASE.with_suffix(".new.tar")
    subprocess.run(["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={INCLUDED}", "bookworm",
                    unfinished, mirror], check=True)
    unfinished.rename(BASE)


class DebianRoot:

    def __init__(self):
        make_base()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-debian-"))
        subprocess.run(["tar", "-xf", BASE, "-C", self.folder], check=True)
        self.log = open(self.folder.with_suffix(".log"), "w", encoding="utf-8")
        boot = [pathlib.Path(__file__).with_name("boot.sh"), self.folder]
        # Its systemd takes the cgroup in which it starts for the root of the machine's.
        self.cgroup = Cgroup(self.folder.name)
        command = self.cgroup.join_and("unshare", "--kill-child", "--mount", "--pid", "--uts", "--ipc", "--net",
                                       "--cgroup", "--fork", *boot)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)
        self.children = []
        wait_until(lambda: self.run("systemctl", "is-system-running", code=None).stdout.strip() == "running", 60,
                   lambda: f"systemd is up; {self.messages()}")

    @property
    def first_process(self):
        """systemd's number outside, once it is there."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as children:
            return children.read().split()[0]

    def messages(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")[-2000:]

    def _inside(self, command):
        return ["nsenter", "--target", self.first_process, "--all", "--root", "--wd", "env", "-i", "--chdir=/",
                *[f"{key}={value}" for key, value in ENVIRONMENT.items()], *map(str, command)]

    def run(self, *command, code=0):
        """A command in the root that ends with this status; None: with any."""
        try:
            inside = self._inside(command)
        except IndexError:  # it is not there yet
            inside = ["false"]
        done = subprocess.run(inside, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                              timeout=LIMIT)
        if code is not None and done.returncode != code:
            raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}"
                                 f"{done.stderr}")
        return done

    def start(self, *command):
        child = subprocess.Popen(self._inside(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        self.children.append(child)
        return child

    def path(self, name):
        return self.folder / name.lstrip("/")

    def write(self, name, text):
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text, encoding="utf-8")

    def copy(self, *files):
        for file in files:
            shutil.copy(file, self.folder / "srv")
        return [f"/srv/{pathlib.Path(file).name}" for file in files]

    def files(self):
        """Every name on the disk, but for logs, caches and dpkg's own records."""
        found = set()
        for folder, names, files in os.walk(self.folder):
            inside = "/" + os.path.relpath(folder, self.folder)
            names[:] = [name for name in names if os.path.join(inside, name) not in (
                "/var/log", "/var/cache", "/var/lib/dpkg", "/srv", "/./var")]
            found.update(os.path.normpath(os.path.join(inside, name)) for name in (*names, *files))
        return {name for name in found if not name.startswith(("/var/log", "/var/cache", "/var/lib/dpkg", "/srv"))}

    def close(self):
        self.process.kill()
        self.process.wait()
        for child in self.children:
            child.kill()
            child.communicate()
        self.cgroup.remove()
        self.log.close()
        os.unlink(self.log.name)
        shutil.rmtree(self.folder)
