#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian packages on a clean Debian: installed, used, upgraded, downgraded, removed and purged. Nothing is lost, and
nothing is left.

Method: packages of this version and of a later one are made of what dist/ holds. A Debian that mmdebstrap has made
boots with systemd, in namespaces. dpkg works on it while programs and jobs run on simulated GPUs. Then its files are
compared with those of before. Needs root, and `make build`.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools"), str(pathlib.Path(__file__).resolve().parent)]
import documents  # noqa: E402
import yaml  # noqa: E402
from debian_root import DebianRoot  # noqa: E402
from framework.cgroups import Cgroup  # noqa: E402
from framework.waiting import wait_until  # noqa: E402

NAMES = ("libgpumux", "gpumux", "gpumux-kubernetes", "gpumux-slurm", "gpumux-sim")
SIMULATED = "[Service]\nEnvironment=LD_LIBRARY_PATH=/usr/lib/gpumux/sim GPUMUX_SIM_DIR=/dev/shm/machine\n"
DROP_IN = "/etc/systemd/system/gpumuxd.service.d/simulated.conf"
PROGRAM = ("env", "LD_LIBRARY_PATH=/usr/lib/gpumux/sim", "GPUMUX_SIM_DIR=/dev/shm/machine", "gpumux", "run", "--quiet",
           "--", "/usr/libexec/gpumux/gpumux_demo", "--seconds", "1000")
UNITS = "/usr/lib/systemd/system"
# The first line of the answer.
ASK_THE_PAGE = ("exec 3<>/dev/tcp/127.0.0.1/9841; "
                r"printf 'GET / HTTP/1.1\r\nHost: 127.0.0.1:9841\r\nConnection: close\r\n\r\n' >&3; head -1 <&3")
# A job that runs until the file is there.
GATED = "while [ ! -e /srv/go ]; do sleep 0.05; done; echo done"


def build(folder, version=None):
    """The packages by their names."""
    arguments = [ROOT / "tools" / "build_packages.sh", folder, *([version] if version else [])]
    shown = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return {pathlib.Path(path).name.partition("_")[0]: pathlib.Path(path) for path in shown}


class MadeOnce(unittest.TestCase):
    """The packages of this version, made once for all tests."""
    folder = None

    @classmethod
    def setUpClass(cls):
        if MadeOnce.folder is None:
            MadeOnce.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-packages-"))
            unittest.addModuleCleanup(shutil.rmtree, MadeOnce.folder)
            MadeOnce.packages = build(MadeOnce.folder / "now")
            MadeOnce.version = MadeOnce.packages["gpumux"].name.split("_")[1]
            MadeOnce.later_version = f"{MadeOnce.version}+later"
            MadeOnce.later = build(MadeOnce.folder / "later", MadeOnce.later_version)


class PackagesTest(MadeOnce):

    def test_lintian(self):
        """No error without an override, and each override has a comment before it."""
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *self.packages.values()],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for path in (ROOT / "packaging" / "deb").glob("**/lintian-overrides"):
            self.assertTrue(path.read_text(encoding="utf-8").startswith("# "), path)

    def test_what_the_library_needs(self):
        shown = subprocess.run(["dpkg-deb", "--field", self.packages["libgpumux"], "Depends"], capture_output=True,
                               text=True, check=True).stdout.strip()
        self.assertEqual(shown, "libc6 (>= 2.28)")


class PlaybookTest(unittest.TestCase):

    def test_the_playbook_of_the_documents(self):
        """It is YAML, and each task calls one module."""
        text = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
        block, = [block for block in documents.blocks(text) if block.language == "yaml"]
        play, = yaml.safe_load("\n".join(block.lines))
        self.assertEqual(play["serial"], 1)
        handlers = {task["name"] for task in play["handlers"]}
        for task in play["tasks"] + play["handlers"]:
            modules = [key for key in task if "." in key]
            self.assertEqual(len(modules), 1, task)
            self.assertLessEqual({task.get("notify")} - {None}, handlers)
        self.assertEqual(play["tasks"][0]["ansible.builtin.apt"]["name"],
                         [f"{name}={{{{ gpumux_version }}}}" for name in NAMES[:2]])


@unittest.skipUnless(os.geteuid() == 0, "needs root: a Debian of its own")
class DebianTest(unittest.TestCase):

    def test_its_systemd_leaves_the_machines_cgroups_alone(self):
        """systemd removes each empty cgroup that it sees and did not make."""
        other = Cgroup(f"gpumux-test-{os.getpid()}")
        self.addCleanup(other.remove)
        debian = DebianRoot()
        self.addCleanup(debian.close)
        debian.run("systemctl", "daemon-reload")
        self.assertEqual([folder for folder in other.folders.values() if not folder.exists()], [])


