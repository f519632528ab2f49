#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users hand in jobs with the options of Slurm, and change jobs that are there.

Method: as in jobs_test.py.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.api import ApiError  # noqa: E402
from framework.case import main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

MIB = 1 << 20


class Changes(JobsTest):
    def wait_printed(self, job, text):
        path = os.path.join(self.directory, f"{job}.log")
        wait_until(lambda: os.path.exists(path) and text in self.output(job), HANG, f"job {job} prints {text}")

    # ---- how it is handed in

    def test_a_job_begins_when_it_is_to(self):
        begin = time.time() + 3
        job = self.submit("true", begin="now+3")
        found = self.job(job)
        self.assertEqual((found["state"], found["reason"]), ("queued", "begin"))
        self.assertRegex(found["why"], r"^begins at 20\d\d-")
        self.daemon.restart()
        done = self.wait_done(job, "ok")
        self.assertGreaterEqual(done["started_unix_ns"], (begin - 0.1) * 1e9)

    def test_errors_go_to_a_file_of_their_own(self):
        folder = os.path.join(self.directory, "there")
        os.mkdir(folder)
        job = self.submit("sh", "-c", "echo out; echo err >&2; pwd; env", chdir=folder, error="%x-%j.err", name="both",
                          export="ONE=1")
        self.wait_done(job, "ok")
        lines = self.output(job).splitlines()
        self.assertEqual(lines[:2], ["out", folder])
        self.assertIn("ONE=1", lines)
        self.assertFalse([line for line in lines if line.startswith("GPUMUX_BUILD=")], "it was not exported")
        with open(f"{folder}/both-{job}.err", encoding="ascii") as file:
            self.assertEqual(file.read(), "err\n")
        both = self.submit("sh", "-c", "echo out; echo err >&2", error=f"{self.directory}/%j.log")
        self.wait_done(both, "ok")
        self.assertEqual(self.output(both), "out\nerr\n")

    # ---- what a job asks for

    def test_a_waiting_job_is_changed_and_runs_as_it_was_changed(self):
        first = self.hold_gpus(gpus=2)
        self.wait_state(first, "running")
        job = self.submit("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $GPUMUX_MEM_LIMIT", gpus=1, mem="10M")
        said, _ = self.ask("set", "--job", job, "--gpu-ids", "1,0", "--mem", "20M", "--time-limit", "1:00:00",
                           "--priority", "3")
        self.assertEqual(said, f"job {job}: priority 3, time limit 1h, GPUs 1,0, 20.0 MiB on each GPU")
        self.daemon.restart()
        found = self.job(job)
        self.assertEqual((found["gpu_ids"], found["memory_bytes"], found["time_limit_ns"], found["priority"]),
                         ([1, 0], 20 * MIB, 3600 * 10**9, 3))
        self.release(first)
        self.wait_done(job, "ok")
        self.assertEqual(self.output(job), f"1,0 {20 * MIB}\n")

    def test_the_order_of_gpus_alone_is_a_change(self):
        self.ask("admin", "pause")
        job = self.submit("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", gpu_ids="1,0")
        self.ask("set", "--job", job, "--gpu-ids", "0,1")
        self.ask("set", "--job", job, "--gpu-ids", "0,1")
        self.assertEqual(self.job(job)["gpu_ids"], [0, 1])
        self.ask("admin", "unpause")
        self.wait_done(job, "ok")
        self.assertEqual(self.output(job), "0,1\n")

    def test_of_a_job_that_has_started_only_the_time_limit_changes(self):
        job = self.hold_gpus(time_limit="2:00:00")
        self.wait_state(job, "running")
        said, _ = self.ask("set", "--job", job, "--time-limit", "1:00:00")
        self.assertEqual(said, f"job {job}: time limit 1h")
        process = self.gpumux("set", "--job", str(job), "--mem", "20M")
        self.assertEqual(process.wait(), 1)
        self.assertEqual(process.errors,
                         [f"gpumux set: job {job} has started: only its priority and its time limit can change"])
        self.release(job)
        self.wait_done(job, "ok")
        process = self.gpumux("set", "--job", str(job), "--time-limit", "5m")
        self.assertEqual(process.wait(), 1)
        self.assertEqual(process.errors, [f"gpumux set: job {job} has ended, and nothing was changed"])

    def test_a_job_that_never_ran_has_no_time(self):
        job = self.submit("true", hold=True)
        self.assertIn("has waited", self.ask("show", job)[0])
        self.ask("cancel", job)
        self.assertNotRegex(self.ask("show", job)[0], r"(?m)^\s*(time|has waited) ")

    def test_bodies_that_are_wrong_change_nothing(self):
        job = self.submit("true", hold=True)
        for body in ({}, {"held": True, "priority": 1}, {"gpus": 1, "gpu_ids": [0]}, {"gpus": 0}, {"name": "x"},
                     {"memory_bytes": -1}, {"time_limit_ns": "1h"}, {"cancel": False}, [], {"priority": 5000}):
            with self.subTest(body), self.assertRaises(ApiError) as refused:
                self.daemon.api.ask("PATCH", f"/v1/jobs/{job}", body)
            self.assertEqual(refused.exception.status, 400)
        changed = self.daemon.api.ask("PATCH", f"/v1/jobs/{job}", {"priority": 4, "gpus": 7})["jobs"][0]
        self.assertIn("7 GPUs", changed["error"]["message"])
        self.assertEqual(self.job(job)["priority"], 0, "all of a change, or nothing")

    # ---- suspended, resumed, requeued, signalled by hand

    def test_a_job_that_was_suspended_by_hand_stays_so_until_it_is_resumed(self):
        worker = self.worker(steps=10_000_000, step_us=2000, alloc=40 * MIB)
        job = self.submit(*worker, mem="600M", gpu_ids=0)

        def on_gpu():
            return sum(seat.get("memory", {}).get("resident_bytes", 0) for seat in self.daemon.api.seats())

        wait_until(lambda: on_gpu() >= 40 * MIB, HANG, "its memory is on the GPU")
        other = self.submit("true", mem="600M", gpu_ids=0)
        said, _ = self.ask("suspend", job)
        self.assertEqual(said, f"job {job} is told to suspend")
        self.wait_state(job, "suspended")
        self.wait_done(other, "ok")
        self.assertEqual(on_gpu(), 0, "all of its memory has left")
        self.assertEqual(self.ask("suspend", job)[0], f"job {job} is to stay suspended already")
        self.daemon.restart()
        # A job that could go on would have by the time that another has run.
        self.wait_done(self.submit("true", mem="600M", gpu_ids=0), "ok")
        found = self.job(job)
        self.assertEqual((found["state"], found["reason"], found["why"]),
                         ("suspended", "held", f"suspended until `gpumux resume {job}`"))
        self.ask("resume", job)
        self.wait_state(job, "running")
        wait_until(lambda: on_gpu() >= 40 * MIB, HANG, "its memory is back")
        self.assertEqual(self.ask("resume", job)[0], f"job {job} is not suspended by hand")
        self.ask("cancel", job)
        self.wait_done(job, "cancelled")

    def test_resume_releases_no_job_that_has_not_started(self):
        job = self.submit("true", hold=True)
        _, errors = self.ask("resume", job, code=1)
        self.assertIn(f"job {job} is held: only a suspended job can be resumed", errors)
        self.assertEqual(self.job(job)["state"], "held")
        self.assertEqual(self.ask("requeue", job)[0], f"job {job} is in the queue already")
        self.ask("release", job)
        self.wait_done(job, "ok")

    def test_a_requeued_job_runs_again_from_the_beginning(self):
        go = self.directory + "/go"
        job = self.submit("sh", "-c", f"echo begins; while [ ! -e {go} ]; do sleep 0.01; done; echo ends")
        self.wait_printed(job, "begins")
        self.assertEqual(self.ask("requeue", job)[0], f"job {job} is told to end and run again")
        self.wait_printed(job, "begins\nbegins")
        self.assertEqual(self.job(job)["attempt"], 2)
        with open(go, "w", encoding="ascii"):
            pass
        self.wait_done(job, "ok")
        self.assertEqual(self.output(job), "begins\nbegins\nends\n")
        _, errors = self.ask("requeue", job, code=1)
        self.assertEqual(errors, f"gpumux requeue: job {job} has ended already (ok): the queue keeps no command of a "
                                 "job that has ended, so submit it again")

    def test_a_signal_is_all_that_a_job_gets(self):
        script = "trap 'echo got it; exit 3' USR1; echo ready; while :; do sleep 0.01; done"
        job = self.submit("sh", "-c", script)
        waiting = self.submit("true", hold=True)
        self.wait_printed(job, "ready")
        self.wait_state(job, "running")
        process = self.gpumux("cancel", "--signal", "SIGNONE", str(job))
        self.assertEqual(process.wait(), 1)
        self.assertIn("'SIGNONE' is no signal", "\n".join(process.errors))
        process = self.gpumux("cancel", "--signal", "usr1", str(waiting))
        self.assertEqual(process.wait(), 1)
        self.assertIn(f"job {waiting} does not run (it is held)", "\n".join(process.errors))
        self.assertEqual(self.ask("cancel", "--signal", "usr1", job)[0], f"job {job} is sent the signal")
        self.assertEqual(self.wait_done(job, "failed")["exit_status"], 3)
        self.assertIn("got it", self.output(job))

    # ---- what a job has had

    def test_a_job_says_what_it_has_had_of_gpus(self):
        job = self.submit(*self.worker(steps=200, step_us=2000, alloc=40 * MIB), mem="100M")
        self.wait_done(job, "ok")

        def has_had():
            found = self.job(job)
            return found["gpu_seconds"] > 0.2 and found["peak_memory_bytes"] >= 40 * MIB

        wait_until(has_had, HANG, lambda: f"what it has had is with the job: {self.job(job)}")
        found = self.job(job)
        self.assertLess(found["peak_memory_bytes"], 100 * MIB)
        shown = {line[:16].strip(): line[16:] for line in self.ask("show", job)[0].splitlines()}
        self.assertRegex(shown["peak memory"], r"^[0-9.]+ MiB on one GPU$")
        self.assertIn("GPU time", shown)
        fields, _ = self.ask("history", "--format", "id,peak-memory")
        self.assertEqual(fields, f"{job}\t{found['peak_memory_bytes']}")
        self.assertEqual(self.daemon.api.ask("GET", "/v1/jobs?state=done")["jobs"][0]["peak_memory_bytes"],
                         found["peak_memory_bytes"])
        self.daemon.restart()
        self.assertEqual(self.job(job)["peak_memory_bytes"], found["peak_memory_bytes"])


if __name__ == "__main__":
    main()
