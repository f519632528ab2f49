# SPDX-License-Identifier: Apache-2.0
"""Programs that do not fit together: a process of its own, the mover, moves their memory."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import paths
from framework.case import main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class MoverTest(MemoryTest):

    def movers(self, daemon):
        """The process ids of all movers that the daemon has started, the newest last."""
        return [int(pid) for pid in re.findall(r"the mover is started.* pid=(\d+)", daemon.log())]

    def start_daemon_with_mover(self, script):
        """A daemon that starts this shell script as its mover, and the script's path."""
        folder = os.path.join(self.directory, "bin")
        os.mkdir(folder)
        shutil.copy(paths.DAEMON, folder)
        os.symlink(os.path.join(os.path.dirname(paths.DAEMON), "gpumux-runner"), os.path.join(folder, "gpumux-runner"))
        program = os.path.join(folder, "gpumux-mover")
        with open(program, "w") as file:
            file.write(f"#!/bin/sh\n{script}")
        os.chmod(program, 0o755)
        return self.start_daemon(program=os.path.join(folder, "gpumuxd")), program

    def started(self, count, **options):
        return [self.start("large", name=f"large{i}", variables={"GPUMUX_VERIFY": "1"}, until=self.enough,
                           **{**LARGE, **options}) for i in range(count)]

    def turns_of(self, daemon, more):
        before = len(daemon.trace.switches(0))
        return lambda: len(daemon.trace.switches(0)) >= before + more


