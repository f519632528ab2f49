# SPDX-License-Identifier: Apache-2.0
"""The base of scenarios with a daemon of root's and two ordinary users of the system, `games` and `news`.

Each user speaks to the daemon by processes of its own, for the daemon asks the kernel who that is. Needs root.
"""

import json
import os
import pwd
import shutil
import subprocess
import unittest

from . import paths
from .case import GpumuxTest
from .daemon import Daemon
from .waiting import HANG, wait_until

# One that every user may execute.
PYTHON = "/usr/bin/python3"

# Asks the API in a process of the user's, for the daemon asks the kernel who that is.
ASK = """
import http.client, json, socket, sys
class C(http.client.HTTPConnection):
  def connect(self):
    self.sock = socket.socket(socket.AF_UNIX); self.sock.settimeout(30); self.sock.connect(sys.argv[1])
c = C("x"); c.request(sys.argv[2], sys.argv[3], sys.stdin.read() or None); r = c.getresponse()
print(r.status); print(r.read().decode())
"""


class SystemDaemon(Daemon):
    """Serves everybody, as the machine's own does."""

    def start(self, timeout=HANG):
        self.private = False
        return super().start(timeout)


@unittest.skipUnless(os.geteuid() == 0, "needs root: jobs of several users")
class UsersTest(GpumuxTest):
    gpus = 1

    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o755)
        os.chmod(self.runtime_dir, 0o755)
        self.games, self.news = pwd.getpwnam("games"), pwd.getpwnam("news")
        self.homes = {}
        for user in (self.games, self.news):
            self.homes[user.pw_uid] = os.path.join(self.directory, user.pw_name)
            os.mkdir(self.homes[user.pw_uid], 0o700)
            os.chown(self.homes[user.pw_uid], user.pw_uid, user.pw_gid)
        library = self.hand_out(paths.LIBRARY)
        self.daemon = SystemDaemon(self.machine, self.runtime_dir, {"mode": "serial", "library": library},
                                   ["--config", self.write_config("")])
        self.daemons.append(self.daemon)
        self.daemon.start()

    def hand_out(self, *built):
        """Copies that every user may read, for the build may lie where they may not go; the first one's path."""
        for path in built:
            shutil.copy(path, self.directory)
        return os.path.join(self.directory, built[0].name)

    def write_config(self, text):
        path = os.path.join(self.directory, "gpumux.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def ask_as(self, user, method, target, body=None, before="", **popen):
        """`before`: what the process does to itself before it asks."""
        text = body if isinstance(body, str) else json.dumps(body) if body else ""
        popen = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], **popen}
        done = subprocess.run([PYTHON, "-c", before + "\n" + ASK, f"{self.runtime_dir}/api.sock", method, target],
                              input=text, cwd="/", capture_output=True, text=True,
                              timeout=HANG, check=True, **popen)
        status, _, text = done.stdout.partition("\n")
        return int(status), json.loads(text)

    def command_as(self, user, *arguments, **variables):
        """`gpumux` as that user, with nothing of our environment."""
        command = os.path.join(self.directory, paths.COMMAND.name)
        if not os.path.exists(command):
            self.hand_out(paths.COMMAND)
        environment = {"PATH": os.environ["PATH"], "HOME": self.homes.get(user.pw_uid, "/"), "USER": user.pw_name,
                       "GPUMUX_RUNTIME_DIR": self.runtime_dir,
                       "GPUMUX_LIBRARY": os.path.join(self.directory, paths.LIBRARY.name), **variables}
        return subprocess.run([command, *arguments], user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                              env=environment, cwd=environment["HOME"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=HANG, check=False)

    def submit_as(self, user, *command, status=201, popen=None, **fields):
        home = self.homes[user.pw_uid]
        body = {"arguments": list(command), "directory": home, "environment": [f"PATH={os.environ['PATH']}"],
                "output": home + "/%j.log", "memory_bytes": 50 << 20, **fields}
        answer = self.ask_as(user, "POST", "/v1/jobs", body, **(popen or {}))
        self.assertEqual(answer[0], status, answer)
        return answer[1].get("id")

    def job(self, job):
        return self.daemon.api.ask("GET", f"/v1/jobs/{job}")

    def wait_done(self, job):
        return wait_until(lambda: (found := self.job(job))["state"] == "done" and found, HANG,
                          lambda: f"job {job} is done; it is {self.job(job)}")

    def output(self, user, job):
        with open(f"{self.homes[user.pw_uid]}/{job}.log", encoding="utf-8") as file:
            return file.read()

    def reconfigure(self, text):
        self.daemon.terminate()
        self.write_config(text)
        self.daemon.start()