@unittest.skipUnless(os.geteuid() == 0, "needs root: a Debian of its own")
class LifeTest(MadeOnce):
    """One machine, from the first installation to the purge. The parts need each other, in this order."""

    def setUp(self):
        self.debian = DebianRoot()
        self.addCleanup(self.debian.close)

    def dpkg(self, action, packages, names=NAMES, code=0):
        files = self.debian.copy(*[packages[name] for name in names]) if packages else names
        done = self.debian.run("dpkg", action, *files, code=code)
        return done.stdout + done.stderr

    def api(self, path):
        """The daemon's answer; none while it is away."""
        shown = self.debian.run("gpumux", path, "--json", code=None)
        return json.loads(shown.stdout) if shown.returncode == 0 else None

    def job(self, number):
        jobs = self.debian.run("gpumux", "show", str(number), "--json", code=None)
        return json.loads(jobs.stdout) if jobs.returncode == 0 else {}

    def submit(self, *command):
        return int(self.debian.run("gpumux", "submit", "--quiet", "--", *command).stdout)

    def seats(self):
        status = self.api("status")
        return {seat["pid"]: seat["submissions"] for gpu in status["gpus"] for seat in gpu["seats"]} if status else {}

    def daemon(self):
        return self.debian.run("systemctl", "show", "--property=MainPID", "--value", "gpumuxd").stdout.strip()

    def all_work(self, pids):
        """Each of these programs is a tenant that goes on."""
        before = wait_until(lambda: (seats := self.seats()).keys() >= pids and seats, 60, "the programs are tenants")
        wait_until(lambda: all(self.seats().get(pid, 0) > before[pid] for pid in pids), 60,
                   lambda: f"all programs go on: {before}, {self.seats()}")

    def test_life(self):
        before = self.debian.files()
        self.install()
        running, waiting, pids = self.use()
        self.show_to_readers()
        self.replace(running, waiting, pids)
        self.remove(running, waiting, pids)
        self.purge(before)

    def install(self):
        self.dpkg("--install", self.packages)
        self.assertEqual(self.debian.run("systemctl", "is-enabled", "gpumuxd").stdout.strip(), "enabled")
        self.assertIn("gpumux:", self.debian.path("/etc/group").read_text(encoding="utf-8"))
        # Without a GPU the daemon says so and ends. It does so here; then the machine gets simulated ones.
        wait_until(lambda: self.debian.run("systemctl", "is-failed", "gpumuxd", code=None).stdout.strip() == "failed",
                   60, "the daemon has found no GPU")
        self.debian.write(DROP_IN, SIMULATED)
        self.debian.run("mkdir", "--mode=1777", "/dev/shm/machine")
        self.debian.run("sh", "-c", "printf 'gpus = 2\\nmemory = 1GiB\\n' >/dev/shm/machine/machine.conf")
        self.debian.run("systemctl", "daemon-reload")
        self.debian.run("systemctl", "reset-failed")
        self.debian.run("systemctl", "start", "gpumuxd")
        for command in (("gpumux", "status"), ("systemctl", "reload", "gpumuxd"), ("gpumuxd", "--check-config"),
                        ("gpumux-kubelet-plugin", "--version"),
                        ("systemd-analyze", "verify", f"{UNITS}/gpumuxd.service", f"{UNITS}/gpumux-runner.socket",
                         f"{UNITS}/gpumux-web.service")):
            self.debian.run(*command)

    def use(self):
        """A job that runs, one that waits for it, and two programs."""
        done = self.submit("echo", "hello")
        wait_until(lambda: self.job(done).get("outcome") == "ok", 60, "a job is done")
        running = self.submit("sh", "-c", GATED)
        wait_until(lambda: self.job(running).get("state") == "running", 60, "the job runs")
        waiting = int(self.debian.run("gpumux", "submit", "--quiet", "--after", running, "--", "echo", "after").stdout)
        for _ in range(2):
            self.debian.start(*PROGRAM)
        pids = wait_until(lambda: len(seats := self.seats()) == 2 and set(seats), 60, "both programs have seats")
        self.all_work(pids)
        return running, waiting, pids

    def show_to_readers(self):
        """The page of the machine is off until it is enabled. Then root and its group can read the link."""
        unit = "gpumux-web.service"
        self.assertEqual(self.debian.run("systemctl", "is-enabled", unit, code=None).stdout.strip(), "disabled")
        self.debian.run("systemctl", "enable", "--now", unit)
        link = lambda: self.debian.run("cat", "/run/gpumux-web/link", code=None).stdout
        wait_until(lambda: "http://127.0.0.1:9841/" in link(), 60,
                   lambda: self.debian.run("systemctl", "status", unit, code=None).stdout)
        shown = self.debian.run("stat", "-c", "%U %G %a", "/run/gpumux-web/link").stdout.strip()
        self.assertEqual(shown, "gpumux-web gpumux-web 640")
        self.assertIn("200 OK", self.debian.run("bash", "-c", ASK_THE_PAGE).stdout)

    def replace(self, running, waiting, pids):
        """An upgrade, and the way back."""
        pid = self.job(running)["pid"]
        self.debian.write("/etc/gpumux/gpumux.toml", "[queue]\nmax_running = 7\n")
        kept = f"/usr/lib/gpumux/containers/{self.version}/libgpumux.so"
        for packages, version in ((self.later, self.later_version), (self.packages, self.version)):
            daemon = self.daemon()
            said = self.dpkg("--install", packages)
            is_told = f"going back from {self.later_version} to {self.version}" in said
            self.assertEqual(is_told, version == self.version, said)
            self.assertNotEqual(self.daemon(), daemon)
            self.assertEqual(self.debian.run("dpkg-query", "-W", "-f", "${Version}", "gpumux").stdout, version)
            self.all_work(pids)
            self.assertEqual((self.job(running)["state"], self.job(running)["pid"]), ("running", pid))
            self.assertEqual(self.job(waiting)["state"], "queued")
            wait_until(lambda: "200 OK" in self.debian.run("bash", "-c", ASK_THE_PAGE, code=None).stdout, 60,
                       "the page is served again")
            self.assertIn("max_running = 7", self.debian.path("/etc/gpumux/gpumux.toml").read_text(encoding="utf-8"))
            self.assertTrue(self.debian.path(kept).exists(), "containers that run may start again with it")
            self.assertEqual(list(self.debian.path("/etc").rglob("*.dpkg-*")), [])

    def remove(self, running, waiting, pids):
        """The queue and the configuration stay. A job that runs goes on to its end, and programs wait."""
        self.debian.write("/etc/ld.so.preload", "/usr/lib/libgpumux.so\n")
        others = NAMES[1:]
        self.dpkg("--remove", None, others)
        self.assertIn("take that entry out first", self.dpkg("--remove", None, NAMES[:1], code=1))
        self.debian.path("/etc/ld.so.preload").unlink()
        self.dpkg("--remove", None, NAMES[:1])
        runners = ("systemctl", "list-units", "gpumux-runner@*", "--no-legend")
        self.assertEqual(self.debian.run(*runners).stdout.count("\n"), 1, "the job runs")
        self.debian.write("/srv/go", "")
        wait_until(lambda: not self.debian.run(*runners).stdout, 60, "the job has ended")
        self.dpkg("--install", self.packages)
        self.all_work(pids)
        for job in (running, waiting):
            wait_until(lambda job=job: self.job(job).get("outcome") == "ok", 60, f"job {job} is known to be done")
        self.assertIn("max_running = 7", self.debian.path("/etc/gpumux/gpumux.toml").read_text(encoding="utf-8"))

    def purge(self, before):
        """A job that runs is ended, and its files go."""
        job = self.submit("sleep", "1000")
        wait_until(lambda: self.job(job).get("state") == "running", 60, "the job runs")
        self.debian.path(DROP_IN).unlink()
        self.debian.path(DROP_IN).parent.rmdir()
        self.dpkg("--purge", None, NAMES)
        self.assertEqual(self.debian.run("systemctl", "list-units", "gpumux*", "--no-legend").stdout, "")
        run = self.debian.run("find", "/run", "/dev/shm", "-name", "*gpumux*").stdout
        self.assertEqual(run, "")
        # Debian keeps users and groups: files may be theirs.
        accounts = {f"/etc/{name}{end}" for name in ("group", "gshadow", "passwd", "shadow") for end in ("", "-")}
        left = self.debian.files() - before - accounts - {"/etc/.pwd.lock"}
        # The logs of jobs are files of their users.
        self.assertEqual({name for name in left if "/.local" not in name}, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
