# SPDX-License-Identifier: Apache-2.0
"""Programs that do not fit together, with `mover = on`: a process of its own moves their memory."""

import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class Mover(MemoryTest):
    daemon_settings = {**MemoryTest.daemon_settings, "mover": "on"}

    def movers(self, daemon):
        """The process ids of all movers that the daemon has started, the newest last."""
        return [int(pid) for pid in re.findall(r"the mover is started.* pid=(\d+)", daemon.log())]

    def started(self, count, **options):
        return [self.start("large", name=f"large{i}", variables={"GPUMUX_VERIFY": "1"}, until=self.enough,
                           **{**LARGE, **options}) for i in range(count)]

    def turns_of(self, daemon, more):
        before = len(daemon.trace.switches(0))
        return lambda: len(daemon.trace.switches(0)) >= before + more

    def test_memory_comes_and_goes_through_it(self):
        daemon = self.start_daemon()
        programs = self.started(2)
        seats = []

        def have_moved():
            seats[:] = [seat["memory"] for seat in daemon.api.status()["gpus"][0]["seats"]]
            return len(seats) == 2 and all(seat["moved_out_bytes"] and seat["moved_in_bytes"] for seat in seats)
        self.work_until(have_moved, "both have moved", *programs)
        self.assertEqual(len(self.movers(daemon)), 1)
        # It is the mover that has host memory, and no program.
        self.assertEqual([seat["host_lent_bytes"] for seat in seats], [0, 0])

    def test_three_that_map_memory_by_themselves(self):
        self.start_daemon()
        self.run_together(3, allocator="vmm", churn=1, **LARGE)

    def test_a_program_alone_starts_no_context_of_its(self):
        daemon = self.start_daemon()
        program = self.start("large", hold=60, **LARGE)
        program.wait_for_line("digest", timeout=HANG)
        gpu = daemon.api.status()["gpus"][0]
        self.assertEqual(gpu["foreign"], [])

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

    def test_the_daemon_is_killed(self):
        daemon = self.start_daemon()
        programs = self.started(2)
        for _ in range(3):
            wait_until(self.turns_of(daemon, 2), HANG, "turns")
            daemon.kill()
            daemon.start()
        self.work_until(self.turns_of(daemon, 3), "turns", *programs)


if __name__ == "__main__":
    main()
