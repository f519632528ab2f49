#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs that are suspended in the middle of their work, with memory that does not fit beside the others'.

A suspended job gives up the GPU and all of its memory there before it is frozen, and ends with the right result when it
goes on. Method: programs whose kernels fault on memory that is not there, and that compare what they read with what
they wrote; what the daemon says of their seats meanwhile is looked at.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.case import GpumuxTest, main
from framework.waiting import wait_until

MIB = 1 << 20
LARGE = {"blocks": 2, "block_kib": 4096, "ballast_kib": 112 * 1024}  # 120 MiB
ROUNDS = 400  # of 5 ms at least: more than the time limit of a second


class Suspension(GpumuxTest):
    # Each of two programs takes more than half of what is left beside the reserve and two contexts.
    machine_settings = {"memory": "256MiB", "reserved_memory": "16MiB", "context_memory": "4MiB", "d2h_bandwidth": "8G",
                        "h2d_bandwidth": "8G", "kernel_bandwidth": "16G"}
    daemon_settings = {"mode": "auto", "quantum": "30ms", "reserve": "8MiB", "host_memory": "1GiB"}

    def large(self):
        command = [paths.PROGRAMS / "large"]
        for key, value in {**LARGE, "rounds": ROUNDS, "step_us": 5000}.items():
            command += ["--" + key.replace("_", "-"), value]
        return list(map(str, command))

    def digest(self):
        native = self.start("large", name="native", preload=False, rounds=ROUNDS, **LARGE)
        return native.expect_success(timeout=60).field("digest")

    def submit(self, *command, **options):
        arguments = ["submit", "--quiet", "--output", os.path.join(self.directory, "%j.log")]
        for key, value in options.items():
            arguments += ["--" + key.replace("_", "-"), str(value)]
        said, _ = self.ask(*arguments, "--", *command)
        return int(said.split()[0])

    def job(self, job):
        return self.daemon.api.ask("GET", f"/v1/jobs/{job}")

    def wait_state(self, job, *states):
        return wait_until(lambda: (found := self.job(job))["state"] in states and found, 60,
                          lambda: f"job {job} is {states}; it is {self.job(job)}")

    def wait_ok(self, job, digest):
        self.assertEqual(self.wait_state(job, "done")["outcome"], "ok", self.job(job))
        with open(os.path.join(self.directory, f"{job}.log"), encoding="utf-8") as file:
            self.assertIn(f"digest={digest}", file.read())

    def seats(self):
        return {seat["pid"]: seat for seat in self.daemon.api.ask("GET", "/v1/status")["gpus"][0]["seats"]}

    def wait_for_its_memory(self):
        """The only job has all its memory. As long as nobody waits for its GPU, its time limit does nothing."""
        def allocated(seat):
            return seat.get("memory", {}).get("allocated_bytes", 0)  # a seat that has just been opened has said nothing

        wait_until(lambda: any(allocated(seat) >= 112 * MIB for seat in self.seats().values()), 60,
                   lambda: f"it has its memory: {self.seats()}")

    def suspend_one_for_another(self):
        """A job that is frozen, its process, and one that has the GPU instead."""
        first = self.submit(*self.large(), time_limit=1)
        self.wait_state(first, "running")
        self.wait_for_its_memory()
        (pid,) = self.seats()
        second = self.submit(*self.large())
        self.wait_state(first, "suspended")
        return first, pid, second

    def test_one_gives_way_to_another_and_goes_on(self):
        digest = self.digest()
        self.daemon = self.start_daemon(library=paths.LIBRARY)
        first, pid, second = self.suspend_one_for_another()
        seat = self.seats()[pid]
        self.assertEqual(seat["phase"], "suspended")
        self.assertEqual(seat["memory"]["resident_bytes"], 0)
        self.assertGreaterEqual(seat["memory"]["evicted_bytes"], 112 * MIB)
        other = wait_until(lambda: next((seat for key, seat in self.seats().items() if key != pid and
                                         seat.get("memory", {}).get("resident_bytes", 0) >= 112 * MIB), None), 30,
                           "the other one has its memory there")
        self.assertNotEqual(other["phase"], "suspended")
        moved = self.daemon.api.ask("GET", "/v1/status")["gpus"][0]["memory"]["moved_out_bytes"]
        self.wait_ok(second, digest)
        after = self.daemon.api.ask("GET", "/v1/status")["gpus"][0]["memory"]["moved_out_bytes"]
        self.assertEqual(after, moved, "it had the GPU alone: nothing was moved for turns")
        self.wait_ok(first, digest)

    def test_whatever_happens_meanwhile_it_finds_its_connection_again(self):
        digest = self.digest()
        self.daemon = self.start_daemon(library=paths.LIBRARY)
        first, pid, second = self.suspend_one_for_another()
        tenant = self.seats()[pid]["tenant"]
        # More than its socket would hold.
        for i in range(600):
            self.daemon.api.ask("PATCH", "/v1/gpus/0", {"idle_hold": f"{1 + i % 9}ms", "in_flight": f"{1 + i % 5}ms"})
        self.wait_ok(second, digest)
        self.wait_state(first, "running")
        self.assertEqual(self.seats()[pid]["tenant"], tenant)
        self.wait_ok(first, digest)

    def test_it_comes_back_to_a_daemon_that_was_restarted(self):
        digest = self.digest()
        self.daemon = self.start_daemon(library=paths.LIBRARY)
        first, pid, second = self.suspend_one_for_another()
        self.daemon.restart()
        self.assertNotIn(pid, self.seats())
        self.wait_ok(second, digest)
        self.wait_ok(first, digest)

    def test_where_host_memory_cannot_take_it_it_goes_on(self):
        digest = self.digest()
        self.daemon = self.start_daemon(library=paths.LIBRARY, host_memory="32MiB")
        first = self.submit(*self.large(), time_limit=1)
        self.wait_state(first, "running")
        self.wait_for_its_memory()
        second = self.submit(*self.large())
        wait_until(lambda: "host memory cannot take" in self.job(first)["note"], 60, lambda: self.job(first))
        self.wait_ok(first, digest)
        self.wait_ok(second, digest)


if __name__ == "__main__":
    main()
