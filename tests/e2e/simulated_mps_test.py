#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The simulated driver's MPS as its users see it: a control daemon, and programs that become its clients.

Method: kernels of two processes that wait for each other meet on a GPU whose slice is a minute; programs are killed and
made to fail, and the driver's codes and the control daemon's answers are compared with NVIDIA's documentation. gpumux
takes no part.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.mps import Mps  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

CALLS = paths.ROOT / "tests" / "programs" / "driver_calls.py"
ERROR_ILLEGAL_ADDRESS = 700
ERROR_MPS_CONNECTION_FAILED = 805
ERROR_MPS_RPC_FAILURE = 806
ERROR_MPS_SERVER_NOT_READY = 807


class MpsTest(GpumuxTest):

    def setUp(self):
        super().setUp()
        self.mps = Mps(self.machine, self.directory)
        self.addCleanup(self.mps.end)

    def caller(self, *calls, client=True):
        """A program that is told what to call; these calls succeed."""
        environment = self.environment(preload=False, **(self.mps.environment() if client else {}))
        program = self.start_process([sys.executable, CALLS], environment=environment, stdin=subprocess.PIPE)
        self.addCleanup(program.popen.stdin.close)
        for call in calls:
            self.assertEqual(self.call(program, call), 0, call)
        return program

    def tell(self, program, call):
        """Each call says a line; which one it will be."""
        number = len(program.lines) + 1
        program.popen.stdin.write(call + "\n")
        program.popen.stdin.flush()
        return number

    def call(self, program, call):
        return self.code(program, self.tell(program, call))

    def code(self, program, number):
        wait_until(lambda: len(program.lines) >= number or program.code is not None, HANG, "the call returns")
        return int(program.lines[number - 1].split()[1])

    def ranks(self, *clients):
        """Two processes whose kernels wait for each other."""
        return [self.start("collective", name=f"rank {rank}", preload=False, meet=self.directory, rank=rank, of=2,
                           rounds=20, gpus="0", variables=self.mps.environment() if client else {})
                for rank, client in enumerate(clients)]


class SideBySide(MpsTest):
    machine_settings = {"slice": "1m"}

    def test_kernels_of_clients_run_at_the_same_time(self):
        self.mps.start()
        self.assertEqual(self.mps.ask("get_server_list"), [])
        for program in self.ranks(True, True):
            program.expect_success()
        self.assertEqual(self.mps.status(), "ACTIVE")
        [server] = self.mps.ask("get_server_list")
        self.assertEqual(self.mps.ask(f"get_client_list {server}"), [])


class Turns(MpsTest):

    def test_clients_alternate_with_other_programs(self):
        self.mps.start()
        for program in self.ranks(True, False):
            program.expect_success()

    def test_a_killed_client_takes_nobody_along(self):
        self.mps.start()
        options = {"steps": 200, "step_us": 200}
        want = self.native_digest(**options)
        first, second = (self.start("worker", preload=False, variables=self.mps.environment(), say_every=1, **options)
                         for _ in range(2))
        second.wait_for_line("step")
        first.send(signal.SIGKILL)
        second.expect_success()
        self.assertEqual(second.field("digest"), want)
        self.assertEqual(self.mps.status(), "ACTIVE")


class Ends(MpsTest):
    gpus = 2

    def test_the_daemon_ends_after_its_clients(self):
        self.mps.start()
        code, said = self.mps.run("-d")
        self.assertEqual((code, said), (1, "An instance of this daemon is already running\n"))
        client = self.caller("init", "context 0")
        daemon = self.mps.pid()
        os.kill(daemon, signal.SIGTERM)
        wait_until(lambda: "Quit" in (self.mps.logs / "control.log").read_text(), HANG, "the daemon has heard it")
        self.assertEqual(self.call(client, "sync"), 0)
        self.assertEqual(self.call(self.caller(), "init"), ERROR_MPS_CONNECTION_FAILED)
        client.popen.stdin.close()
        client.expect_success()
        wait_until(lambda: self.mps.pid() is None, HANG, "the daemon ends")
        self.assertEqual(self.mps.run(commands="quit\n"), (1, "Cannot find MPS control daemon process\n"))
        self.caller("init", "context 0", "spin 0", "sync")

    def test_quit_after_a_time(self):
        self.mps.start()
        client = self.caller("init", "context 0")
        self.assertEqual(self.mps.ask("quit -t 0"), [])
        self.assertIsNone(self.mps.pid())
        self.assertEqual(self.call(client, "sync"), ERROR_MPS_RPC_FAILURE)

    def test_a_killed_daemon(self):
        self.mps.start()
        client = self.caller("init", "context 0", "spin 3600")
        waiting = self.tell(client, "sync")
        self.mps.kill()
        self.assertEqual(self.code(client, waiting), ERROR_MPS_RPC_FAILURE)
        self.assertEqual(self.call(client, "context 1"), ERROR_MPS_RPC_FAILURE)
        self.mps.start()
        self.caller("init", "context 0", "spin 0", "sync")

    def test_a_fault_reaches_the_clients_on_its_gpu(self):
        self.mps.start()
        clients = [self.caller("init", "context 0") for _ in range(2)]
        elsewhere = self.caller("init", "context 1")
        other = self.caller("init", "context 0", client=False)
        self.call(clients[0], "fault")
        for client in clients:
            self.assertEqual(self.call(client, "sync"), ERROR_ILLEGAL_ADDRESS)
        self.assertEqual(self.mps.status(), "FAULT")
        self.assertEqual(self.call(self.caller(), "init"), ERROR_MPS_SERVER_NOT_READY)
        for program in (elsewhere, other):
            self.assertEqual(self.call(program, "sync"), 0)
        for client in clients:
            client.popen.stdin.close()
            client.expect_success()
        self.assertEqual(self.mps.status(), "ACTIVE")
        self.caller("init", "context 0", "spin 0", "sync")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to become another user")
    def test_other_users_are_not_served(self):
        os.chmod(self.directory, 0o755)
        self.caller("init", client=False)  # the machine is there now
        os.chmod(self.machine.directory, 0o777)
        for name in os.listdir(self.machine.directory):
            os.chmod(os.path.join(self.machine.directory, name), 0o666)
        self.mps.start()
        # The other user may not be let into the folder of the build, such as one in root's home.
        libraries = pathlib.Path(self.directory, "libraries")
        shutil.copytree(paths.SIM_LIBRARIES, libraries, symlinks=True)
        program = pathlib.Path(self.directory, "calls.py")
        shutil.copy(CALLS, program)
        os.chmod(program, 0o644)
        environment = self.environment(preload=False, LD_LIBRARY_PATH=libraries, **self.mps.environment())
        stranger = self.start_process(["/usr/bin/python3", program], environment=environment, stdin=subprocess.PIPE,
                                      user=12345, cwd="/")
        self.addCleanup(stranger.popen.stdin.close)
        self.assertEqual(self.call(stranger, "init"), ERROR_MPS_CONNECTION_FAILED)


if __name__ == "__main__":
    main()