class Mover(MoverTest):

    def test_memory_comes_and_goes_through_it(self):
        daemon = self.start_daemon()
        programs = self.started(2)
        seats = []

        def have_moved():
            seats[:] = [seat["memory"] for seat in daemon.api.status()["gpus"][0]["seats"]]
            return len(seats) == 2 and all(seat["moved_out_bytes"] and seat["moved_in_bytes"] for seat in seats)
        self.work_until(have_moved, "both have moved", *programs)
        self.assertEqual(len(self.movers(daemon)), 1)
        # Without a seat it ends, and its host memory is the daemon's again.
        wait_until(lambda: "the mover has no seat, and ends" in daemon.log(), HANG, "the mover has ended")
        wait_until(lambda: daemon.api.status()["host_memory"]["lent_bytes"] == 0, HANG, "nothing is lent")
        self.work_until(have_moved, "both have moved", *self.started(2))
        self.assertEqual(len(self.movers(daemon)), 2)

    def test_three_that_map_memory_by_themselves(self):
        self.start_daemon()
        self.run_together(3, allocator="vmm", churn=1, **LARGE)

    def test_it_is_killed_again_and_again(self):
        self.expect_error("the mover has ended, and is started again")
        self.expect_error("CUDA error|error 600|cannot bring memory back")
        daemon = self.start_daemon()
        programs = self.started(2)
        for kills in range(1, 5):
            wait_until(lambda: len(self.movers(daemon)) == kills, HANG, "another one is started")
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            os.kill(self.movers(daemon)[-1], signal.SIGKILL)
        wait_until(lambda: len(self.movers(daemon)) == 5, HANG, "another one is started")
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)

    @staticmethod
    def children(pid):
        """Of all threads of the process."""
        found = []
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, path.read_text().split())
        return found

    def test_its_doorkeeper_is_killed_again_and_again(self):
        daemon = self.start_daemon()
        programs = self.started(2)

        def doorkeepers():
            # The mover's starter has a guard for each.
            [starter] = self.children(self.movers(daemon)[-1])
            return [one for guard in self.children(starter) for one in self.children(guard)]

        for _ in range(4):
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            wait_until(doorkeepers, HANG, "a doorkeeper")
            os.kill(doorkeepers()[0], signal.SIGKILL)
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)
        self.assertEqual(len(self.movers(daemon)), 1)

    def test_its_starter_is_killed(self):
        self.expect_error("the mover has ended, and is started again")
        daemon = self.start_daemon()
        programs = self.started(2)
        wait_until(self.turns_of(daemon, 2), HANG, "turns")
        [starter] = self.children(self.movers(daemon)[-1])
        os.kill(starter, signal.SIGKILL)
        wait_until(lambda: len(self.movers(daemon)) == 2, HANG, "another mover is started")
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)

    def test_it_is_stopped_for_a_while(self):
        daemon = self.start_daemon()
        programs = self.started(2)
        wait_until(self.turns_of(daemon, 2), HANG, "turns")
        mover = self.movers(daemon)[-1]
        os.kill(mover, signal.SIGSTOP)
        before = len(daemon.trace.switches(0))
        try:
            # The next switch waits for it, and nothing is lost by that.
            time.sleep(1)
            self.assertLessEqual(len(daemon.trace.switches(0)), before + 2)
            self.assertEqual([program.code for program in programs], [None, None])
        finally:
            os.kill(mover, signal.SIGCONT)
        self.work_until(self.turns_of(daemon, 2), "turns", *programs)

    def test_one_that_is_stopped_for_good_is_replaced(self):
        self.expect_error("the mover is stopped or hangs, and the daemon ends it")
        self.expect_error("the mover has ended, and is started again")
        daemon = self.start_daemon()
        programs = self.started(2)
        wait_until(self.turns_of(daemon, 2), HANG, "turns")
        os.kill(self.movers(daemon)[-1], signal.SIGSTOP)
        wait_until(lambda: len(self.movers(daemon)) == 2, HANG, "another one is started")
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)

    def spoil(self, **how):
        daemon = self.start_daemon()
        programs = [*self.started(1, **how), *self.started(1)]

        def has_spoiled_some():
            return programs[0].count("spoiled") and int(programs[0].field("spoiled")) >= 3
        self.work_until(has_spoiled_some, "it has spoiled three connections", *programs)
        self.assertEqual(len(self.movers(daemon)), 1)
        return daemon

    def test_a_program_closes_its_connection(self):
        self.spoil(close_mover=1)

    def test_a_program_sends_a_file(self):
        daemon = self.spoil(file_to_mover=1)
        self.assertIn("has sent a descriptor that is no GPU memory", daemon.log())

    def test_one_that_cannot_start_is_said_and_no_program_waits_for_it(self):
        self.expect_error("the mover cannot be started")
        starts = os.path.join(self.directory, "starts")
        daemon, program = self.start_daemon_with_mover(f"echo >> {starts}\nexit 1\n")

        def why():
            return daemon.api.status()["host_memory"]["why_no_mover"]
        first = self.start("large", until=self.enough, **LARGE)
        wait_until(why, HANG, "the daemon says so")
        with open(starts) as lines:
            before = len(lines.readlines())

        def has_been_tried():
            with open(starts) as lines:
                return len(lines.readlines()) >= before + 2
        wait_until(has_been_tried, HANG, "it is tried again")
        self.assertEqual(daemon.log().count("the mover cannot be started"), 1)
        second = self.start("large", **LARGE)
        second.wait(timeout=HANG)
        self.assertIn("cuMemAlloc_v2(&block.data, block.count * 4) gave 2", second.tail(20))
        memory = daemon.api.status()["gpus"][0]["seats"][0]["memory"]
        self.assertGreater(memory["unpageable"]["no_mover"], 48 << 20)
        # Without a moment in which there is none.
        shutil.copy(os.path.join(os.path.dirname(paths.DAEMON), "gpumux-mover"), program + ".new")
        os.rename(program + ".new", program)
        wait_until(lambda: not why(), HANG, "it serves")
        others = self.started(1)
        self.work_until(self.turns_of(daemon, 2), "turns", first, *others)

    def test_a_mover_that_starts_late_does_not_take_the_next_ones_door(self):
        go, has_started = (os.path.join(self.directory, name) for name in ("go", "has_started"))
        real = os.path.join(os.path.dirname(paths.DAEMON), "gpumux-mover")
        daemon, _ = self.start_daemon_with_mover(
            f"if mkdir {has_started} 2>/dev/null; then while [ ! -e {go} ]; do sleep 0.05; done; fi\n"
            f"exec {real} \"$@\"\n")
        first = self.start("large", until=self.enough, **LARGE)
        wait_until(lambda: len(self.movers(daemon)) == 1, HANG, "the first mover is started")
        daemon.kill()
        daemon.start()
        programs = self.started(1)
        wait_until(lambda: len(self.movers(daemon)) == 2, HANG, "another one is started")
        late, mover = self.movers(daemon)
        pathlib.Path(go).touch()
        # It has started when it has its program's driver.
        wait_until(lambda: "libcuda" in pathlib.Path(f"/proc/{late}/maps").read_text(), HANG, "the first one starts")
        time.sleep(1)
        daemon.kill()
        daemon.start()
        wait_until(lambda: f"mover serves pid={mover}" in daemon.log(), HANG, "the second one is taken over")
        self.work_until(lambda: True, "nothing more", first, *programs)

    def test_a_stopped_mover_is_not_taken_over(self):
        self.expect_error("is not taken over, and stays with the seats that it has")
        daemon = self.start_daemon()
        programs = self.started(2)
        wait_until(self.turns_of(daemon, 2), HANG, "turns")
        stopped = self.movers(daemon)[-1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            daemon.kill()
            daemon.start()
            third = self.start("large", until=self.enough, **LARGE)
            wait_until(lambda: len(self.movers(daemon)) == 2, HANG, "another one is started for the third program")
        finally:
            os.kill(stopped, signal.SIGCONT)
        self.work_until(self.turns_of(daemon, 4), "turns", *programs, third)

    def test_the_daemon_is_killed(self):
        daemon = self.start_daemon()
        programs = self.started(2)
        for _ in range(3):
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            daemon.kill()
            daemon.start()
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)

    def test_the_next_daemon_takes_it_over(self):
        self.expect_error("the mover has ended, and is started again")
        self.expect_error("CUDA error|error 600|cannot bring memory back")
        daemon = self.start_daemon()
        programs = self.started(2)
        for kills in range(1, 4):
            wait_until(lambda: len(self.movers(daemon)) == kills, HANG, "another one is started")
            mover = self.movers(daemon)[-1]
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            daemon.kill()
            daemon.start()
            wait_until(lambda: f"mover serves pid={mover}" in daemon.log(), HANG, "it is taken over")
            # This daemon has the content that it saved.
            os.kill(mover, signal.SIGKILL)
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)


