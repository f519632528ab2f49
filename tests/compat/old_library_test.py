#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon serves the library of an earlier release (src/wire/messages.h, Versions).

The old library is that of the revision that tests/compat/revision names; build_library.sh builds it from the history.
The new library, the daemon, the programs and the simulated driver are this checkout's.

Goal: programs with the old library share GPUs with each other and with programs of the new library. Each computes what
it computes alone and reads what it has written. Method: one scenario for each part of the protocol: turns, idle
release, gangs, stalls, measuring, memory and quotas, frames, and a daemon that is restarted.

The reverse, a new library with an earlier daemon, is not promised and not tested.
"""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.memory import LARGE, MemoryTest  # noqa: E402
from framework.waiting import wait_until  # noqa: E402

NO_HISTORY = 77  # exit status of build_library.sh

old_library = None


def setUpModule():
    global old_library
    built = subprocess.run([HERE / "build_library.sh"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           check=False)
    if built.returncode == NO_HISTORY:
        raise unittest.SkipTest(built.stderr.strip())
    if built.returncode != 0:
        raise AssertionError(built.stderr)
    old_library = built.stdout.strip()


class OldLibraryTest(GpumuxTest):
    """Programs that each preload a library of the test's choice."""

    def start_with(self, library, program, variables=None, **options):
        return self.start(program, variables={"LD_PRELOAD": library, **(variables or {})}, **options)

    def start_each(self, program, libraries, **options):
        """One program with each of these libraries; it has said `ready` or `memory`, and runs with that library."""
        programs = [self.start_with(library, program, name=f"{program}{i}", **options)
                    for i, library in enumerate(libraries)]
        for process, library in zip(programs, libraries):
            process.wait_for_line({"worker": "ready", "large": "memory"}[program], timeout=60)
            with open(f"/proc/{process.pid}/maps", encoding="utf-8") as maps:
                self.assertIn(str(library), maps.read(), f"{process.name} runs without its library")
        return programs

    def expect_status(self, *programs):
        text, _ = self.ask("status")
        for program in programs:
            self.assertRegex(text, rf"\b{program.pid}\b")


    def have_turns(self, daemon, programs, turns):
        switches = daemon.trace.switches(0)
        return all(switches.count(program.pid) >= turns for program in programs)


