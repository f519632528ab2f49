#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: contended each on its own, and together for those whose kernels wait for each other.

Method: jobs whose kernels meet on the devices in every round, as collectives do, two at a time on the same two
GPUs, with quanta of milliseconds and settings changed at random moments. First without gangs, which must be seen to
deadlock: else the test shows nothing.

GPUMUX_TEST_FLIPS: how many changes of settings (default 30). GPUMUX_TEST_SEED repeats a run, as far as processes
allow.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import GpumuxTest, main  # noqa: E402
from framework.seeds import amount, seeded  # noqa: E402
from framework.waiting import HANG, Timeout, wait_until  # noqa: E402


class GangTest(GpumuxTest):
    gpus = 2

    def start_job(self, number, kind, rounds, gang=True, **more):
        """One process with two GPUs ("threads"), or two processes with one each ("processes")."""
        variables = {} if gang else {"GPUMUX_GANG": "none"}
        options = {"rounds": rounds, "ahead": 7, "step_us": 200, **more}
        if kind == "threads":
            return [self.start("collective", name=f"job{number}", variables=variables, **options)]
        meet = os.path.join(self.directory, f"meet{number}")
        os.mkdir(meet)
        if gang:
            variables = {"GPUMUX_RUN_ID": f"job{number}", "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        return [self.start("collective", name=f"job{number}.{rank}", variables=variables, meet=meet, rank=rank,
                           **options) for rank in range(2)]

    def fresh_runtime_dir(self, name):
        self.runtime_dir = os.path.join(self.directory, f"run-{name}")
        os.mkdir(self.runtime_dir, 0o700)
        return self.runtime_dir


