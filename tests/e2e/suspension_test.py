#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are suspended in the middle of their work, with memory that does not fit beside the others'.

A suspended job gives up the GPU and all of its memory there before it is frozen, and ends with the right result when it
goes on. Method: programs whose kernels fault on memory that is not there, and that compare what they read with what
they wrote; what the daemon says of their seats meanwhile is looked at.
"""

import os
import pathlib
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.case import GpumuxTest, main
from framework.waiting import HANG, wait_until

MIB = 1 << 20
LARGE = {"blocks": 2, "block_kib": 4096, "ballast_kib": 112 * 1024}  # 120 MiB


class Suspension(GpumuxTest):
    # Each of two programs takes more than half of what is left beside the reserve and two contexts.
    machine_settings = {"memory": "256MiB", "reserved_memory": "16MiB", "context_memory": "4MiB", "d2h_bandwidth": "8G",
                        "h2d_bandwidth": "8G", "kernel_bandwidth": "16G"}
    daemon_settings = {"mode": "auto", "quantum": "30ms", "reserve": "8MiB", "host_memory": "1GiB"}

    def large(self, name):
        """A program that goes on until end(name)."""
        command = [paths.PROGRAMS / "large"]
        for key, value in {**LARGE, "rounds": 20, "step_us": 5000, "until": self.until(name)}.items():
            command += ["--" + key.replace("_", "-"), value]
        return list(map(str, command))

    def until(self, name):
        return pathlib.Path(self.directory, f"end-{name}")

    def end(self, *names):
        for name in names:
            self.until(name).touch()

    def submit(self, *command, **options):
        arguments = ["submit", "--quiet", "--output", os.path.join(self.directory, "%j.log")]
        for key, value in options.items():
            arguments += ["--" + key.replace("_", "-"), str(value)]
        said, _ = self.ask(*arguments, "--", *command)
        return int(said.split()[0])

    def job(self, job):
        return self.daemon.api.ask("GET", f"/v1/jobs/{job}")

    def wait_state(self, job, *states):
        return wait_until(lambda: (found := self.job(job))["state"] in states and found, HANG,
                          lambda: f"job {job} is {states}; it is {self.job(job)}")

    def wait_ok(self, job):
        self.assertEqual(self.wait_state(job, "done")["outcome"], "ok", self.job(job))

    def compare_with_natives(self, *jobs):
        """They are done, and have computed what they compute natively in as many rounds."""
        self.wait_memory_back()
        for job in jobs:
            said = pathlib.Path(self.directory, f"{job}.log").read_text(encoding="utf-8")
            rounds = re.search(r"^again --rounds (\d+)$", said, re.MULTILINE)[1]
            native = self.start("large", name="native", preload=False, rounds=rounds, **LARGE).expect_success(HANG)
            self.assertIn(f"digest={native.field('digest')}", said)

    def seats(self):
        return {seat["pid"]: seat for seat in self.daemon.api.ask("GET", "/v1/status")["gpus"][0]["seats"]}

    def wait_for_its_memory(self):
        """The only job has all its memory. As long as nobody waits for its GPU, its time limit does nothing."""
        def allocated(seat):
            return seat.get("memory", {}).get("allocated_bytes", 0)  # a seat that has just been opened has said nothing

        wait_until(lambda: any(allocated(seat) >= 112 * MIB for seat in self.seats().values()), HANG,
                   lambda: f"it has its memory: {self.seats()}")

    def suspend_one_for_another(self):
        """A job that is frozen, its process, and one that has the GPU instead. The first one ends when it goes on."""
        first = self.submit(*self.large("first"), time_limit=1)
        self.wait_state(first, "running")
        self.wait_for_its_memory()
        (pid,) = self.seats()
        second = self.submit(*self.large("second"))
        self.wait_state(first, "suspended")
        self.end("first")
        return first, pid, second

    def test_one_gives_way_to_another_and_goes_on(self):
        self.daemon = self.start_daemon(library=paths.LIBRARY)
        first, pid, second = self.suspend_one_for_another()
        seat = self.seats()[pid]
        self.assertEqual(seat["phase"], "suspended")
        self.assertEqual(seat["memory"]["resident_bytes"], 0)
        self.assertGreaterEqual(seat["memory"]["evicted_bytes"], 112 * MIB)
        other = wait_until(lambda: next((seat for key, seat in self.seats().items() if key != pid and
                                         seat.get("memory", {}).get("resident_bytes", 0) >= 112 * MIB), None), HANG,
                           "the other one has its memory there")
        self.assertNotEqual(other["phase"], "suspended")
        moved = self.daemon.api.ask("GET", "/v1/status")["gpus"][0]["memory"]["moved_out_bytes"]
        self.end("second")
        self.wait_ok(second)
        after = self.daemon.api.ask("GET", "/v1/status")["gpus"][0]["memory"]["moved_out_bytes"]
        self.assertEqual(after, moved, "it had the GPU alone: nothing was moved for turns")
        self.wait_ok(first)
        self.compare_with_natives(first, second)

    def test_whatever_happens_meanwhile_it_finds_its_connection_again(self):
        self.daemon = self.start_daemon(library=paths.LIBRARY)
        first, pid, second = self.suspend_one_for_another()
        # More than its socket would hold.
        for i in range(600):
            self.daemon.api.ask("PATCH", "/v1/gpus/0", {"idle_hold": f"{1 + i % 9}ms", "in_flight": f"{1 + i % 5}ms"})
        self.end("second")
        self.wait_ok(second)
        self.wait_ok(first)
        self.compare_with_natives(first, second)
        self.assertEqual(len(self.daemon.trace.events(event="connect", pid=pid)), 1)

    def test_it_comes_back_to_a_daemon_that_was_restarted(self):
        self.daemon = self.start_daemon(library=paths.LIBRARY)
        first, pid, second = self.suspend_one_for_another()
        self.daemon.restart()
        self.assertNotIn(pid, self.seats())
        self.end("second")
        self.wait_ok(second)
        self.wait_ok(first)
        self.compare_with_natives(first, second)

    def test_where_host_memory_cannot_take_it_it_goes_on(self):
        self.daemon = self.start_daemon(library=paths.LIBRARY, host_memory="32MiB")
        first = self.submit(*self.large("first"), time_limit=1)
        self.wait_state(first, "running")
        self.wait_for_its_memory()
        second = self.submit(*self.large("second"))
        wait_until(lambda: "host memory cannot take" in self.job(first)["note"], HANG, lambda: self.job(first))
        self.end("first", "second")
        self.wait_ok(first)
        self.wait_ok(second)
        self.compare_with_natives(first, second)


if __name__ == "__main__":
    main()
