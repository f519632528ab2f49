#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job queue as a whole: what is paused, drained or full, limits, lists and histories.

Method: as in jobs_test.py.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.api import ApiError  # noqa: E402
from framework.case import main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402


class Queue(JobsTest):
    def test_drained_and_paused(self):
        admin = lambda *words: self.ask("admin", *words)[0]
        self.assertEqual(admin("drain", "0"), "GPU 0: takes jobs -> drained")
        self.assertEqual(admin("drain", "0"), "nothing has changed: it was so before")
        waiting = self.submit("true", gpu_ids=0)
        self.assertEqual(self.job(waiting)["reason"], "drained")
        self.daemon.restart()
        # It is "paused" while the daemon starts.
        wait_until(lambda: self.job(waiting)["reason"] == "drained", HANG, "the GPU is still drained")
        self.assertEqual(admin("resume", "all"), "GPU 0: drained -> takes jobs")
        self.wait_done(waiting, "ok")
        self.assertEqual(admin("pause"), "queue: starts jobs -> paused")
        waiting = self.submit("true")
        self.assertEqual(self.job(waiting)["reason"], "paused")
        self.daemon.restart()
        self.assertEqual(self.job(waiting)["reason"], "paused")
        self.assertEqual(admin("unpause"), "queue: paused -> starts jobs")
        self.wait_done(waiting, "ok")
        refused = self.ask("admin", "drain", "1", "9", code=1)
        self.assertEqual(refused[0], "GPU 1: takes jobs -> drained")
        self.assertIn("there is no GPU '9': this machine has GPUs 0 and 1", " ".join(refused[1].split()))
        self.assertEqual(json.loads(admin("resume", "1", "--json"))["gpus"][1]["drained"], False)

    def test_changed_limits_are_told_old_and_new(self):
        admin = lambda *words: self.ask("admin", *words)[0]
        user = self.daemon.api.daemon()["owner"]
        before = admin("limits", user, "running=2", "gpus=unlimited", "queued=unlimited", "priority_cap=unlimited")
        self.assertRegex(before, rf"^limits of {user}: those of all users -> own ones, running unlimited -> 2")
        self.assertEqual(admin("limits", user, "running=3", "gpus=4"),
                         f"limits of {user}: running 2 -> 3, GPUs unlimited -> 4")
        self.assertIn(f"limits of {user}: running 3, GPUs 4", admin("show").splitlines())
        self.assertRegex(admin("limits", user, "default"),
                         rf"^limits of {user}: own ones -> those of all users, running 3 -> .*, GPUs 4 -> ")

    def test_status_names_the_jobs_that_have_a_gpu(self):
        """Also a job that uses none of its GPUs."""
        job = self.hold_gpus(gpu_ids="0,1", name="idler")
        self.wait_state(job, "running")
        later = self.submit("true", gpus=2, name="later")
        user = self.daemon.api.daemon()["owner"]
        lines = self.ask("status")[0].splitlines()
        named = [line for line in lines if line.startswith("  job: ")]
        self.assertEqual(named, [f"  job: {job} (idler) of {user}; kept for job {later}"] * 2, lines)
        self.release(job)
        self.wait_done(later, "ok")
        self.assertNotIn("job: ", self.ask("status")[0])

    def test_a_sick_gpu_takes_no_jobs(self):
        recovery = pathlib.Path(self.machine.directory) / "recovery-0"
        recovery.write_text("1\n", encoding="ascii")
        wait_until(lambda: self.daemon.api.ask("GET", "/v1/queue")["gpus"][0]["sick"], HANG, "the queue knows")
        waiting = self.submit("true", gpu_ids=0)
        self.assertEqual(self.job(waiting)["reason"], "drained")
        recovery.unlink()
        self.wait_done(waiting, "ok")

    def test_several_are_changed_at_once_and_each_is_told_of_once(self):
        self.ask("admin", "pause")
        array = self.submit("true", array="3-5")
        single = self.submit("true")
        body = {"cancel": True}
        answer = self.daemon.api.ask("PATCH", f"/v1/jobs/{array}_4,{array}_4,{array},{single},{array},77777", body)
        told = [(job["id"], job["changed"], "error" in job) for job in answer["jobs"]]
        self.assertEqual(told, [(array + 1, True, False), (array, True, False), (array + 2, True, False),
                                (single, True, False), (77777, False, True)])
        # Cancelling a job that is done is no error, and changes nothing.
        answer = self.daemon.api.ask("PATCH", f"/v1/jobs/{array}_5,{array}", body)
        self.assertEqual(answer, {"jobs": [{"id": array + 2, "changed": False}, {"id": array, "changed": False}]})
        for wrong in (f"{array}_77", "88888"):
            with self.assertRaises(ApiError) as raised:
                self.daemon.api.ask("PATCH", f"/v1/jobs/{wrong}", body)
            self.assertEqual(raised.exception.status, 404)
        many = self.submit("true", array="0-999")
        self.assertEqual(len(self.daemon.api.ask("PATCH", "/v1/jobs/all", body)["jobs"]), 1000)
        self.wait_done(many + 999, "cancelled")

    @unittest.skipUnless(os.geteuid() == 0, "needs root: a file system of its own")
    def test_a_full_disk_loses_nothing(self):
        self.expect_error("jobs could not be stored")
        disk = os.path.join(self.directory, "disk")
        os.mkdir(disk)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m,mode=700", "none", disk], check=False).returncode:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        self.restart_with(state_dir=disk)
        running = self.hold_gpus(gpu_ids=0)
        waiting = self.submit("true", gpu_ids=0, mem="900M")
        self.wait_state(running, "running")
        with open(f"{disk}/filler", "wb", buffering=0) as filler:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))
        # Nothing can be handed in; what is there ends.
        self.submit("true", code=1)
        self.release(running)
        self.wait_done(running, "ok")
        self.submit("true", code=1)
        os.unlink(f"{disk}/filler")
        self.wait_done(waiting, "ok")
        later = self.submit("true")
        self.wait_done(later, "ok")
        known = [job["id"] for job in self.daemon.api.ask("GET", "/v1/jobs?state=all")["jobs"]]
        self.assertEqual(known, [running, waiting, later], "what was refused has left nothing")
        self.daemon.restart()
        self.assertEqual([self.job(job)["outcome"] for job in (running, waiting, later)], ["ok"] * 3)

    def test_limits_of_a_user(self):
        uid = os.getuid()
        self.daemon.api.ask("PATCH", f"/v1/queue/users/{uid}", {"running": 1, "queued": 2})
        first = self.hold_gpus(mem="10M")
        self.wait_state(first, "running")
        second = self.submit("true", mem="10M")
        self.assertEqual(self.job(second)["reason"], "user_limit")
        self.daemon.restart()
        self.submit("true", mem="10M")
        process = self.gpumux("submit", "--", "true")
        self.assertNotEqual(process.wait(), 0)
        self.assertIn("max_queued: 2", "\n".join(process.errors))
        self.daemon.api.ask("PATCH", f"/v1/queue/users/{uid}", {"default": True})
        self.wait_done(second, "ok")
        self.release(first)
        self.wait_done(first, "ok")

    def test_a_daemon_without_a_queue_says_why_and_goes_on(self):
        self.expect_error("there is no job queue")
        other = self.start_daemon("other", runtime_dir=self.runtime_dir + "2", machine=type(self.machine)(1),
                                  state_dir=self.daemon.state_dir)
        with self.assertRaises(ApiError) as refused:
            other.api.ask("GET", "/v1/jobs")
        self.assertEqual(refused.exception.status, 503)
        self.assertIn("another gpumuxd keeps its jobs", refused.exception.body)
        self.assertIn("another gpumuxd", other.api.ask("GET", "/v1/queue")["unavailable"])
        self.assertEqual(len(other.api.status()["gpus"]), 1)

    def test_lists_come_in_pages(self):
        jobs = [self.submit("true", hold=True) for _ in range(5)]
        seen, beyond = [], 0
        while True:
            page = self.daemon.api.ask("GET", f"/v1/jobs?limit=2&beyond={beyond}")
            seen += [job["id"] for job in page["jobs"]]
            if not page["more"]:
                break
            beyond = seen[-1]
        self.assertEqual(seen, jobs)
        newest = self.daemon.api.ask("GET", "/v1/jobs?order=newest&limit=2")
        self.assertEqual([job["id"] for job in newest["jobs"]], jobs[:2:-1])
        text, _ = self.ask("queue", "--json")
        self.assertEqual(len(json.loads(text)["jobs"]), 5)

    def test_history_is_the_latest_end_first(self):
        first = self.hold_gpus(gpu_ids=0)
        others = [self.submit("true", gpu_ids=1) for _ in range(3)]
        for job in others:
            self.wait_done(job, "ok")
        self.release(first)
        self.wait_done(first, "ok")
        want = [first, *sorted(others, key=lambda job: (self.job(job)["ended_unix_ns"], job), reverse=True)]
        text, _ = self.ask("history", "--format", "id")
        self.assertEqual([int(line) for line in text.split()], want)
        seen, beyond = [], ""
        while True:
            page = self.daemon.api.ask("GET", f"/v1/jobs?state=done&order=ended&limit=1{beyond}")
            seen += [job["id"] for job in page["jobs"]]
            if not page["more"]:
                break
            beyond = f"&beyond={seen[-1]}&beyond_ended={page['jobs'][-1]['ended_unix_ns']}"
        self.assertEqual(seen, want)

    def test_an_array_is_one_line_everywhere(self):
        self.ask("admin", "pause")
        array = self.submit("sleep", "1000", array="0-49%2")
        label = f"{array}_[0-49%2]"
        lines = self.ask("queue")[0].splitlines()
        self.assertEqual(len([line for line in lines if line.startswith(label)]), 1, lines)
        for said in ("50 waiting", "sleep 1000", "the queue is paused"):
            self.assertIn(said, lines[1])
        self.assertIn(f"\n{array}_49 ", self.ask("queue", "--elements")[0])
        self.assertEqual(self.ask("hold", str(array))[0], f"array {label}: 50 held")
        self.assertEqual(self.ask("release", str(array))[0], f"array {label}: 50 released")
        self.ask("cancel", f"{array}_7")
        self.assertEqual(self.ask("cancel", str(array))[0], f"array {array}_[0-6,8-49%2]: 49 cancelled")
        self.wait_done(array + 49, "cancelled")
        lines = self.ask("history", "--limit", "1")[0].splitlines()
        self.assertEqual(len(lines), 2, lines)
        self.assertTrue(lines[1].startswith(label), lines)
        self.assertIn("50 cancelled", lines[1])
        _, errors = self.ask("cancel", f"{array}_7", code=1)
        self.assertIn(f"job {array}_7 has ended already (cancelled)", errors)
        self.ask("admin", "unpause")
        self.assertIn(" 50 cancelled", self.ask("queue", "--all")[0])

    def test_a_job_is_called_after_its_script(self):
        script = pathlib.Path(self.directory) / "train.sh"
        script.write_text("echo $GPUMUX_NAME\n", encoding="ascii")
        job = self.submit("bash", "-e", script)
        self.wait_done(job, "ok")
        self.assertEqual(self.output(job), "train.sh\n", "status shows it, too")
        found = self.job(job)
        self.assertEqual((found["name"], found["command"]), ("train.sh", f"bash -e {script}"))
        self.assertIn(f"bash -e {script}", self.ask("history")[0])
        self.daemon.restart()
        self.assertEqual(self.job(job)["command"], f"bash -e {script}")

    def test_time_limits_tell_when_a_job_starts(self):
        first = self.hold_gpus(gpu_ids=0, time_limit=1000)
        self.wait_state(first, "running")
        second = self.submit("true", gpu_ids=0, time_limit=100)
        third = self.submit("true", gpu_ids=0)
        fourth = self.submit("true", gpu_ids=0)
        starts = [self.job(job).get("starts_in_ns") for job in (first, second, third, fourth)]
        self.assertEqual((starts[0], starts[3]), (None, None), starts)
        self.assertTrue(0 < starts[1] <= 1000e9, starts)
        self.assertTrue(0 < starts[2] <= 1100e9 and starts[2] - starts[1] > 90e9, starts)
        self.assertIn("within ", self.ask("queue")[0])
        self.assertIn("expected start  within ", self.ask("show", str(second))[0])
        self.release(first)

    def test_history_of_a_time_and_of_states(self):
        ok = self.submit("true")
        self.wait_done(ok, "ok")
        failed = self.submit("false")
        cancelled = self.submit("true", hold=True)
        self.ask("cancel", cancelled)
        since = self.wait_done(failed, "failed")["ended_unix_ns"]

        def history(*arguments):
            return {int(line) for line in self.ask("history", "--format", "id", *arguments)[0].split()}

        self.assertEqual(history("--since", "1h"), {ok, failed, cancelled})
        self.assertEqual(history("--state", "failed,dependency-failed"), {failed})
        self.assertEqual(history("--state", "ok", "--since", "1h"), {ok})
        self.assertEqual(self.ask("history", "--state", "timed-out")[0], "No such job has ended.")
        page = self.daemon.api.ask("GET", f"/v1/jobs?state=done&ended_since_unix_ns={since}")
        self.assertIn(failed, [job["id"] for job in page["jobs"]])
        self.assertNotIn(ok, [job["id"] for job in page["jobs"]])
        for wrong in ("--state=done", "--since=soon"):
            self.assertEqual(self.gpumux("history", wrong).wait(), 2)

    def test_a_missing_job_is_named(self):
        job = self.submit("true", hold=True)
        changed = self.daemon.api.ask("PATCH", f"/v1/jobs/{job},999", {"cancel": True})["jobs"]
        self.assertEqual([(one["id"], one["changed"]) for one in changed], [(job, True), (999, False)])
        self.assertIn("no job 999", changed[1]["error"]["message"])

    def test_unknown_parameters_are_refused(self):
        job = self.submit("true", hold=True)
        for target in ("/v1/jobs?stat=done", "/v1/jobs?state=done&state=all", "/v1/jobs?limit",
                       f"/v1/jobs/{job}?limit=1", f"/v1/jobs/{job}?environment=yes",
                       f"/v1/jobs/{job}/wait?environment=1", "/v1/queue?user=eva", "/v1/jobs?order=ended",
                       "/v1/jobs?state=done&order=ended&beyond=1", "/v1/jobs?outcome=ok",
                       "/v1/jobs?state=done&outcome=good", "/v1/jobs?state=all&ended_since_unix_ns=1"):
            with self.subTest(target), self.assertRaises(ApiError) as refused:
                self.daemon.api.ask("GET", target)
            self.assertEqual(refused.exception.status, 400)
        with self.assertRaises(ApiError) as refused:
            self.daemon.api.ask("PATCH", f"/v1/jobs/{job}?force=1", {"cancel": True})
        self.assertEqual(refused.exception.status, 400)
        self.assertEqual(self.job(job)["state"], "held")

    def test_long_lists_are_read_page_by_page(self):
        array = self.submit("true", hold=True, array="1-2500")

        def asked():
            connection = self.daemon.api.connect()
            self.addCleanup(connection.close)
            connection.request("GET", "/v1/jobs")
            return connection

        # Some clients do not read, some go away in the middle, and the others read on.
        idle = [asked() for _ in range(10)]
        reader = asked()
        for gone in [asked() for _ in range(5)]:
            gone.getresponse().read(1000)
            gone.close()
        seen = []
        while True:
            page = json.loads(reader.getresponse().read())
            seen += [job["array_index"] for job in page["jobs"]]
            if not page["more"]:
                break
            reader.request("GET", f"/v1/jobs?beyond={page['jobs'][-1]['id']}")  # the connection is kept
        self.assertEqual(seen, list(range(1, 2501)))
        for late in idle:
            self.assertEqual(len(json.loads(late.getresponse().read())["jobs"]), 1000)
        with self.assertRaises(ApiError) as refused:
            self.daemon.api.ask("GET", "/v1/jobs?limit=1001")
        self.assertEqual(refused.exception.status, 400)

        for options in ((), ("--all",)):
            text, _ = self.ask("queue", "--format", "index", *options)
            self.assertEqual([int(line) for line in text.split()], seen)
        jobs = json.loads(self.ask("queue", "--json")[0])
        self.assertEqual(([job["array_index"] for job in jobs["jobs"]], jobs["more"]), (seen, False))
        self.ask("cancel", str(array))
        text, _ = self.ask("history", "--limit", "2200", "--format", "index")
        self.assertEqual(len(set(text.split())), 2200)


class QueueWithALimit(JobsTest):
    daemon_settings = {"mode": "serial", "queue_max_job_time": "1h"}

    def test_the_queues_limit_is_shown_of_a_job_without_its_own(self):
        job = self.hold_gpus()
        self.wait_state(job, "running")
        self.assertRegex(self.ask("queue")[0], r" (60m00s|59m\d\ds) left")
        self.assertRegex(self.ask("show", str(job))[0], r"(?m)^time limit +the queue's \((60m00s|59m\d\ds) left\)$")
        self.release(job)
        self.wait_done(job, "ok")


# Their own tests only: those of the base have run.


if __name__ == "__main__":
    main()