class Turns(OldLibraryTest):
    gpus = 2

    def take_turns(self, *libraries):
        daemon = self.start_daemon(quantum="5ms")
        programs = self.start_each("worker", libraries, steps=20, step_us=500, sync_every=3, until=self.enough)
        self.expect_status(*programs)
        self.work_until(lambda: self.have_turns(daemon, programs, 4), "4 turns of each", *programs)
        self.assertEqual(daemon.trace.check_exclusive(), [])
        self.assertTrue(daemon.trace.events(event="revoke"))

    def test_two_take_turns(self):
        self.take_turns(old_library, old_library)

    def test_old_and_new_take_turns(self):
        self.take_turns(old_library, paths.LIBRARY)

    def test_without_overlap_no_work_runs_beside_others(self):
        """By the programs' own account, too."""
        daemon = self.start_daemon(quantum="5ms", overlap="false")
        logs = {name: os.path.join(self.directory, name) for name in ("old", "new")}
        programs = [self.start_with(library, "worker", name=name, log=log, steps=20, step_us=500, sync_every=3,
                                    until=self.enough)
                    for (name, log), library in zip(logs.items(), (old_library, paths.LIBRARY))]
        self.work_until(lambda: self.have_turns(daemon, programs, 4), "4 turns of each", *programs)
        self.assertEqual(daemon.trace.check_exclusive(overlap=False), [])
        self.assertGreater(self.check_sure_intervals(logs), 10)

    def test_a_holder_keeps_its_lease_across_a_restart(self):
        daemon = self.start_daemon(quantum="unlimited", idle_hold="10s")
        options = {"steps": 100_000, "step_us": 300, "sync_every": 2, "say_every": 1}
        holder = self.start_with(old_library, "worker", name="holder", **options)
        holder.wait_for_line("step")
        waiter = self.start_with(old_library, "worker", name="waiter", **{**options, "steps": 20})
        daemon.trace.wait_for(event="request", pid=waiter.pid)
        grant = daemon.trace.events(event="grant", pid=holder.pid)[-1]
        daemon.restart()
        claim = daemon.trace.wait_for(event="claim", pid=holder.pid)[0]
        self.assertEqual((claim["detail"], claim["epoch"]), ("holding", grant["epoch"]))
        daemon.trace.wait_for(event="request", pid=waiter.pid, count=2)
        said = holder.count("step")
        wait_until(lambda: holder.count("step") > said + 50, 20, "the holder goes on with the new daemon")
        self.assertEqual(waiter.count("step"), 0, "the waiter was let in beside the holder")
        holder.send(signal.SIGKILL)
        waiter.expect_success()

    def test_a_daemon_that_is_restarted(self):
        daemon = self.start_daemon(quantum="5ms")
        programs = self.start_each("worker", (old_library, old_library, paths.LIBRARY), steps=20, step_us=500,
                                   sync_every=3, until=self.enough)
        for _ in range(3):
            daemon.restart()
            seen = len(daemon.trace.leases(0))
            wait_until(lambda: self.pids_of(daemon.trace.leases(0)[seen:]) == self.pids_of(programs), 20,
                       "each has a lease of the daemon that was started last")
        self.work_until(lambda: True, "", *programs)
        self.assertEqual(daemon.trace.check_exclusive(), [])

    @staticmethod
    def pids_of(things):
        return {thing.pid for thing in things}

    def test_an_idle_holder_gives_way(self):
        daemon = self.start_daemon(quantum="unlimited", idle_hold="1ms")
        programs = self.start_each("worker", (old_library, old_library), steps=20, step_us=300, sync_every=1,
                                   pause_us=20_000, until=self.enough)
        self.work_until(lambda: self.have_turns(daemon, programs, 4), "4 turns of each", *programs)
        self.assertEqual(daemon.trace.revocations(), [])

    def start_jobs(self, libraries, **variables):
        """Two jobs of two processes whose kernels wait for each other; a process with each of the two libraries."""
        processes = []
        for job in range(2):
            meet = os.path.join(self.directory, f"meet{job}")
            os.mkdir(meet)
            for rank, library in enumerate(libraries):
                processes.append(self.start_with(
                    library, "collective", name=f"job{job}.{rank}", meet=meet, rank=rank, rounds=1000, ahead=20,
                    drift_us=500, step_us=200,
                    variables={key: value.format(job=job) for key, value in variables.items()}))
        return processes

    def test_a_gang_of_old_and_new(self):
        """If its members were not granted together, the two jobs would wait for each other for ever."""
        daemon = self.start_daemon(quantum="5ms", interrupt="off")
        processes = self.start_jobs((old_library, paths.LIBRARY), GPUMUX_RUN_ID="job{job}", WORLD_SIZE="2",
                                    LOCAL_WORLD_SIZE="2")
        for process in processes:
            process.expect_success(timeout=120)
        opened = {event["pid"] for event in daemon.trace.events(event="grant", detail="again")}
        for process in processes:
            self.assertIn(process.pid, opened, f"{process.name} was never opened again: the test has shown little")
        self.assertEqual(daemon.trace.check_exclusive(), [])

    def test_stalled_strangers_have_their_turns(self):
        """The library knows a lease that comes while it drains as one that is given back."""
        daemon = self.start_daemon(quantum="5ms", overlap="false", stall_timeout="100ms", interrupt="off")
        processes = self.start_jobs((old_library, old_library), GPUMUX_GANG="none")
        for process in processes:
            daemon.trace.wait_for(event="grant", pid=process.pid, count=3, timeout=60)
        self.assertTrue(daemon.trace.events(event="stall"))


