#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tarball of a release installs into a home directory without root, is tried there, upgraded in use and removed.

Method: the tarball is made of what dist/ holds. A user without rights, with an empty home directory, unpacks and
installs it. Programs run on simulated GPUs while the files are replaced. The files of the home directory are compared
in the end. Needs `make build`.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]
import check_exports  # noqa: E402
from framework.waiting import wait_until  # noqa: E402

OLDEST_GLIBC = "2.28"
NOBODY = 65534
# A program with a child of before the upgrade, and one of after it.
PARENT = '"$0" --seconds 1000 & echo $!; read -r _; "$0" --seconds 1000 & echo $!; read -r _; kill %1 %2; wait'


class TarballTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-tarball-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.folder.chmod(0o755)
        made = subprocess.run([ROOT / "tools" / "build_tarball.sh", cls.folder / "made"], stdout=subprocess.PIPE,
                              text=True, check=True)
        cls.tarball = pathlib.Path(made.stdout.strip())

    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(dir=self.folder, prefix="home-"))
        self.prefix = self.home / ".local"
        (self.home / "run").mkdir(mode=0o700)
        if os.geteuid() == 0:
            for path in (self.home, self.home / "run"):
                os.chown(path, NOBODY, NOBODY)
        self.environment = {"PATH": f"{self.prefix}/bin:/usr/bin:/bin", "HOME": str(self.home),
                            "XDG_RUNTIME_DIR": str(self.home / "run"), "GPUMUX_SIM_DIR": str(self.home / "machine")}
        self.do("tar", "-xzf", self.tarball, "-C", self.home)
        self.unpacked, = self.home.glob("gpumux-*")

    def options(self):
        """As a user without rights."""
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        return {"env": self.environment, "cwd": self.home, "text": True, **user}

    def do(self, *command, code=0):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                              timeout=120, check=False, **self.options())
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def install(self):
        return self.do(self.unpacked / "install.sh")

    def files(self):
        return {str(path.relative_to(self.home)) for path in self.home.rglob("*")}

    def status(self):
        return json.loads(self.do("gpumux", "--simulated", "status", "--json"))

    def submissions(self):
        return {seat["pid"]: seat["submissions"] for gpu in self.status()["gpus"] for seat in gpu["seats"]}

    def all_work(self, pids):
        before = wait_until(lambda: (now := self.submissions()).keys() >= pids and now, 60, "the programs are tenants")
        wait_until(lambda: all(self.submissions().get(pid, 0) > before[pid] for pid in pids), 60, "all programs go on")

    def mapped_library(self, pid):
        """The inode that the program has mapped, and whether a file has that name still."""
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            line = next(line for line in maps if "/libgpumux.so" in line)
        return int(line.split()[4]), not line.endswith(" (deleted)\n")

    def stop_daemon(self):
        pid = int(re.search(r"^daemon .*\(pid (\d+),", self.do("gpumux", "--simulated", "version"), re.MULTILINE)[1])
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 60, "the daemon has ended")

    def test_the_library_runs_with_an_old_glibc(self):
        library = self.unpacked / "dist" / "lib" / "libgpumux.so"
        script = (ROOT / "src/shim/doors/libgpumux.gen.map").read_text(encoding="utf-8")
        self.assertEqual(check_exports.check(library, script, OLDEST_GLIBC), [])

    def test_installed_documents_find_each_other(self):
        self.install()
        place = self.prefix / "share/doc/gpumux"
        # Other folders are in the source alone.
        absent = (r"https?$|(\.\./)*(bench|decisions|deploy|experiments|kubernetes|packaging|slurm|src|tests|tools|"
                  r"web)/|.*CHANGELOG|CONTRIBUTING|openapi")
        for page in place.rglob("*.md"):
            for target in re.findall(r"\]\(([^)#:]+)", page.read_text(encoding="utf-8")):
                if not re.match(absent, target):
                    self.assertTrue((page.parent / target).exists(), f"{page.name}: {target}")

    def test_nothing_is_left(self):
        before = self.files()
        self.install()
        self.assertFalse({name for name in self.files() - before if not name.startswith(".local")})
        self.assertTrue((self.prefix / "share/man/man1/gpumux-run.1").exists())
        for name in ("lib/systemd", "lib/sysusers.d", "lib/gpumux/containers", "bin/gpumux-kubelet-plugin"):
            self.assertFalse((self.prefix / name).exists(), "only root can use it")
        said = self.do("gpumux", "run", "--simulated", "--", self.demo, "--seconds", "0.1")
        self.assertIn("every result right", said)
        version = (self.unpacked / "dist/version.txt").read_text().split()
        self.assertIn(f"gpumux {version[0]} (commit {version[1]})", self.do("gpumux", "version"))
        self.assertEqual(self.do("gpumux", "--simulated", "version").count(version[0]), 2)
        self.stop_daemon()
        (self.prefix / "bin/another").touch()
        self.do(self.unpacked / "install.sh", "uninstall")
        own = {".local", ".local/bin", ".local/bin/another"}
        state = {name for name in self.files() if name.startswith((".local/state", "run/", "machine"))}
        self.assertEqual(self.files() - before - state, own)

    @property
    def demo(self):
        return self.prefix / "libexec/gpumux/gpumux_demo"

    def test_an_upgrade_leaves_running_programs_their_library(self):
        """A program goes on with the file that it has mapped. The path that it passes on is that of the new file. The
        next daemon serves both."""
        self.install()
        parent = subprocess.Popen(["gpumux", "run", "--simulated", "--quiet", "--", "bash", "-c", PARENT, self.demo],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, **self.options())
        self.addCleanup(parent.communicate)
        self.addCleanup(parent.kill)
        first = int(parent.stdout.readline())
        self.all_work({first})
        library = self.prefix / "lib/libgpumux.so"
        old = library.stat().st_ino
        self.assertEqual(self.mapped_library(first), (old, True))
        self.install()
        self.assertNotEqual(library.stat().st_ino, old)
        self.assertEqual(self.mapped_library(first), (old, False))
        self.all_work({first})
        parent.stdin.write("\n")
        parent.stdin.flush()
        second = int(parent.stdout.readline())
        self.all_work({first, second})
        self.assertEqual(self.mapped_library(second), (library.stat().st_ino, True))
        self.stop_daemon()
        self.do("gpumux", "run", "--simulated", "--", self.demo, "--seconds", "0.1")
        self.all_work({first, second})
        self.assertEqual(self.mapped_library(first), (old, False))
        parent.stdin.write("\n")
        parent.stdin.flush()
        parent.wait(60)
        self.stop_daemon()


if __name__ == "__main__":
    unittest.main(verbosity=2)
