#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: systemd's units have no limits that look harmless and break what the daemon promises."""

import configparser
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNITS = ROOT / "packaging" / "systemd"
PAGE = ROOT / "web" / "gpumux-web.service"

# The first version that judges a unit's file instead of a running service.
OLDEST_JUDGE = 250
# In tenths. The daemon needs what is left: root, device nodes, other users' processes, the machine's network namespace.
MOST_EXPOSED = 40
MOST_EXPOSED_PAGE = 20


def judge():
    """systemd-analyze; or why it cannot judge."""
    path = shutil.which("systemd-analyze")
    if path is None:
        return None, "there is no systemd-analyze"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"systemd (\d+)", said)
    if version is None or int(version.group(1)) < OLDEST_JUDGE:
        return None, f"systemd-analyze is older than {OLDEST_JUDGE}"
    return path, None


def settings_of(name, section="Service"):
    # A key may stand there several times; of these none may.
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read(UNITS / name)
    return dict(parser[section])


class Units(unittest.TestCase):

    def assert_exposed_at_most(self, unit, most):
        path, why_not = judge()
        if path is None:
            self.skipTest(why_not)
        done = subprocess.run([path, "security", "--offline=yes", "--no-pager", f"--threshold={most}",
                               UNITS / unit], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr)
        self.assertIn(f"Overall exposure level for {pathlib.Path(unit).name}", done.stdout)

    def test_host_memory_for_evicted_data_is_not_limited(self):
        # It is charged to the daemon's control group, and can be most of the machine's memory.
        limits = {"MemoryMax", "MemoryHigh", "MemoryLimit", "MemorySwapMax", "LimitAS", "LimitDATA", "LimitMEMLOCK"}
        self.assertEqual(limits & settings_of("gpumuxd.service").keys(), set())

    def test_stopping_the_daemon_stops_nobody_else(self):
        self.assertEqual(settings_of("gpumuxd.service")["KillMode"], "process")

    def test_the_daemon_is_confined(self):
        self.assert_exposed_at_most("gpumuxd.service", MOST_EXPOSED)

    def test_the_daemon_can_do_what_it_must(self):
        # Mount its tmpfs, look at other users' processes, kill a silent tenant: kill_silent_after.
        service = settings_of("gpumuxd.service")
        self.assertIn("@mount", service["SystemCallFilter"].split())
        # The last line is of the capabilities for files; both count.
        text = (UNITS / "gpumuxd.service").read_text()
        kept = " ".join(re.findall(r"^CapabilityBoundingSet=(.*)$", text, re.MULTILINE)).split()
        self.assertLessEqual({"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_KILL"}, set(kept))
        forbidden = {"PrivateDevices", "PrivateUsers", "PrivateNetwork", "ProtectProc", "DevicePolicy"}
        self.assertEqual(forbidden & service.keys(), set())

    def test_only_root_can_lock_gpus_for_the_daemon(self):
        service = settings_of("gpumuxd.service")
        self.assertIn("gpumux-locks", service["RuntimeDirectory"].split())
        self.assertEqual(service["RuntimeDirectoryMode"], "0755")
        header = (ROOT / "src/os/runtime_dir.h").read_text()
        self.assertIn('kGpuLockDir[] = "/run/gpumux-locks"', header)

    def test_users_can_fill_a_file_system_of_gpumuxs_only(self):
        name = "run-gpumux-mps-users.mount"
        mount = settings_of(name, "Mount")
        header = (ROOT / "src/os/runtime_dir.h").read_text()
        folder = re.search(r'kMpsUsersDir\[\] = "(.*)"', header).group(1)
        self.assertEqual(mount["Where"], f"/run/gpumux/{folder}")
        self.assertEqual(mount["Where"].strip("/").replace("/", "-") + ".mount", name)
        options = dict(option.partition("=")[::2] for option in mount["Options"].split(","))
        self.assertLessEqual({"size", "nr_inodes", "nosuid", "nodev"}, options.keys())
        self.assertEqual(options["mode"], "0711")
        service = (UNITS / "gpumuxd.service").read_text()
        for word in ("Wants", "After"):
            self.assertRegex(service, rf"(?m)^{word}={name}$")

    def test_the_web_page_has_no_rights_and_changes_nothing(self):
        service = settings_of(PAGE)
        self.assertNotIn(service["User"], ("", "root"))
        self.assertIn(f"u {service['User']} ", (UNITS / "gpumux.sysusers.conf").read_text())
        words = service["ExecStart"].split()
        self.assertEqual(words[1:3], ["web", "--read-only"])
        # Secrets are in a file that not everybody can reach.
        link = pathlib.PurePath(words[words.index("--link-file") + 1])
        self.assertEqual(str(link.parent), f"/run/{service['RuntimeDirectory']}")
        self.assertEqual(service["RuntimeDirectoryMode"], "0750")
        self.assertEqual(service["CapabilityBoundingSet"], "")
        self.assertEqual((service["IPAddressDeny"], service["IPAddressAllow"]), ("any", "localhost"))

    def test_the_web_page_is_confined(self):
        self.assert_exposed_at_most(PAGE, MOST_EXPOSED_PAGE)

    def test_jobs_leave_room_for_the_rest_of_the_machine(self):
        self.assertEqual(settings_of("gpumux-runner@.service")["Slice"], "gpumux-jobs.slice")
        all_jobs = int(settings_of("gpumux-jobs.slice", "Slice")["TasksMax"].removesuffix("%"))
        one_job = int(settings_of("gpumux-runner@.service")["TasksMax"].removesuffix("%"))
        self.assertLess(all_jobs, 100)
        self.assertLess(one_job, all_jobs)

    def test_containers_cannot_start_jobs(self):
        # A process that reaches this socket as root is root, and /run/gpumux/tenants is passed into containers.
        socket = settings_of("gpumux-runner.socket", "Socket")
        path = pathlib.PurePath(socket["ListenSequentialPacket"])
        self.assertNotIn(pathlib.PurePath("/run/gpumux"), path.parents)
        self.assertEqual((socket["SocketMode"], socket["DirectoryMode"]), ("0600", "0700"))
        self.assertIn(f'"{path}"', (ROOT / "src/runners/runners.cc").read_text())


if __name__ == "__main__":
    unittest.main()