class EndsWithItsDaemon(MoverTest):
    """As in a container that ends, the mover and its daemon end together."""

    def setUp(self):
        super().setUp()
        self.folder = os.path.join(self.runtime_dir, "memory")
        self.addCleanup(lambda: subprocess.run(["umount", "-l", self.folder], stderr=subprocess.DEVNULL, check=False))

    def kill_both(self, daemon):
        daemon.process.send(signal.SIGSTOP)  # it starts no other one
        os.kill(self.movers(daemon)[-1], signal.SIGKILL)
        daemon.kill()

    def test_the_next_daemon_has_the_data(self):
        self.expect_error("CUDA error|error 600|cannot bring memory back")
        daemon = self.start_daemon(keep_host_memory="true")
        if "ends with this daemon" in daemon.log():
            self.skipTest("the kernel refuses a mount here")
        programs = self.started(2)
        for _ in range(3):
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            self.kill_both(daemon)
            daemon.start()
            self.assertIn("an earlier daemon's host memory is taken over", daemon.log())
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)
        self.assertTrue(os.path.ismount(self.folder))
        daemon.terminate()
        self.assertFalse(os.path.ismount(self.folder), "no data is left")

    def test_a_mover_that_goes_on_is_taken_over(self):
        daemon = self.start_daemon(keep_host_memory="true")
        programs = self.started(2)
        for _ in range(2):
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            daemon.restart()
            wait_until(lambda: "mover serves" in daemon.log(), HANG, "it is taken over")
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)
        wait_until(lambda: os.listdir(self.folder) == [], HANG, "nothing is kept")

    def test_the_data_of_programs_that_have_ended_meanwhile_is_dropped(self):
        self.expect_error("CUDA error|error 600|cannot bring memory back")
        daemon = self.start_daemon(keep_host_memory="true")
        programs = self.started(2)
        wait_until(self.turns_of(daemon, 2), HANG, "turns")
        self.kill_both(daemon)
        for program in programs:
            program.send(signal.SIGKILL)
            program.wait()
        daemon.start()
        wait_until(lambda: os.listdir(self.folder) == [], HANG, "nothing is kept")
        self.work_until(self.turns_of(daemon, 3), "turns", *self.started(2))