class Gangs(GangTest):
    def rounds(self, jobs):
        return [sum(process.count("round") for process in job) for job in jobs]

    def flip_settings(self, daemon, random, jobs, flips):
        """Changes settings at random moments until the jobs are done."""
        for _ in range(flips):
            if all(process.code is not None for job in jobs for process in job):
                return
            time.sleep(random.random() * 0.05)
            daemon.api.set(random.choice(["0", "1", "all"]), **random.choice([
                {"quantum": "1ms"}, {"quantum": "5ms"}, {"quantum": "30ms"}, {"policy": "fifo"}, {"policy": "fair"},
                {"overlap": True}, {"overlap": False}, {"mode": "concurrent"}, {"mode": "serial"}, {"interrupt": "off"},
                {"interrupt": "auto"}]))

    def jobs_finish(self, kinds, flips=None, **settings):
        random = seeded(self.id())
        daemon = self.start_daemon(**{"quantum": "5ms", "gang_ageing": "50ms", "stall_timeout": "2s", **settings})
        jobs = [self.start_job(number, kind, 70) for number, kind in enumerate(kinds)]
        for job in jobs:
            for process in job:
                process.wait_for_line("ready")
        self.flip_settings(daemon, random, jobs, flips if flips is not None else amount("GPUMUX_TEST_FLIPS", 30))
        daemon.api.set("all", mode="serial", quantum="5ms")
        for job in jobs:
            for process in job:
                process.expect_success(timeout=HANG)
        return daemon, jobs

    def test_deadlock_without_gangs(self):
        """Each job gets one GPU and waits there, on the device, for the part of it that waits for the other GPU."""
        self.start_daemon(quantum="5ms", stall_timeout="60s", overlap="false", interrupt="off")
        jobs = [self.start_job(number, "processes", 100_000, gang=False) for number in range(2)]
        self.assertTrue(self.stands_still(jobs), f"nothing stood still: {self.rounds(jobs)}")

    def stands_still(self, jobs):
        """Whether neither job gets on for two seconds, some time within twenty."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            before = self.rounds(jobs)
            try:
                wait_until(lambda: self.rounds(jobs) != before, 2, "some job gets on", poll=0.02)
            except Timeout:
                return all(process.code is None for job in jobs for process in job)
        return False

    def test_with_gangs_the_same_jobs_finish(self):
        """GPUMUX_GANG=none is about other processes: the GPUs of one process are a gang in any case."""
        for kind, gang in (("threads", True), ("threads", False), ("processes", True)):
            with self.subTest(kind=kind, gang=gang):
                name = f"{kind}-{gang}-"
                self.start_daemon(quantum="10ms", overlap="false", runtime_dir=self.fresh_runtime_dir(name))
                jobs = [self.start_job(f"{name}{number}", kind, 70, gang=gang) for number in range(2)]
                for job in jobs:
                    for process in job:
                        process.expect_success(timeout=HANG)
                self.daemons[-1].end()

    def test_two_processes_with_two_gpus_each_under_random_switches(self):
        daemon, jobs = self.jobs_finish(["threads", "threads"])
        self.expect_granted_together(daemon, [job[0].pid for job in jobs])

    def test_two_jobs_of_two_processes_under_random_switches(self):
        self.jobs_finish(["processes", "processes"])

    def test_both_kinds_without_overlap(self):
        self.jobs_finish(["threads", "processes"], flips=0, overlap="false")

    def test_a_gang_beside_single_programs(self):
        daemon = self.start_daemon(quantum="5ms", gang_ageing="50ms")
        singles = [self.start("worker", name=f"single{gpu}", gpu=gpu, steps=100_000, step_us=300, say_every=1)
                   for gpu in (0, 1)]
        for single in singles:
            single.wait_for_line("step")
        for process in self.start_job(0, "threads", 50) + self.start_job(1, "processes", 50):
            process.expect_success(timeout=HANG)
        said = [single.count("step") for single in singles]
        wait_until(lambda: all(single.count("step") > before + 3 for single, before in zip(singles, said)), HANG,
                   "the single programs go on")
        self.assertEqual(daemon.trace.check_exclusive(), [])

    def expect_granted_together(self, daemon, pids):
        """From the moment that a process was a gang, it never held one GPU alone while it waited for the other."""
        for pid in pids:
            leases = [lease for lease in daemon.trace.leases() if lease.pid == pid]
            self.assertEqual({lease.gpu for lease in leases}, {0, 1})

    def test_one_process_contends_on_each_gpu_separately(self):
        """X uses both GPUs, without collectives; Y keeps GPU 0 for itself. X gets on on GPU 1 all the while."""
        daemon = self.start_daemon(quantum="unlimited", idle_hold="10s")
        y = self.start("worker", name="Y", gpu=0, steps=400, step_us=2000, say_every=1)
        y.wait_for_line("step")
        x = self.start("worker", name="X", gpu="0,1", steps=100, step_us=500, say_every=1)
        wait_until(lambda: x.count("step gpu=1") == 100, HANG, lambda: f"X is through on GPU 1: {x.tail(3)}")
        self.assertEqual(x.count("step gpu=0"), 0, "X got on on GPU 0: the test has shown nothing")
        self.assertIsNone(y.code, "Y was done too early: the test has shown nothing")
        y.expect_success()
        x.expect_success()
        self.assertEqual(daemon.trace.switches(0), [y.pid, x.pid])


class Strangers(GangTest):
    """Programs whose kernels wait for each other, and nobody has said so."""

    def test_stalls_tell_who_waits_for_whom(self):
        """Two jobs of two processes each, which deadlock as above: trace and status name likely partners."""
        daemon = self.start_daemon(quantum="5ms", overlap="false", stall_timeout="300ms", interrupt="off")
        for number in range(2):
            self.start_job(number, "processes", 2000, gang=False)
        daemon.trace.wait_for(event="partner", count=4)
        wait_until(lambda: any("it may wait for collective" in seat["note"] for seat in self.seats(daemon)), HANG,
                   lambda: f"status says whom they wait for: {self.seats(daemon)}")

    def seats(self, daemon):
        return [seat for gpu in (0, 1) for seat in daemon.api.seats(gpu)]


class GangsWithMemory(GangTest):
    machine_settings = {"memory": "96MiB", "context_memory": "4MiB", "d2h_bandwidth": "8G", "h2d_bandwidth": "8G"}

    def test_jobs_whose_memory_does_not_fit_together(self):
        """A rank that has drained keeps its memory as long as another one's kernel may wait for it."""
        for kind in ("threads", "processes"):
            with self.subTest(kind=kind):
                daemon = self.start_daemon(quantum="10ms", stall_timeout="4s", reserve="8MiB", host_memory="512MiB",
                                           runtime_dir=self.fresh_runtime_dir(kind))
                jobs = [self.start_job(f"{kind}{number}", kind, 150, load_mib=56, drift_us=2000,
                                       ahead=20) for number in range(2)]
                for job in jobs:
                    for process in job:
                        process.expect_success(timeout=HANG)
                self.assertGreaterEqual(len(daemon.trace.switches(0)), 3)
                self.assertEqual(self.stalls_of_gangs(daemon, jobs), [])
                daemon.end()

    def stalls_of_gangs(self, daemon, jobs):
        """Those since the processes are known as gangs. The library joins one while its program goes on: on a busy
        machine a kernel may wait on one GPU before the daemon knows that it needs both."""
        known = {process.pid: min(int(line.rsplit("t=", 1)[1]) for line in process.lines if line.startswith("round"))
                 for job in jobs for process in job}
        return [event for event in daemon.trace.events(event="stall") if event["time_ns"] > known[event["pid"]]]


class GangsThatDrain(Gangs):
    """All of the same where no work is frozen."""

    daemon_settings = {**GangTest.daemon_settings, "interrupt": "off"}


class GangsWithMemoryThatDrain(GangsWithMemory):
    daemon_settings = {**GangTest.daemon_settings, "interrupt": "off"}


if __name__ == "__main__":
    main()
