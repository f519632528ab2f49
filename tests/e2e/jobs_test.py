#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs from end to end: commands, daemon, runners and programs on simulated GPUs.

Method: jobs are handed in as a user does it; what they print, their order, their ends and what is said of them are
compared with what docs/jobs.md promises. Nothing is waited for but by its condition.
"""

import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.api import ApiError  # noqa: E402
from framework.case import main  # noqa: E402
from framework.cgroups import Cgroup, hierarchies  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.machine import Machine  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

MIB = 1 << 20


class Jobs(JobsTest):
    # ---- what a job sees

    def test_a_job_runs_as_it_was_handed_in(self):
        odd = "a b\t'c'\n\"$HOME\" *"
        script = 'printf "%s|" "$@"; pwd; env; umask'
        job = self.submit("sh", "-c", script, "me", odd, "", "-x", gpu_ids="1,0", name="odd")
        self.assertEqual(self.wait_done(job, "ok")["exit_status"], 0)
        printed = self.output(job)
        self.assertTrue(printed.startswith(f"{odd}||-x|"), printed)
        lines = printed.split("\n")
        for expected in ("CUDA_VISIBLE_DEVICES=1,0", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "PYTHONUNBUFFERED=1",
                         f"GPUMUX_JOB_ID={job}", f"HOME={self.directory}", f"GPUMUX_RUNTIME_DIR={self.runtime_dir}"):
            self.assertIn(expected, lines)
        self.assertTrue(any(line.startswith("LD_PRELOAD=") and "libgpumux.so" in line for line in lines), printed)

    def test_logs_of_two_queues_are_kept_apart(self):
        """Every queue numbers its jobs from 1, and a user may hand in jobs to several."""
        machine = Machine(1)
        self.addCleanup(machine.remove)
        other = os.path.join(self.directory, "other")
        os.mkdir(other, 0o700)
        self.start_daemon("other", runtime_dir=other, machine=machine)
        queues = {"first": self.runtime_dir, "second": other}
        for name, runtime_dir in queues.items():
            self.ask("submit", "--wait", "--", "echo", name, GPUMUX_RUNTIME_DIR=runtime_dir)
        for name, runtime_dir in queues.items():
            self.assertEqual(self.ask("logs", "1", GPUMUX_RUNTIME_DIR=runtime_dir)[0], name)

    def test_a_gpu_that_is_gone_after_a_restart_is_named(self):
        job = self.submit("true", gpu_ids=1, hold=True)
        self.daemon.terminate()
        smaller = Machine(1)
        self.addCleanup(smaller.remove)
        self.daemon.machine = smaller
        self.daemon.start()
        self.ask("release", str(job))
        wait_until(lambda: self.job(job).get("why") == "GPU 1 is not there", HANG, lambda: f"why: {self.job(job)}")
        self.ask("cancel", str(job))

    @unittest.skipUnless(os.geteuid() == 0 and "memory" in hierarchies(), "needs root and memory cgroups of version 1")
    def test_a_job_that_the_kernel_has_killed_for_memory_says_so(self):
        group = Cgroup(f"gpumux-test-{os.getpid()}")
        self.addCleanup(group.remove)
        folder = group.folders["memory"]
        (folder / "memory.limit_in_bytes").write_text("32M", encoding="ascii")
        (folder / "memory.swappiness").write_text("0", encoding="ascii")
        join, eat = f"echo $$ >{folder}/cgroup.procs", f"{sys.executable} -c 'b = b\"x\" * (256 << 20)'"
        for script, status, said in ((f"{join}; exec {eat}", 137, "killed: out of memory (host)"),
                                     (f"{join}; {eat} || exit 1", 1, "perhaps out of memory (host): ")):
            done = self.wait_done(self.submit("sh", "-c", script), "failed")
            self.assertEqual(done["exit_status"], status, done)
            self.assertTrue(done["note"].startswith(said), done)
            self.assertIn(done["note"], self.ask("show", str(done["id"]))[0])
        # A later job that fails for another reason has not been killed.
        done = self.wait_done(self.submit("sh", "-c", "exit 137"), "failed")
        self.assertEqual(done["note"], "")

    def test_logs_are_in_the_state_folder_of_the_submitter(self):
        state = os.path.join(self.directory, "scratch")
        self.ask("submit", "--wait", "--", "echo", "here it is", XDG_STATE_HOME=state)
        log = self.job(1)["log"]
        self.assertTrue(log.startswith(f"{state}/gpumux/logs/") and log.endswith("/1.log"), log)
        with open(log, encoding="utf-8") as file:
            self.assertEqual(file.read(), "here it is\n")
        self.assertEqual(self.ask("logs", "1")[0], "here it is")

    def test_memory_of_other_programs_is_seen_beside_a_jobs_programs(self):
        worker = [paths.PROGRAMS / "worker", "--steps", 10_000_000, "--step-us", 300]
        running = self.submit(*worker, mem="100M", gpu_ids=0)

        def has_reported():
            return any(seat.get("memory", {}).get("allocated_bytes") for seat in self.daemon.api.seats())

        wait_until(has_reported, HANG, "the job's program says what memory it has")
        other = self.start("large", preload=False, blocks=3, block_kib=100 << 10, rounds=10_000_000)

        def seen():
            return self.daemon.api.ask("GET", "/v1/queue")["gpus"][0]["outside_jobs_bytes"]

        wait_until(lambda: seen() >= 300 * MIB, HANG, lambda: f"the queue knows of 300 MiB, not {seen()} bytes")
        waiting = self.submit("true", mem="800M", gpu_ids=0)
        self.gpumux("cancel", str(running)).expect_success()
        self.wait_done(running)
        wait_until(lambda: "large uses" in self.job(waiting)["why"], HANG,
                   lambda: f"the reason names the program: {self.job(waiting)['why']}")
        # Nothing but the other program is in its way now.
        self.assertEqual(self.job(waiting)["state"], "queued", self.job(waiting))
        other.end()
        self.wait_done(waiting, "ok")

    def test_a_daemon_that_has_just_started_knows_that_a_gpu_is_full(self):
        other = self.start("large", preload=False, blocks=3, block_kib=100 << 10, rounds=10_000_000)
        other.wait_for_line("memory")

        def seen():
            return self.daemon.api.ask("GET", "/v1/queue")["gpus"][0]["outside_jobs_bytes"]

        wait_until(lambda: seen() >= 300 * MIB, HANG, lambda: f"the queue knows of 300 MiB, not {seen()} bytes")
        waiting = self.submit("true", mem="800M", gpu_ids=0)
        for _ in range(3):
            self.daemon.kill()
            self.daemon.start()
            # It comes later, needs little, and runs: the daemon starts jobs again.
            self.wait_done(self.submit("true", mem="1M", gpu_ids=0, priority=5), "ok")
            self.assertEqual(self.job(waiting)["state"], "queued", self.job(waiting))
        other.end()
        self.wait_done(waiting, "ok")

    def test_bytes_that_are_no_text_arrive(self):
        arguments = [paths.COMMAND, "submit", "--quiet", "--output", self.directory + "/%j.log", "--", "sh", "-c",
                     'printf %s "$0$ODD" | od -An -tx1', b"\xff\xfe"]
        environment = {key.encode(): str(value).encode() for key, value in self.environment(preload=False).items()}
        environment[b"ODD"] = b"\x80"
        said = subprocess.run(arguments, env=environment, check=True, capture_output=True, timeout=HANG).stdout
        job = int(said.split()[0])
        self.wait_done(job, "ok")
        self.assertEqual(self.output(job).split(), ["ff", "fe", "80"])

    def test_programs_share_gpus_as_a_jobs_tenants(self):
        want = self.native_digest(steps=40, step_us=300)
        worker = [paths.PROGRAMS / "worker", "--steps", 40, "--step-us", 300]
        jobs = [self.submit(*worker, mem="400M", gpu_ids=0) for _ in range(2)]
        for job in jobs:
            self.wait_done(job, "ok")
            self.assertIn(f"digest={want}", self.output(job))
        self.assertEqual(len(set(self.daemon.trace.switches(0))), 2)

    def test_ends_are_told_as_they_were(self):
        cases = [("failed", 3, ("sh", "-c", "exit 3"), ""), ("failed", 137, ("sh", "-c", "kill -9 $$"), "SIGKILL"),
                 ("failed", 127, ("no-such-program",), "no-such-program"),
                 ("failed", 126, ("/etc/passwd",), "/etc/passwd")]
        for outcome, status, command, note in cases:
            job = self.submit(*command)
            done = self.wait_done(job, outcome)
            self.assertEqual(done["exit_status"], status, done)
            self.assertIn(note, done["note"])
            self.ask("wait", str(job), code=status)

    def test_a_set_up_command_runs_first(self):
        job = self.submit("sh", "-c", "echo $MADE; echo $CUDA_VISIBLE_DEVICES",
                          env_setup_cmd="export MADE=here CUDA_VISIBLE_DEVICES=9")
        self.wait_done(job, "ok")
        self.assertEqual(self.output(job).split(), ["here", "0"])
        failing = self.submit("echo", "never", env_setup_cmd="echo this is why; exit 5")
        done = self.wait_done(failing, "failed")
        self.assertEqual(done["exit_status"], 5)
        self.assertIn("set-up command", done["note"])
        self.assertIn("this is why", self.output(failing))
        self.assertNotIn("never", self.output(failing))

    # ---- order

    def test_jobs_wait_for_memory_and_say_so(self):
        first = self.hold_gpus(gpu_ids=0)
        second = self.submit("true", gpu_ids=0, mem="600M")
        third = self.submit("true", gpu_ids=0, mem="600M", priority=5)
        self.wait_state(first, "running")
        waiting = self.job(second)
        self.assertEqual((waiting["state"], waiting["place"]), ("queued", 2))
        self.assertEqual(self.job(third)["reason"], "gpu_memory")
        self.assertRegex(self.job(third)["why"], rf"^GPU 0 has 0 B free of 1.0 GiB: job {first} \(.*\) has 1.0 GiB$")
        self.assertRegex(self.job(second)["why"], rf"^job {third} \(true\) goes first$")
        table, _ = self.ask("queue")
        self.assertIn(self.job(third)["why"], table)
        self.release(first)
        for job in (first, second, third):
            self.wait_done(job, "ok")
        self.assertLess(self.job(third)["started_unix_ns"], self.job(second)["started_unix_ns"])

    def test_what_can_never_run_is_refused(self):
        for options, text in (({"gpus": 3}, "3 GPUs asked for, this machine has 2"),
                              ({"mem": "2G"}, "2.0 GiB asked for on each GPU, the largest here has 1.0 GiB"),
                              ({"gpu_ids": "0,7"}, "GPU 7: this machine has GPUs 0 and 1"),
                              ({"after": "ok:99"}, "job 99"), ({"array": "5-1"}, "no range"), ({"output": "%z"}, "%")):
            with self.subTest(options):
                arguments = ["submit"]
                for key, value in options.items():
                    arguments += ["--" + key.replace("_", "-"), str(value)]
                process = self.gpumux(*arguments, "--", "true")
                self.assertNotEqual(process.wait(), 0)
                self.assertIn(text, "\n".join(process.errors).replace("\n  ", " "))
        # A job that is refused gets no warning of things that might go wrong later.
        process = self.gpumux("submit", "--gpu-ids", "7", "--", "no-such-program")
        self.assertNotEqual(process.wait(), 0)
        self.assertEqual(process.errors, ["gpumux submit: GPU 7: this machine has GPUs 0 and 1"])
        self.assertEqual(self.unfinished(), [])

    def test_a_program_that_is_not_there_is_warned_of_when_its_job_is_submitted(self):
        printed, warned = self.ask("submit", "--hold", "--", "no-such-program")
        self.assertRegex(printed, r"^Submitted job \d+$")
        self.assertRegex(warned, r"^gpumux submit: warning: .*no-such-program")

    def test_dependencies_arrays_holds_and_cancels(self):
        held = self.submit("true", hold=True)
        after = self.submit("true", after=f"ok:{held}")
        never = self.submit("true", after=f"ok:{after}")
        other = self.submit("true", after=f"any:{never}")
        self.assertEqual(self.job(held)["state"], "held")
        self.assertEqual(self.job(after)["reason"], "dependency")
        self.assertEqual(self.ask("cancel", str(after))[0], f"job {after} is cancelled")
        self.wait_done(after, "cancelled")
        self.wait_done(never, "dependency failed")
        self.assertEqual(self.job(never)["note"], f"it was to come after job {after} (true), which was cancelled")
        self.wait_done(other, "ok")
        self.ask("release", str(held))
        self.wait_done(held, "ok")
        array = self.submit("sh", "-c", "echo $GPUMUX_ARRAY_INDEX; exit $((GPUMUX_ARRAY_INDEX / 6))", array="3,5-7",
                            mem="50M")
        last = self.submit("true", after=f"any:{array}")
        broken = self.submit("true", after=f"ok:{array}", name="evaluate")
        self.wait_done(last, "ok")
        self.wait_done(broken, "dependency failed")
        self.assertRegex(self.job(broken)["note"], rf"^it was to come after job {array}_[67] \(sh\), which failed$")
        # The store knows how earlier jobs have ended: an element of the array, and a job.
        late = self.submit("true", after=f"ok:{array}")
        self.wait_done(late, "dependency failed")
        self.assertEqual(self.job(late)["note"], f"it was to come after job {array}_6 (sh), which failed")
        later = self.submit("true", after=f"ok:{broken}")
        self.wait_done(later, "dependency failed")
        why = f"it was to come after job {broken} (evaluate), which could not start either"
        self.assertEqual(self.job(later)["note"], why)
        process = self.gpumux("wait", str(later))
        self.assertEqual(process.wait(), 1)
        self.assertIn(f"job {later}: dependency failed: {why}", " ".join(" ".join(process.errors).split()))
        ends = self.daemon.api.ask("GET", f"/v1/jobs?state=all&array={array}")["jobs"]
        self.assertEqual([(job["array_index"], job["outcome"]) for job in ends],
                         [(3, "ok"), (5, "ok"), (6, "failed"), (7, "failed")])
        self.assertEqual(self.output(array).strip(), "3")
        shown, _ = self.ask("show", str(array))
        for index in (3, 5, 6, 7):
            self.assertIn(f"({array}_{index})", shown)
        _, errors = self.ask("logs", str(array), code=1)
        self.assertIn(f"name one of {array}_3, {array}_5, {array}_6, {array}_7", errors)
        self.assertEqual(self.ask("logs", f"{array}_7")[0], "7")

    def test_cancelling_ends_everything_of_a_job(self):
        script = 'trap "echo told; exit 0" TERM; (setsid sleep 1000 &); while :; do sleep 0.01; done'
        job = self.submit("sh", "-c", script)
        self.wait_state(job, "running")
        wait_until(lambda: os.path.exists(f"{self.directory}/{job}.log"), HANG, "the log is there")
        self.ask("cancel", str(job))
        self.wait_done(job, "cancelled")
        # Its directory, and with it everything that its runner had to look after, goes.
        wait_until(lambda: os.listdir(f"{self.runtime_dir}.state/jobs") == [], HANG, "its runner is done")
        self.ask("cancel", "12345", code=1)

    def test_a_second_submission_with_a_token_is_the_first(self):
        body = {"arguments": ["true"], "directory": "/", "environment": [], "token": "once", "array": "0-2",
                "output": f"{self.directory}/o", "held": True}
        first = self.daemon.api.ask("POST", "/v1/jobs", body)
        self.assertEqual(first["count"], 3)
        self.assertEqual(self.daemon.api.ask("POST", "/v1/jobs", body), first)
        self.daemon.restart()
        self.assertEqual(self.daemon.api.ask("POST", "/v1/jobs", body), first)
        self.assertEqual(len(self.unfinished()), 3)

    def test_bad_submissions_are_refused_and_leave_nothing(self):
        good = {"arguments": ["true"], "directory": "/", "environment": []}
        bad = [{"arguments": []}, {"arguments": [""]}, {"directory": "x"}, {"environment": ["nothing"]}, {"gpus": 0},
               {"gpu_ids": [0, 0]}, {"priority": 5000}, {"memory_bytes": -1}, {"time_limit_ns": "1"}, {"unknown": 1},
               {"array": "0-99999"}, {"after": [{"job": 1}]}, {"arguments": ["a\0b"]}, {"arguments": ["x" * 200_000]},
               {"arguments": [{"base64": "%"}]}, {"environment": ["A=" + "x" * 100_000] * 80}, {"nice": 50}]
        for change in bad:
            with self.subTest(list(change)), self.assertRaises(ApiError) as refused:
                self.daemon.api.ask("POST", "/v1/jobs", {**good, **change})
            self.assertEqual(refused.exception.status, 400, refused.exception)
        with self.assertRaises((ApiError, OSError)):  # answered, and closed while it is still being sent
            self.daemon.api.ask("POST", "/v1/jobs", {**good, "arguments": ["x" * (17 << 20)]})
        self.assertEqual(self.daemon.api.ask("GET", "/v1/jobs?state=all")["jobs"], [])

    # ---- suspending

    def test_a_time_limit_is_a_context_switch(self):
        options = {"steps": 1500, "step_us": 2000}
        want = self.native_digest(**options)
        alone = self.submit(*self.worker(**options), gpu_ids=1, time_limit=1)
        first = self.submit(*self.worker(**options), gpu_ids=0, time_limit=1)
        self.wait_state(first, "running")
        second = self.hold_gpus(gpu_ids=0)
        seen = self.wait_state(first, "suspended", "done")
        self.assertEqual(seen["state"], "suspended")
        self.release(second)
        self.wait_done(second, "ok")
        for job in (first, alone):
            self.wait_done(job, "ok")
            self.assertIn(f"digest={want}", self.output(job))
        self.assertLess(self.job(second)["ended_unix_ns"], self.job(first)["ended_unix_ns"])

    def test_on_time_limit_cancel_ends_it(self):
        first = self.submit("sleep", "1000", gpu_ids=0, time_limit=1, on_time_limit="cancel")
        self.wait_state(first, "running")
        second = self.submit("true", gpu_ids=0)
        self.wait_done(first, "timed out")
        self.wait_done(second, "ok")

    def test_a_suspended_job_survives_the_daemon(self):
        script = f"while [ ! -e {self.directory}/end ]; do echo x; sleep 0.02; done"
        first = self.submit("sh", "-c", script, gpu_ids=0, time_limit=1)
        self.wait_state(first, "running")
        second = self.hold_gpus(gpu_ids=0)
        self.wait_state(first, "suspended")
        self.wait_state(second, "running")
        pid = self.job(first)["pid"]
        self.daemon.restart()
        self.assertEqual(self.job(first)["state"], "suspended")
        self.assertEqual(self.job(second)["state"], "running")
        printed = len(self.output(first))
        self.release(second)
        self.wait_done(second, "ok")
        self.wait_state(first, "running")
        self.assertEqual(self.job(first)["pid"], pid)
        wait_until(lambda: len(self.output(first)) > printed, HANG, "it goes on printing")
        with open(f"{self.directory}/end", "w", encoding="utf-8"):
            pass
        self.wait_done(first, "ok")

    def test_a_job_that_turns_out_to_be_frozen_goes_on(self):
        """A daemon that has had no word of a runner takes its job for running. It is, if it was frozen."""
        script = f"while [ ! -e {self.directory}/end ]; do sleep 0.02; done"
        first = self.submit("sh", "-c", script, gpu_ids=0, time_limit=1)
        self.wait_state(first, "running")
        second = self.hold_gpus(gpu_ids=0)
        self.wait_state(first, "suspended")
        runner = self.runner_of(first)
        os.kill(runner, signal.SIGSTOP)
        try:
            self.daemon.restart()
            self.assertEqual(self.job(first)["state"], "running")
        finally:
            os.kill(runner, signal.SIGCONT)
        with open(f"{self.directory}/end", "w", encoding="utf-8"):
            pass
        self.wait_done(first, "ok")
        self.release(second)
        self.wait_done(second, "ok")

    def test_a_job_that_ended_before_its_start_was_stored_has_its_times(self):
        """The daemon is killed when it has started the runner, and the job ends before the next one comes."""
        job = self.submit("sh", "-c", f"while [ ! -e {self.directory}/end ]; do sleep 0.02; done")
        running = wait_until(lambda: (found := self.job(job))["started_unix_ns"] and found, HANG, "its start is stored")
        self.daemon.kill()
        with sqlite3.connect(f"{self.daemon.state_dir}/jobs.db") as store:
            changed = store.execute("UPDATE jobs SET state = 2, started_at = 0 WHERE id = ?", (job,))
            self.assertEqual(changed.rowcount, 1)
        pathlib.Path(self.directory, "end").touch()
        wait_until(lambda: not os.path.exists(f"/proc/{running['pid']}"), HANG, "the job ends")
        self.daemon.start()
        done = self.wait_done(job, "ok")
        # The moment at which its runner began.
        self.assertLessEqual(done["submitted_unix_ns"], done["started_unix_ns"])
        self.assertLessEqual(done["started_unix_ns"], running["started_unix_ns"])

    def test_stopped_runners_do_not_hold_up_the_daemons_start(self):
        """The daemon waits for all of them together, and not for each."""
        jobs = [self.submit("sleep", "1000", mem="1M") for _ in range(12)]
        runners = [self.runner_of(job) for job in jobs]
        for runner in runners:
            os.kill(runner, signal.SIGSTOP)
        try:
            self.daemon.kill()
            begin = time.monotonic()
            self.daemon.start()
            self.assertLess(time.monotonic() - begin, 12)  # 2 s for each were 24 s
        finally:
            for runner in runners:
                os.kill(runner, signal.SIGCONT)
        self.assertEqual([self.job(job)["state"] for job in jobs], ["running"] * len(jobs))

    def test_a_suspended_job_can_be_cancelled(self):
        first = self.submit("sleep", "1000", gpu_ids=0, time_limit=1)
        self.wait_state(first, "running")
        second = self.hold_gpus(gpu_ids=0)
        self.wait_state(first, "suspended")
        self.ask("cancel", str(first))
        self.wait_done(first, "cancelled")
        self.release(second)
        self.wait_done(second, "ok")

    def test_a_higher_priority_takes_a_running_jobs_place(self):
        self.restart_with(queue_preempt="true")
        options = {"steps": 400, "step_us": 2000}
        want = self.native_digest(**options)
        low = self.submit(*self.worker(**options), gpu_ids=0, mem="900M")
        self.wait_state(low, "running")
        same = self.submit("true", gpu_ids=0, mem="900M")
        high = self.submit("true", gpu_ids=0, mem="900M", priority=5)
        self.wait_done(high, "ok")
        self.assertNotEqual(self.job(low)["state"], "done")
        self.assertEqual(self.job(same)["state"], "queued")
        self.wait_done(low, "ok")
        self.wait_done(same, "ok")
        self.assertIn(want, self.output(low))

    def test_jobs_page_in_turns_where_more_is_promised_than_there_is(self):
        self.restart_with(queue_oversubscribe="2")
        options = {"steps": 300, "step_us": 2000}
        want = self.native_digest(**options)
        jobs = [self.submit(*self.worker(**options), gpu_ids=0, mem="900M") for _ in range(3)]
        for job in jobs[:2]:
            self.wait_state(job, "running")
        self.assertEqual(self.job(jobs[2])["reason"], "gpu_memory")
        for job in jobs:
            self.wait_done(job, "ok")
            self.assertIn(want, self.output(job))

    def test_a_job_whose_runner_is_told_to_stop_is_lost(self):
        """As when the machine shuts down: what it makes of SIGTERM is not how it would have ended."""
        polite = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done")
        jobs = [self.submit(*polite, gpu_ids=0, mem="100M"), self.submit(*polite, gpu_ids=0, mem="100M", requeue=True)]
        after = self.submit("true", after=f"ok:{jobs[0]}")
        for job in jobs:
            self.wait_state(job, "running")
            os.kill(self.runner_of(job), signal.SIGTERM)
        self.wait_done(jobs[0], "lost")
        self.wait_done(after, "dependency failed")
        wait_until(lambda: self.job(jobs[1])["attempt"] == 2, HANG, "the other one runs again")
        self.ask("cancel", jobs[1])
        self.wait_done(jobs[1], "cancelled")

    def test_a_daemon_that_follows_one_that_ends_has_its_queue(self):
        """As the private daemon that `gpumux submit` starts when the last one has just become unused."""
        for _ in range(5):
            self.submit("true")
            self.daemon.process.send(signal.SIGTERM)
            while os.path.exists(f"{self.runtime_dir}/api.sock"):
                pass
            self.daemon.start()
            self.assertEqual(self.daemon.api.ask("GET", "/v1/queue")["unavailable"], "")


class JobsWithLargeContexts(JobsTest):
    """A context that no suspension takes off the GPU, and that is more than what is nobody's."""
    machine_settings = {"context_memory": "128MiB"}

    def test_what_it_could_not_take_along_keeps_no_job_from_resuming(self):
        options = {"steps": 2000, "step_us": 2000}
        first = self.submit(*self.worker(**options), gpu_ids=0, mem="900M", time_limit=1)
        self.wait_state(first, "running")
        second = self.hold_gpus(gpu_ids=0, mem="100M", exclusive=True)
        self.wait_state(first, "suspended")
        self.daemon.restart()
        self.wait_state(second, "running")
        self.release(second)
        self.wait_done(second, "ok")
        self.wait_state(first, "running", "done")
        self.wait_done(first, "ok")


if __name__ == "__main__":
    main()