class Frozen(MemoryTest):
    """Memory of a program that is frozen in a kernel leaves, and the kernel goes on when it is back."""
    daemon_settings = {**MemoryTest.daemon_settings, "overlap": "false"}
    ballast_kib = 48 << 10  # does not fit beside `large`

    def start_frozen(self, what="wait", **options):
        return self.start("interrupted", name=what, what=what, ballast_kib=self.ballast_kib, until=self.enough,
                          **options)

    def seat_of(self, program):
        return next(seat for seat in self.daemon.api.status()["gpus"][0]["seats"] if seat["pid"] == program.pid)

    def evict(self, what="wait", line="running", **options):
        """A program in a kernel that does not end has been evicted, for one that has computed the right result."""
        wanted = self.native(**LARGE)
        self.daemon = self.start_daemon()
        program = self.start_frozen(what, **options)
        program.wait_for_line(line)
        other = self.start("large", **LARGE).expect_success(timeout=HANG)
        self.assertEqual(other.field("digest"), wanted)
        self.assertIsNone(program.code, program.tail())
        self.assertGreater(self.seat_of(program)["memory"]["moved_out_bytes"], 0)
        return program

    def finish(self, program):
        pathlib.Path(self.enough).touch()
        program.expect_success(timeout=HANG)
        self.assertEqual(self.daemon.trace.events(event="stall"), [])

    def test_it_makes_way_in_the_middle_of_its_kernel(self):
        program = self.evict()
        self.assertTrue(self.daemon.trace.events(event="drained", pid=program.pid, detail="frozen"))
        self.finish(program)

    def test_several_times(self):
        program = self.evict()
        for _ in range(3):
            self.start("large", **LARGE).expect_success(timeout=HANG)
        self.finish(program)

    def test_beside_a_thread_that_frees_memory_of_the_kernels(self):
        self.finish(self.evict("free"))

    def test_beside_a_thread_that_finds_its_stream_full(self):
        self.finish(self.evict("queue", "queued"))

    def test_beside_a_thread_that_copies(self):
        self.finish(self.evict("copy"))

    def test_beside_a_thread_that_waits_in_a_copy(self):
        self.finish(self.evict("download"))

    def test_it_destroys_its_context(self):
        go = os.path.join(self.directory, "go")
        program = self.evict("destroy", go=go)
        pathlib.Path(go).touch()
        program.wait_for_line("destroyed")
        self.finish(program)

    def test_two_in_turn(self):
        """Neither drains before its kernel is told to end."""
        self.daemon = self.start_daemon()
        programs = [self.start_frozen() for _ in range(2)]

        def have_moved():
            memory = [seat["memory"] for seat in self.daemon.api.status()["gpus"][0]["seats"]]
            return len(memory) == 2 and all(one["moved_out_bytes"] and one["moved_in_bytes"] for one in memory)
        self.work_until(have_moved, "both have moved", *programs)

    def test_it_is_killed_while_it_is_away(self):
        program = self.evict()
        program.end()
        self.start("large", **LARGE).expect_success(timeout=HANG)

    def test_the_mover_is_killed(self):
        self.expect_error("the mover has ended, and is started again")
        self.expect_error("CUDA error|error 600|cannot bring memory back")
        program = self.evict()
        os.kill(int(re.findall(r"the mover is started.* pid=(\d+)", self.daemon.log())[-1]), signal.SIGKILL)
        self.finish(program)

    def test_the_daemon_is_killed(self):
        program = self.evict()
        self.daemon.restart()
        self.finish(program)


if __name__ == "__main__":
    main()
