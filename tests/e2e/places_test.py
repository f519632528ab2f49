#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A user has one private daemon, whichever of the user's two runtime folders a command looks into.

Method: commands with XDG_RUNTIME_DIR, as in a login, and without, as in cron. The user exists by number only, so that
its folder in /tmp is the test's.
"""

import os
import pathlib
import re
import shutil
import signal
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.daemon import watcher_of  # noqa: E402
from framework.users import UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

USER = types.SimpleNamespace(pw_uid=54322, pw_gid=54322, pw_name="54322")


class Places(UsersTest):
    def setUp(self):
        super().setUp()
        self.daemon.terminate()
        machine = pathlib.Path(self.machine.directory)
        for path in (machine, *machine.iterdir()):
            path.chmod(0o777)
        others = [paths.BUILD / "bin" / name for name in ("gpumux-runner", "gpumux-mover")]
        daemon = self.hand_out(paths.DAEMON, *others)
        self.hand_out(paths.COMMAND, *paths.SIM_LIBRARIES.iterdir())
        home = self.homes[USER.pw_uid] = os.path.join(self.directory, "home")
        self.login = os.path.join(home, "login", "gpumux")
        self.cron = f"/tmp/gpumux-{USER.pw_uid}"
        for folder in (home, os.path.dirname(self.login)):
            os.mkdir(folder, 0o700)
            os.chown(folder, USER.pw_uid, USER.pw_gid)
        self.addCleanup(shutil.rmtree, self.cron, ignore_errors=True)
        self.variables = {**self.machine.environment(), "LD_LIBRARY_PATH": self.directory, "GPUMUX_DAEMON": daemon,
                          "GPUMUX_RUNTIME_DIR": ""}
        self.expect_error("no GPU is left to serve")

    def in_login(self):
        return {**self.variables, "XDG_RUNTIME_DIR": os.path.dirname(self.login)}

    def hold(self, place, variables):
        """A program under a daemon that was started for it there; the daemon's process."""
        environment = {"PATH": os.environ["PATH"], "HOME": self.homes[USER.pw_uid],
                       "GPUMUX_LIBRARY": os.path.join(self.directory, paths.LIBRARY.name), **variables}
        program = self.start_process([os.path.join(self.directory, "gpumux"), "run", "--", "sleep", "1000"],
                                     environment=environment, user=USER.pw_uid, group=USER.pw_gid, extra_groups=[],
                                     cwd="/")
        pid = wait_until(lambda: self.daemon_at(place), HANG, lambda: f"a daemon serves {place}: {program.tail()}")
        self.addCleanup(self.end, pid)
        return pid

    def daemon_at(self, place):
        said = self.command_as(USER, "version", **{**self.variables, "GPUMUX_RUNTIME_DIR": place}).stdout
        found = re.search(r"pid (\d+)", said)
        return int(found[1]) if found else None

    def end(self, pid, number=signal.SIGKILL):
        """And what would start it again."""
        watcher = watcher_of(pid)
        try:
            if watcher is not None:
                os.kill(watcher, signal.SIGKILL)
            os.kill(pid, number)
        except ProcessLookupError:
            return
        wait_until(lambda: not os.path.exists(f"/proc/{pid}/exe"), HANG, "the daemon has ended")

    def is_used_from(self, pid, place, variables):
        """Each command, of those that start a daemon and of the others, has this one."""
        ran = self.command_as(USER, "run", "--", "sh", "-c", "echo $GPUMUX_RUNTIME_DIR", **variables)
        self.assertEqual((ran.returncode, ran.stdout), (0, f"{place}\n"), ran)
        for command in (("status",), ("queue",), ("submit", "--wait", "--", "true"), ("history",)):
            ran = self.command_as(USER, *command, **variables)
            self.assertEqual(ran.returncode, 0, ran)
        self.assertEqual(self.daemon_at(place), pid)

    def test_a_daemon_of_the_login_is_found_without_its_variable(self):
        pid = self.hold(self.login, self.in_login())
        ran = self.command_as(USER, "status", **self.variables)
        self.assertEqual(ran.returncode, 0, ran)
        self.is_used_from(pid, self.login, self.variables)

    def test_a_daemon_of_cron_is_found_in_a_login(self):
        pid = self.hold(self.cron, self.variables)
        ran = self.command_as(USER, "status", **self.in_login())
        self.assertEqual(ran.returncode, 0, ran)
        self.is_used_from(pid, self.cron, self.in_login())

    def test_sockets_that_a_killed_daemon_has_left_hide_no_other(self):
        self.end(self.hold(self.login, self.in_login()))
        self.assertTrue(os.path.exists(f"{self.login}/api.sock"))
        os.unlink(f"{self.cron}/elsewhere")
        pid = self.hold(self.cron, self.variables)
        self.is_used_from(pid, self.cron, self.in_login())

    def test_a_folder_that_is_emptied_is_made_anew(self):
        pid = self.hold(self.login, self.in_login())
        for is_made_again in (True, False):
            # In one go: the daemon may begin in the middle.
            os.rename(self.login, f"{self.directory}/gone")
            shutil.rmtree(f"{self.directory}/gone")
            if is_made_again:
                os.mkdir(self.login, 0o700)
                os.chown(self.login, USER.pw_uid, USER.pw_gid)
            self.is_used_from(pid, self.login, self.in_login())


if __name__ == "__main__":
    main()