class Gain(OldLibraryTest):
    machine_settings = {"slice": "2ms", "switch_cost": "4ms"}  # at once, a change of program costs most of the time
    daemon_settings = {"mode": "auto", "quantum": "20ms"}

    def test_what_gives_more_is_measured(self):
        daemon = self.start_daemon()
        self.start_each("worker", (old_library, old_library), steps=10_000_000, step_us=500)
        wait_until(lambda: "of the speed that they have at once: they take turns" in daemon.api.gpu(0)["mode_why"], 90,
                   lambda: f"a choice by what the programs answer; the daemon says {daemon.api.gpu(0)['mode_why']}")


class Memory(OldLibraryTest, MemoryTest):
    def take_turns_with_memory(self, *libraries):
        daemon = self.start_daemon()
        programs = self.start_each("large", libraries, variables={"GPUMUX_VERIFY": "1"}, until=self.enough, **LARGE)
        self.expect_status(*programs)

        def were_evicted():
            evicted = {event["pid"] for event in daemon.trace.events(event="evicted")}
            return (self.have_turns(daemon, programs, 3) and all(program.pid in evicted for program in programs) and
                    daemon.api.gpu(0)["memory"]["moved_in_bytes"] > 0)

        # Memory that was evicted early was all zeros, and is not copied.
        self.work_until(were_evicted, "3 turns of each, with evictions of each, and memory that was copied", *programs)
        wait_until(lambda: daemon.api.status()["host_memory"]["lent_bytes"] == 0, 60, "host memory is back")

    def test_two_that_do_not_fit_together(self):
        self.take_turns_with_memory(old_library, old_library)

    def test_old_and_new_that_do_not_fit_together(self):
        self.take_turns_with_memory(old_library, paths.LIBRARY)

    def test_a_daemon_that_is_restarted(self):
        daemon = self.start_daemon()
        programs = self.start_each("large", (old_library, old_library), until=self.enough, **LARGE)
        for _ in range(3):
            daemon.restart()
            seen = [len(program.lines) for program in programs]
            wait_until(lambda: all(len(program.lines) > lines + 1 for program, lines in zip(programs, seen)), 60,
                       lambda: f"both programs get on; they said {[program.tail(3) for program in programs]}")
        self.work_until(lambda: True, "", *programs)

    def test_a_quota_holds(self):
        self.start_daemon()
        variables = {"GPUMUX_MEM_LIMIT": "60M"}
        within = self.start_with(old_library, "large", variables=variables, **LARGE).expect_success(timeout=60)
        self.assertEqual(within.field("total", start="memory"), str(60 << 20))
        beyond = self.start_with(old_library, "large", variables=variables, **{**LARGE, "blocks": 8})
        self.assertEqual(beyond.wait(timeout=60), 3)
        self.assertEqual(beyond.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY


class HandedOver(OldLibraryTest):
    """As in tests/e2e/handed_over_test.py."""
    machine_settings = {"memory": "272MiB", "reserved_memory": "16MiB", "context_memory": "4MiB",
                        "d2h_bandwidth": "16G", "h2d_bandwidth": "16G", "kernel_bandwidth": "32G"}
    daemon_settings = {"mode": "auto", "quantum": "50ms", "reserve": "8MiB", "host_memory": "2GiB", "hand_over": "true"}

    def test_frames_go_to_and_fro(self):
        daemon = self.start_daemon()
        programs = self.start_each("large", (old_library, paths.LIBRARY), blocks=5, block_kib=32768, rounds=12,
                                   until=self.enough)
        self.work_until(lambda: self.have_turns(daemon, programs, 2) and
                        daemon.api.gpu(0)["memory"]["handed_over_bytes"] > 0,
                        "2 turns of each, and memory that is handed over", *programs)
        wait_until(lambda: daemon.api.gpu(0)["memory"]["returning_bytes"] == 0, 20, "the GPU's memory is back")


if __name__ == "__main__":
    main()
