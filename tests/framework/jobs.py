# SPDX-License-Identifier: Apache-2.0
"""The base of scenarios of the job queue: jobs are handed in as a user does it."""

import os

from . import paths
from .case import GpumuxTest
from .waiting import HANG, wait_until


class JobsTest(GpumuxTest):
    gpus = 2
    daemon_settings = {"mode": "serial"}

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon(library=paths.LIBRARY)

    def submit(self, *command, code=0, **options):
        """The new job's id; its output goes into the test's folder."""
        arguments = ["submit", "--quiet", "--output", os.path.join(self.directory, "%j.log")]
        for key, value in options.items():
            arguments += ["--" + key.replace("_", "-")] + ([] if value is True else [str(value)])
        said, _ = self.ask(*arguments, "--", *map(str, command), code=code)
        return int(said.split()[0]) if code == 0 else None

    def job(self, job):
        return self.daemon.api.ask("GET", f"/v1/jobs/{job}")

    def wait_state(self, job, *states):
        return wait_until(lambda: (found := self.job(job))["state"] in states and found, HANG,
                          lambda: f"job {job} is {states}; it is {self.job(job)}")

    def wait_done(self, job, outcome=None):
        done = self.wait_state(job, "done")
        if outcome is not None:
            self.assertEqual(done["outcome"], outcome, done)
        return done

    def output(self, job):
        with open(os.path.join(self.directory, f"{job}.log"), encoding="utf-8") as file:
            return file.read()

    def unfinished(self):
        return self.daemon.api.ask("GET", "/v1/jobs")["jobs"]

    def hold_gpus(self, **options):
        """A job that has all memory of a GPU until `release(job)`."""
        wait = f"while [ ! -e {self.directory}/go.$GPUMUX_JOB_ID ]; do sleep 0.01; done"
        return self.submit("sh", "-c", wait, **options)

    def release(self, job):
        with open(os.path.join(self.directory, f"go.{job}"), "w", encoding="utf-8"):
            pass

    def runner_of(self, job):
        pid = wait_until(lambda: self.job(job).get("pid"), HANG, "it has a process")
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])

    def worker(self, **options):
        command = [paths.PROGRAMS / "worker"]
        for key, value in options.items():
            command += ["--" + key.replace("_", "-"), value]
        return command

    def restart_with(self, state_dir=None, **settings):
        self.daemon.terminate()
        self.daemon.settings.update(settings)
        self.daemon.state_dir = state_dir or self.daemon.state_dir
        self.daemon.start()
