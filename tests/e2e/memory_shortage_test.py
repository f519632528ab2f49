# SPDX-License-Identifier: Apache-2.0
"""Memory that the driver does not have: yet, or ever.

Goal: a call that finds no memory is made again as long as memory may come. If none comes, the program gets the driver's
error. Method: the simulated driver refuses scripted calls, or contexts leave no room on the GPU.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.case import GpumuxTest, main
from framework.cgroups import Cgroup, hierarchies
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until

CALLS = paths.ROOT / "tests" / "programs" / "driver_calls.py"


class Shortage(MemoryTest):
    def test_memory_that_the_driver_does_not_have_yet_is_waited_for(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        # The room is there all the time. Tries grow further apart, so these take two seconds. After ten seconds without
        # any movement the daemon would say that nothing will come.
        faults = ";".join(f"cuMemCreate:{call}=CUDA_ERROR_OUT_OF_MEMORY" for call in range(3, 18))
        program = self.start("large", variables={"GPUMUX_SIM_FAULTS": faults}, **LARGE)
        program.expect_success(timeout=HANG)
        self.assertEqual(program.field("digest"), wanted)

    def out_of_memory(self, **calls):
        """Scripted: these calls of these entries find no memory."""
        return ";".join(f"{entry}:{call}=CUDA_ERROR_OUT_OF_MEMORY"
                        for entry, numbers in calls.items() for call in numbers)

    def made_again(self, entries, **options):
        wanted = self.native_digest(**options)
        # The first of each, and some in a row, which is memory that is there and has not come yet.
        for numbers in ([1], [2, 3, 4, 5]):
            faults = self.out_of_memory(**{entry: numbers for entry in entries})
            for program in [self.start("worker", variables={"GPUMUX_SIM_FAULTS": faults}, **options) for _ in range(2)]:
                program.expect_success(timeout=HANG)
                self.assertEqual(program.field("digest"), wanted)
        # Natively they are the program's to deal with.
        for entry in entries:
            program = self.start("worker", preload=False, name=f"native without {entry}",
                                 variables={"GPUMUX_SIM_FAULTS": self.out_of_memory(**{entry: [1]})}, **options)
            self.assertEqual(program.wait(timeout=HANG), 3, f"{entry} is never called")

    def test_any_call_that_finds_no_memory_is_made_again(self):
        self.start_daemon()
        self.made_again(["cuCtxCreate_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreate", "cuEventCreate",
                         "cuLaunchKernel"], steps=20, step_us=100, streams=2, cross_events=1)

    def test_graphs_that_find_no_memory_are_made_again(self):
        self.start_daemon()
        self.made_again(["cuGraphInstantiateWithFlags", "cuGraphLaunch"], steps=20, graph=1)

    def test_launches_that_find_no_memory_while_they_are_captured_are_made_again(self):
        self.start_daemon()
        self.made_again(["cuLaunchKernel"], steps=20, graph=1)

    def test_a_primary_context_that_finds_no_memory_is_made_again(self):
        self.start_daemon()
        self.made_again(["cuDevicePrimaryCtxRetain"], steps=4, primary=1)

    def test_rare_calls_that_find_no_memory_are_made_again(self):
        self.start_daemon()
        for entry in ("cuGLCtxCreate_v2", "cuGraphInstantiateWithParams", "cuKernelSetAttribute",
                      "cuKernelSetCacheConfig"):
            faults = self.out_of_memory(**{entry: [1]})
            codes = []
            for preload in (False, True):
                program = self.start_process([sys.executable, CALLS], stdin=subprocess.PIPE,
                                             environment=self.environment(preload, GPUMUX_SIM_FAULTS=faults))
                with program.popen.stdin as calls:
                    calls.write("init\ncontext 0\nopengl 0\nupload\nkernel\n")
                program.expect_success(timeout=HANG)
                codes.append([line.split()[1] for line in program.lines])
            self.assertEqual(sorted(codes[0]), ["0", "0", "0", "0", "2"], f"natively {entry} finds no memory")
            self.assertEqual(codes[1], ["0"] * 5, entry)

    def test_memory_that_never_comes_is_not_waited_for_for_ever(self):
        self.start_daemon()
        entries = ("cuCtxCreate_v2", "cuModuleLoadData", "cuStreamCreate", "cuLaunchKernel")
        programs = [self.start("worker", name=f"without {entry}", steps=4,
                               variables={"GPUMUX_SIM_FAULTS": f"{entry}:1+=CUDA_ERROR_OUT_OF_MEMORY"})
                    for entry in entries]
        for program in programs:
            self.assertEqual(program.wait(timeout=HANG), 3)
            self.assertEqual(program.field("code"), "2")


@unittest.skipUnless(os.geteuid() == 0 and "memory" in hierarchies(), "needs root and memory cgroups of version 1")
class Limited(MemoryTest):
    def test_no_more_is_lent_than_the_daemons_control_group_allows(self):
        group = Cgroup(f"gpumux-test-{os.getpid()}")
        self.addCleanup(group.remove)
        inside, outside = (folder / "cgroup.procs" for folder in (group.folders["memory"], hierarchies()["memory"]))
        (inside.parent / "memory.limit_in_bytes").write_text("300M", encoding="ascii")
        inside.write_text(str(os.getpid()), encoding="ascii")
        try:
            daemon = self.start_daemon(host_memory="512MiB")
        finally:
            outside.write_text(str(os.getpid()), encoding="ascii")
        budget = daemon.api.status()["host_memory"]["budget_bytes"]
        self.assertGreater(budget, 100 << 20)
        self.assertLessEqual(budget, 300 << 20)
        self.assertEqual(daemon.terminate(), 0)


CONTEXT_BYTES = 256 << 20


class ContextsTest(GpumuxTest):
    daemon_settings = {"mode": "auto", "host_memory": "2GiB"}

    def start_with_contexts(self, name, count, begin):
        """A worker whose threads have a context each. It allocates when the file `begin` is there."""
        program = self.start("worker", name=name, threads=count, steps=40, step_us=500, until=self.enough, begin=begin)
        wait_until(lambda: program.count("context") == count, HANG, "each thread has a context")
        return program

    def expect_no_memory(self, program):
        self.assertEqual(program.wait(timeout=HANG), 3)
        self.assertEqual(program.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY


class NoRoom(ContextsTest):
    # Five contexts: the mover has one.
    machine_settings = {"memory": f"{5 * CONTEXT_BYTES >> 20}MiB", "context_memory": f"{CONTEXT_BYTES >> 20}MiB"}

    def test_contexts_that_leave_no_room_for_any_memory(self):
        """Two programs of two contexts each: nothing on the GPU can leave it, and neither has any memory."""
        daemon = self.start_daemon()
        begin = pathlib.Path(self.directory, "begin")
        programs = [self.start_with_contexts(f"worker{i}", 2, begin) for i in range(2)]
        wait_until(lambda: daemon.api.status()["gpus"][0]["memory"]["foreign_bytes"] >= 5 * CONTEXT_BYTES, HANG,
                   "all have contexts")
        begin.touch()
        wait_until(lambda: any(program.code is not None for program in programs), HANG, "one has no memory")
        refused, other = sorted(programs, key=lambda program: program.code is None)
        self.expect_no_memory(refused)
        why = "no room for it next to the memory that stays|blocks all its programs: one"
        wait_until(lambda: re.search(why, daemon.log()), HANG, "the daemon says why")
        # The daemon may have refused both at once, as the driver would. A program that it has not refused goes on.
        pathlib.Path(self.enough).touch()
        if other.wait(timeout=HANG) == 0:
            os.unlink(self.enough)
            self.compare_with_native(other)
        else:
            self.expect_no_memory(other)


class Newcomers(ContextsTest):
    # Two contexts, the mover's and the first program's memory are more than the GPU.
    machine_settings = {"memory": "1280MiB", "context_memory": f"{CONTEXT_BYTES >> 20}MiB"}

    def test_the_movers_context_is_made_beside_the_first_programs(self):
        """When memory has to leave the GPU there may be no room for a context."""
        daemon = self.start_daemon()
        program = self.start("large", blocks=1, block_kib=8192, rounds=4, until=self.enough)
        self.work_until(lambda: daemon.api.gpu(0)["memory"]["foreign_bytes"] >= 2 * CONTEXT_BYTES, "two contexts",
                        program)

    def test_one_whose_context_needs_what_somebody_else_has(self):
        """It gets a lease, waits for room, and keeps the lease until it has that; and both end as they would alone."""
        self.start_daemon()
        first = self.start("large", name="first", blocks=70, block_kib=8192, rounds=4, step_us=2000, until=self.enough)
        first.wait_for_line("round", timeout=HANG)
        for i in range(2):
            self.start("large", name=f"newcomer{i}", blocks=2, block_kib=8192, rounds=3).expect_success(timeout=HANG)
        self.work_until(lambda: True, "the first program is at work all the time", first)

    def test_contexts_that_leave_too_little_room_for_memory_that_is_away(self):
        """The first program's memory made way for the second one's contexts. It comes back when these are gone."""
        daemon = self.start_daemon()
        first = self.start("large", name="first", blocks=50, block_kib=8192, rounds=4, step_us=2000, until=self.enough)
        first.wait_for_line("round", timeout=HANG)
        begin = pathlib.Path(self.directory, "begin")
        second = self.start_with_contexts("second", 2, begin)
        wait_until(lambda: any("contexts" in seat["waits_for"] for seat in daemon.api.seats()), HANG,
                   lambda: f"status names the contexts: {daemon.api.seats()}")
        begin.touch()
        self.work_until(lambda: second.count("ready") == 2, "the second program has memory", second, first)


if __name__ == "__main__":
    main()
