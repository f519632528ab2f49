# SPDX-License-Identifier: Apache-2.0
"""A private daemon that is killed: it starts again, its programs go on, and if it cannot they say what they wait for.

GPUMUX_TEST_KILLS: how many kills (default 10).
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.api import Api
from framework.case import GpumuxTest, main
from framework.daemon import watcher_of
from framework.seeds import amount
from framework.waiting import HANG, wait_until


class KilledDaemon(GpumuxTest):

    def setUp(self):
        super().setUp()
        if os.path.exists("/run/gpumux/tenants/tenants.sock"):
            self.skipTest("this machine has a daemon for all, which would be asked")
        place = os.path.join(self.directory, "xdg")
        os.mkdir(place, 0o700)
        self.variables = {"GPUMUX_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": place, "GPUMUX_QUANTUM": "20ms"}
        self.api = Api(os.path.join(place, "gpumux", "api.sock"))

    def run_worker(self):
        program = self.gpumux("run", "--", str(paths.PROGRAMS / "worker"), "--steps", "10000000", "--step-us", "500",
                              "--say-every", "1", **self.variables)
        program.wait_for_line("step")
        return program

    def daemon(self):
        try:
            return self.api.daemon()["pid"]
        except OSError:
            return None

    def goes_on(self, program):
        done = len(program.lines)
        wait_until(lambda: len(program.lines) > done + 2 or program.code is not None, HANG,
                   f"{program.pid} goes on")
        self.assertIsNone(program.code, program.tail())

    def kills(self, mode):
        self.variables["GPUMUX_MODE"] = mode
        self.expect_error("the daemon was killed; starting it again")
        programs = [self.run_worker(), self.run_worker()]
        for _ in range(amount("GPUMUX_TEST_KILLS", 10)):
            gone = self.daemon()
            os.kill(gone, signal.SIGKILL)
            wait_until(lambda before=gone: self.daemon() not in (None, before), HANG, "the daemon is there again")
            for program in programs:
                self.goes_on(program)
        for program in programs:
            self.assertEqual(program.errors, [], "nothing is said of a daemon that is back at once")
            program.end()
        # It ends by itself, and so does what starts it again.
        daemon = self.daemon()
        watcher = watcher_of(daemon)
        self.assertIsNotNone(watcher)
        os.kill(daemon, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{watcher}"), HANG, "the watcher ends with its daemon")

    def test_programs_that_take_turns_go_on(self):
        self.kills("serial")

    def test_programs_in_the_mode_auto_go_on(self):
        self.kills("auto")

    def test_programs_say_that_they_wait_if_there_is_no_daemon_any_more(self):
        self.variables["GPUMUX_MODE"] = "serial"
        programs = [self.run_worker(), self.run_worker()]
        daemon = self.daemon()
        for pid in (watcher_of(daemon), daemon):
            os.kill(pid, signal.SIGKILL)
        # At least the one that has no lease waits.
        wait_until(lambda: any("waiting for the GPU: the daemon" in line and "`gpumux run` starts one there" in line
                               for program in programs for line in program.errors), HANG, "one says that it waits")
        named = f"worker ({programs[0].pid})"
        _, said = self.ask("status", code=3, **self.variables)
        self.assertIn(named, said)
        doctor = self.gpumux("doctor", **self.variables)
        doctor.wait()
        self.assertIn(f"({programs[0].pid})", re.search("programs have lost their daemon: .*", doctor.tail(200))[0])
        programs.append(self.run_worker())
        for program in programs:
            self.goes_on(program)
            self.assertLessEqual(len(program.errors), 1)
            program.end()


if __name__ == "__main__":
    main()
