#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo and the experiment leave the user's own job queue alone.

Method: the user's private daemon has a running and a waiting job and is killed, as by a reboot. Then the script runs
with the user's HOME. While the script's own daemon serves, nothing in HOME has changed. The user's daemon then gets its
queue and runs the waiting job itself.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402


class Scripts(GpumuxTest):

    def setUp(self):
        super().setUp()
        self.home = pathlib.Path(self.directory) / "home"
        self.queue = self.home / ".local" / "state" / "gpumux" / "queue"
        self.queue.parent.mkdir(parents=True)
        self.ran = pathlib.Path(self.directory) / "ran"
        self.first_ends = pathlib.Path(self.directory) / "first-ends"

    def user_daemon(self):
        return self.start_daemon(state_dir=str(self.queue))

    def interrupted_queue(self):
        """Job 1 ended while there was no daemon; job 2 waits for the GPU."""
        daemon = self.user_daemon()
        first = f"touch {self.first_ends}.started; until [ -e {self.first_ends} ]; do sleep 0.02; done"
        self.ask("submit", "--", "sh", "-c", first)
        wait_until(lambda: os.path.exists(f"{self.first_ends}.started"), HANG, "the first job runs")
        second = f'echo "$GPUMUX_RUNTIME_DIR" >{self.ran}.new; mv {self.ran}.new {self.ran}'
        self.ask("submit", "--", "sh", "-c", second)
        job = daemon.api.ask("GET", "/v1/jobs/1")["pid"]
        runner = int(pathlib.Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1])
        daemon.kill()
        self.first_ends.touch()
        # The runner outlives the daemon, and writes how its job ended into the queue's folder.
        wait_until(lambda: not os.path.exists(f"/proc/{runner}"), HANG, "the first job's runner has ended")

    def contents(self):
        """Every file under HOME with its size and the time of its last change."""
        found = {}
        for folder, _, files in os.walk(self.home):
            for path in [folder, *(os.path.join(folder, name) for name in files)]:
                status = os.lstat(path)
                found[path] = (status.st_size, status.st_mtime_ns)
        return found

    def dist(self):
        """A folder like the repository's own, after `make build`."""
        root = pathlib.Path(self.directory) / "root"
        (root / "dist" / "demo").mkdir(parents=True)
        (root / "tools").symlink_to(paths.ROOT / "tools")
        (root / "dist" / "bin").symlink_to(paths.BUILD / "bin")
        (root / "dist" / "lib").symlink_to(paths.BUILD / "lib")
        (root / "dist" / "sim").symlink_to(paths.SIM_LIBRARIES)
        (root / "dist" / "demo" / "gpumux_demo").symlink_to(paths.BUILD / "bin" / "gpumux_demo")
        return root

    def check(self, command, serves):
        """`serves`: whether the script's daemon serves, by the lines that the script has printed."""
        self.interrupted_queue()
        before = self.contents()
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": self.directory,
                       "GPUMUX_STATE_DIR": str(self.queue)}
        script = self.start_process(command, name=str(command[0]), environment=environment)
        wait_until(lambda: serves(script.lines) or script.code is not None, HANG, "the script's daemon serves")
        self.assertIsNone(script.code, script.tail(40))
        self.assertEqual(self.contents(), before)
        self.assertFalse(self.ran.exists())
        self.user_daemon()
        wait_until(self.ran.exists, HANG, "the user's daemon runs the waiting job")
        self.assertEqual(self.ran.read_text().strip(), self.runtime_dir)
        self.assertEqual(script.wait(HANG), 0, script.tail(40))

    def test_demo(self):
        demo = self.dist() / "tools" / "demo.sh"
        self.check(["env", "GPUMUX_DEMO=simulated", "GPUMUX_DEMO_SECONDS=3", demo],
                   lambda lines: any("Each turn as it ends" in line for line in lines))

    def test_experiment(self):
        out = pathlib.Path(self.directory) / "out"
        command = [sys.executable, paths.ROOT / "bench" / "experiment" / "run.py", "--gpu", "simulated", "--dist",
                   paths.BUILD, "--out", out, "--seconds", "2", "--only", "default"]
        folder = pathlib.Path(self.directory)
        self.check(command, lambda _: any(log.stat().st_size for log in folder.glob("*/default.1.batch")))


if __name__ == "__main__":
    main()
