#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MPS: the daemon starts a control daemon for a user whose programs ask for it, and ends it with the last of them.

Method: NVIDIA's control daemon of the simulated machine (docs/simulated-driver.md). Daemon and programs are an ordinary
user's, for no MPS runs as root; once the daemon is root's, and serves that user. The daemon's status says what a
program was told.
"""

import functools
import os
import pathlib
import pwd
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from framework import paths  # noqa: E402
from framework.api import Api  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.daemon import Daemon  # noqa: E402
from framework.process import Process  # noqa: E402
from framework.users import PYTHON, SystemDaemon  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

CALLS = paths.ROOT / "tests" / "programs" / "driver_calls.py"
CONTROL = paths.SIM_LIBRARIES / "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY="
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="
MPS = {"GPUMUX_USE_MPS": "on"}
WORK = {"step_us": 500}
# Writes a file until there is no room, and then files until there can be no more.
FILL = """
import itertools, os, sys
os.chdir(sys.argv[1])
try:
  with open("large", "wb", buffering=0) as file:
    while file.write(bytes(1 << 20)): pass
except OSError: pass
try:
  for number in itertools.count(): open(f"small{number}", "w").close()
except OSError: pass
"""


class ApiOf(Api):
    """Asks as a user, for a private daemon answers nobody else."""

    def __init__(self, user, path):
        super().__init__(path)
        self.user = user

    def ask(self, *arguments, **named):
        os.seteuid(self.user.pw_uid)
        try:
            return super().ask(*arguments, **named)
        finally:
            os.seteuid(0)


@unittest.skipUnless(os.geteuid() == 0, "needs root: programs of another user")
class MpsTest(GpumuxTest):
    daemon_settings = {"mode": "concurrent", "mps_control": CONTROL}

    def setUp(self):
        super().setUp()
        self.user = pwd.getpwnam("games")
        self.as_user = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        for folder in (self.directory, self.runtime_dir, self.machine.directory):
            os.chown(folder, self.user.pw_uid, self.user.pw_gid)
        for folder in pathlib.Path(paths.BUILD).resolve().parents:
            if os.stat(folder).st_mode & 0o001 == 0:
                self.skipTest(f"other users may not enter {folder}")

    def start_users_daemon(self, **settings):
        daemon = Daemon(self.machine, self.runtime_dir, {**self.daemon_settings, **settings})
        daemon.api = ApiOf(self.user, f"{self.runtime_dir}/api.sock")
        daemon.make_process = functools.partial(Process, **self.as_user)
        self.daemons.append(daemon)
        return daemon.start()

    def start_process(self, arguments, name=None, environment=None, **popen):
        return super().start_process(arguments, name, environment, **{**self.as_user, **popen})

    def work(self, name, variables=None, **options):
        """A program that has told the daemon of its seat."""
        program = self.start("worker", name=name, variables=variables, until=self.enough, **{**WORK, **options})
        program.wait_for_line("ready", timeout=HANG)
        return program

    def seat(self, daemon, program):
        return wait_until(lambda: next((seat for gpu in daemon.api.status()["gpus"] for seat in gpu["seats"]
                                        if seat["pid"] == program.pid), None), HANG, f"{program.name} has a seat")

    def servers(self, daemon):
        return daemon.api.status()["mps_servers"]

    def wait_gone(self, daemon):
        wait_until(lambda: not self.servers(daemon), HANG,
                   lambda: f"no server is left; there is {self.servers(daemon)}")

    def finish(self, *programs):
        pathlib.Path(self.enough).touch()
        for program in programs:
            program.expect_success()


class Programs(MpsTest):

    def test_those_that_ask_share_one_server(self):
        daemon = self.start_users_daemon()
        first, second = self.work("first", MPS), self.work("second", MPS)
        without = self.work("without")
        server, = self.servers(daemon)
        self.assertEqual((server["state"], server["uid"]), ("serving", self.user.pw_uid))
        self.assertEqual(sorted(server["programs"]), sorted([first.pid, second.pid]))
        for program in (first, second):
            self.assertEqual(self.seat(daemon, program)["mps"], {"server": server["server"], "thread_percentage": 100})
        self.assertNotIn("mps", self.seat(daemon, without))
        self.assertEqual(os.stat(f"/proc/{server['pid']}").st_uid, self.user.pw_uid)
        # The server is none of the GPU's other programs.
        self.assertEqual(daemon.api.status()["gpus"][0]["foreign"], [])
        self.finish(first, second, without)
        self.wait_gone(daemon)
        wait_until(lambda: not pathlib.Path(f"/proc/{server['pid']}").exists(), HANG, "the control daemon has ended")
        wait_until(lambda: not list(pathlib.Path(self.runtime_dir, "mps").rglob("*.*")), HANG, "its folders are gone")

    def test_it_can_be_on_for_a_gpu(self):
        daemon = self.start_users_daemon()
        daemon.api.ask("PATCH", "/v1/gpus/all", {"mps": "on"})
        asked, not_wanted = self.work("asked"), self.work("not-wanted", {"GPUMUX_USE_MPS": "off"})
        self.assertIn("mps", self.seat(daemon, asked))
        self.assertNotIn("mps", self.seat(daemon, not_wanted))
        daemon.api.ask("PATCH", "/v1/gpus/all", {"mps": "off"})
        too_late = self.work("too-late")
        self.assertNotIn("mps", self.seat(daemon, too_late))
        self.finish(asked, not_wanted, too_late)

    def test_a_program_keeps_a_server_of_its_own(self):
        daemon = self.start_users_daemon(mps="on")
        own = self.work("own", {"CUDA_MPS_PIPE_DIRECTORY": self.directory + "/nowhere"})
        self.assertNotIn("mps", self.seat(daemon, own))
        self.finish(own)

    def test_a_share_is_a_part_of_the_threads_where_all_run_at_once(self):
        daemon = self.start_users_daemon()
        large = self.work("large", {**MPS, "GPUMUX_SHARE": "2"})
        small = self.work("small", MPS)
        capped = self.work("capped", {**MPS, "GPUMUX_SHARE": "2", "GPUMUX_MAX_SHARE": "30%"})
        self.assertEqual([self.seat(daemon, program)["mps"]["thread_percentage"] for program in (large, small, capped)],
                         [100, 50, 30])
        self.finish(large, small, capped)

    def test_programs_take_turns_under_it(self):
        daemon = self.start_users_daemon(mode="serial")
        first, second = self.work("first", MPS), self.work("second", MPS)
        for program in (first, second):
            wait_until(lambda it=program: self.seat(daemon, it)["grants"] >= 3, HANG, f"{program.name} has had turns")
        self.assertEqual({self.seat(daemon, program)["mps"]["thread_percentage"] for program in (first, second)}, {100})
        self.finish(first, second)

    def test_the_command(self):
        daemon = self.start_users_daemon()
        run = [paths.COMMAND, "run", "--quiet"]
        worker = [paths.PROGRAMS / "worker", "--until", self.enough, "--step-us", "500"]
        shown = [self.start_process([*run, flag, "--", *worker], name=flag, environment=self.environment(preload=False))
                 for flag in ("--mps", "--no-mps")]
        for program in shown:
            program.wait_for_line("ready", timeout=HANG)
        self.assertIn("mps", self.seat(daemon, shown[0]))
        self.assertNotIn("mps", self.seat(daemon, shown[1]))
        status = subprocess.run([paths.COMMAND, "status"], env=self.environment(preload=False), capture_output=True,
                                text=True, check=True, **self.as_user).stdout
        self.assertRegex(status, r"MPS of games: 1 program")
        self.finish(*shown)

    def test_a_job(self):
        daemon = self.start_users_daemon()
        submit = [paths.COMMAND, "submit", "--mps", "--wait", "--quiet", "--mem", "64M", "--output", "/dev/null"]
        waiting = self.start_process([*submit, "--", paths.PROGRAMS / "worker", "--until", self.enough], name="submit",
                                     environment=self.environment(preload=False), cwd=self.directory)
        seats = wait_until(lambda: daemon.api.status()["gpus"][0]["seats"], HANG, "the job has a seat")
        self.assertIn("mps", seats[0])
        self.assertEqual(self.servers(daemon)[0]["programs"], [seats[0]["pid"]])
        pathlib.Path(self.enough).touch()
        waiting.expect_success()
        self.wait_gone(daemon)


class Ends(MpsTest):

    def test_a_control_daemon_that_is_killed(self):
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        server, = self.servers(daemon)
        os.kill(server["pid"], signal.SIGKILL)
        wait_until(lambda: any("MPS of a user has ended by itself" in line for line in daemon.log().split("\n")), HANG,
                   "the daemon says that MPS has ended")
        first.wait(HANG)
        self.assertNotEqual(first.code, 0)
        again = self.work("again", MPS)
        self.assertEqual([it["state"] for it in self.servers(daemon) if again.pid in it["programs"]], ["serving"])
        self.finish(again)
        self.wait_gone(daemon)

    def test_a_fault(self):
        daemon = self.start_users_daemon()
        victim, outside = self.work("victim", MPS), self.work("outside")
        faulty = self.start_process([PYTHON, CALLS], stdin=subprocess.PIPE, environment=self.environment(**MPS))
        self.addCleanup(faulty.popen.stdin.close)
        faulty.popen.stdin.write("init\ncontext 0\nfault\n")
        faulty.popen.stdin.flush()
        wait_until(lambda: len(faulty.lines) == 3, HANG, "the program has faulted")
        victim.wait(HANG)
        self.assertIn("gave 700", " ".join(victim.errors))
        again = self.work("again", MPS)  # the faulty one is still there
        states = {pid: it["state"] for it in self.servers(daemon) for pid in it["programs"]}
        self.assertEqual(states, {faulty.pid: "faulted", again.pid: "serving"})
        self.assertTrue(any("a program under MPS has faulted" in line for line in daemon.log().split("\n")))
        faulty.popen.stdin.close()
        faulty.wait(HANG)
        wait_until(lambda: len(self.servers(daemon)) == 1, HANG, "the server that has faulted ends")
        self.finish(outside, again)
        self.wait_gone(daemon)

    def test_a_daemon_that_is_killed(self):
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        before, = self.servers(daemon)
        daemon.restart()
        wait_until(lambda: [it["programs"] for it in self.servers(daemon)] == [[first.pid]], HANG,
                   "the program is a client again")
        self.assertEqual(self.servers(daemon)[0]["pid"], before["pid"])
        self.assertEqual(self.seat(daemon, first)["mps"]["server"], before["server"])
        second = self.work("second", MPS)
        self.assertEqual(self.seat(daemon, second)["mps"]["server"], before["server"])
        self.finish(first, second)
        self.wait_gone(daemon)

    def test_a_control_daemon_that_is_not_there(self):
        daemon = self.start_users_daemon(mps_control="/nowhere/control")
        program = self.work("program", MPS)
        self.assertNotIn("mps", self.seat(daemon, program))
        self.assertTrue(any("MPS did not start for a user" in line for line in daemon.log().split("\n")))
        self.assertEqual(self.servers(daemon), [])
        self.finish(program)

    def test_a_stopped_program_keeps_its_server(self):
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        before, = self.servers(daemon)
        first.send(signal.SIGSTOP)
        daemon.restart()
        self.start("worker", name="second", variables=MPS, steps=5).expect_success()
        self.assertEqual([(it["pid"], it["programs"]) for it in self.servers(daemon)], [(before["pid"], [first.pid])])
        first.send(signal.SIGCONT)
        self.finish(first)
        self.wait_gone(daemon)

    def clients(self, pipes):
        """As the control daemon knows them."""
        environment = {**self.machine.environment(), "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}

        def ask(command):
            return subprocess.run([CONTROL], input=command + "\n", env=environment, capture_output=True, text=True,
                                  check=True, timeout=HANG, **self.as_user).stdout.split()

        server, = ask("get_server_list")
        return set(map(int, ask(f"get_client_list {server}")))

    def test_children_do_not_inherit_a_server(self):
        daemon = self.start_users_daemon()
        first = self.work("first", {**MPS, "GPUMUX_MAX_SHARE": "30%"})
        pipes, = pathlib.Path(self.runtime_dir, "mps", "users").glob("*/pipe")
        # As children of `first` would have them.
        inherited = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
        self.assertEqual(self.clients(pipes), {first.pid})
        children = [self.work(name, {**inherited, **more}) for name, more in (
            ("silent", {}), ("not-wanted", {"GPUMUX_USE_MPS": "off"}))]
        for child in children:
            self.assertNotIn("mps", self.seat(daemon, child))
        self.assertEqual(self.clients(pipes), {first.pid})
        asking = self.work("asking", {**inherited, **MPS})
        self.assertEqual(self.seat(daemon, asking)["mps"]["thread_percentage"], 100)
        self.assertEqual(self.clients(pipes), {first.pid, asking.pid})
        self.finish(first, *children, asking)

    def test_only_the_first_initialisation_asks(self):
        daemon = self.start_users_daemon()
        program = self.start_process([PYTHON, CALLS], stdin=subprocess.PIPE, environment=self.environment())
        self.addCleanup(program.popen.stdin.close)
        for number, call in enumerate(("init", "init", "context 0"), 1):
            if number == 2:
                daemon.api.ask("PATCH", "/v1/gpus/all", {"mps": "on"})
            program.popen.stdin.write(call + "\n")
            program.popen.stdin.flush()
            wait_until(lambda it=number: len(program.lines) == it, HANG, call)
        self.assertNotIn("mps", self.seat(daemon, program))
        self.assertEqual(self.servers(daemon), [])

    def test_folders_that_a_user_has_filled_stay(self):
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        log, = pathlib.Path(self.runtime_dir, "mps", "users").glob("*/log")
        (log / "own").mkdir()
        self.finish(first)
        self.wait_gone(daemon)
        wait_until(lambda: [it.name for it in log.iterdir()] == ["own"], HANG, "the rest is removed")
        pathlib.Path(self.enough).unlink()
        daemon.restart()
        again = self.work("again", MPS)
        self.assertIn("mps", self.seat(daemon, again))
        self.finish(again)


class RootsDaemon(MpsTest):

    def start_users_daemon(self, **settings):
        # The simulated machine is the user's: root's daemon may use it, too.
        self.start("worker", preload=False, steps=1).expect_success()
        for folder in (self.directory, self.runtime_dir):
            os.chown(folder, 0, 0)
            os.chmod(folder, 0o755)
        os.chmod(self.runtime_dir, 0o755)
        daemon = SystemDaemon(self.machine, self.runtime_dir, {**self.daemon_settings, **settings})
        self.daemons.append(daemon)
        return daemon.start()

    def test_the_control_daemon_is_the_users(self):
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        server, = self.servers(daemon)
        self.assertEqual(server["uid"], self.user.pw_uid)
        with open(f"/proc/{server['pid']}/status", encoding="utf-8") as file:
            ids = {line.split(":")[0]: line.split()[1:] for line in file}
        self.assertEqual(set(ids["Uid"]), {str(self.user.pw_uid)})
        self.assertEqual(set(ids["Gid"]), {str(self.user.pw_gid)})
        for folder in ("pipe", "log"):
            status = os.stat(f"{self.runtime_dir}/mps/users/{self.user.pw_uid}.{server['server']}/{folder}")
            self.assertEqual((status.st_uid, status.st_mode & 0o777), (self.user.pw_uid, 0o700))
        roots = self.start_process([paths.PROGRAMS / "worker", "--until", self.enough], name="roots", user=0, group=0,
                                   environment=self.environment(**MPS))
        roots.wait_for_line("ready", timeout=HANG)
        self.assertNotIn("mps", self.seat(daemon, roots))
        pathlib.Path(self.enough).touch()
        for program in (first, roots):
            program.expect_success()
        self.wait_gone(daemon)

    def mount(self, folder):
        """As the unit of the system's daemon does."""
        unit = (paths.ROOT / "packaging" / "systemd" / "run-gpumux-mps-users.mount").read_text(encoding="utf-8")
        options = re.search("^Options=(.*)$", unit, re.MULTILINE).group(1)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            self.skipTest(f"no file system can be mounted here: {done.stderr}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)

    def test_a_user_can_fill_one_file_system_of_a_bounded_size(self):
        folder = pathlib.Path(self.runtime_dir, "mps", "users")
        folder.mkdir(parents=True)
        for each in (folder, folder.parent):
            each.chmod(0o711)
        self.mount(folder)
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        everything = [(path, path.lstat()) for path in pathlib.Path(self.runtime_dir).rglob("*")]
        owned = [path for path, status in everything if status.st_uid == self.user.pw_uid]
        self.assertIn("pipe", [path.name for path in owned])
        self.assertEqual([path for path in owned if folder not in path.parents], [])
        self.assertEqual([path for path, status in everything if status.st_mode & 0o002 and path.is_dir()], [])

        log, = folder.glob("*/log")
        subprocess.run([PYTHON, "-c", FILL, log], check=True, timeout=HANG, **self.as_user)
        status = os.statvfs(folder)
        self.assertEqual((status.f_bavail, status.f_favail), (0, 0))
        self.assertLessEqual(status.f_blocks * status.f_frsize, 64 << 20)
        # Programs of that server go on, and the next daemon knows them.
        second = self.work("second", MPS)
        daemon.restart()
        for program in (first, second):
            wait_until(lambda it=program: "mps" in self.seat(daemon, it), HANG, f"{program.name} is a client")
        server, = self.servers(daemon)
        self.assertEqual(sorted(server["programs"]), sorted([first.pid, second.pid]))
        self.finish(first, second)
        self.wait_gone(daemon)
        # There is no room for another server, or for its socket.
        pathlib.Path(self.enough).unlink()
        third = self.work("third", MPS)
        self.assertNotIn("mps", self.seat(daemon, third))
        self.assertRegex(daemon.log(), "No space left on device|MPS did not start for a user")
        self.finish(third)

    def test_a_program_that_the_next_daemon_would_not_know_gets_no_server(self):
        daemon = self.start_users_daemon()
        first = self.work("first", MPS)
        server, = self.servers(daemon)
        clients, = pathlib.Path(self.runtime_dir, "mps").glob("*/clients")
        clients.rename(clients.with_name("elsewhere"))
        second = self.work("second", MPS)
        self.assertNotIn("mps", self.seat(daemon, second))
        self.assertEqual(self.servers(daemon)[0]["programs"], [first.pid])
        self.assertIn("a program gets no MPS", daemon.log())
        clients.with_name("elsewhere").rename(clients)
        self.finish(first, second)
        self.wait_gone(daemon)


if __name__ == "__main__":
    main()
