# SPDX-License-Identifier: Apache-2.0
"""Quotas of a run's memory, and programs whose memory the driver manages (GPUMUX_MEM_LIMIT, GPUMUX_PAGING=off)."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class Quota(MemoryTest):
    def test_a_quota_is_what_the_gpu_has_before_there_is_a_context(self):
        self.start_daemon()
        for limit, total in (("60M", 60 << 20), ("1G", 96 << 20), ("", 96 << 20)):
            variables = {"GPUMUX_MEM_LIMIT": limit} if limit else {}
            program = self.start("large", variables=variables, **LARGE).expect_success(timeout=HANG)
            self.assertEqual(program.field("total", start="before a context"), str(total))
            self.assertEqual(program.field("total", start="memory"), str(total))

    def test_paging_off_is_the_drivers_own_memory(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        program = self.start("large", variables={"GPUMUX_PAGING": "off"}, **LARGE)
        program.expect_success(timeout=HANG)
        self.assertEqual(program.field("digest"), wanted)

    def test_a_quota_holds_for_the_drivers_own_memory(self):
        daemon = self.start_daemon()
        variables = {"GPUMUX_PAGING": "off", "GPUMUX_MEM_LIMIT": "60M"}
        for allocator in ("malloc", "vmm"):
            within = self.start("large", name=f"within-{allocator}", allocator=allocator, variables=variables, **LARGE)
            within.expect_success(timeout=HANG)
            beyond = self.start("large", name=f"beyond-{allocator}", allocator=allocator,
                                variables={**variables, "GPUMUX_MEM_LIMIT": "40M"}, **LARGE)
            self.assertEqual(beyond.wait(timeout=HANG), 3)
            self.assertEqual(beyond.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY
        wait_until(lambda: daemon.log().count('why="its run would have more than its quota') >= 2, HANG, "the reason")

    def test_a_call_that_is_refused_is_refused_once(self):
        """However often its thread asks the daemon, and for however much."""
        daemon = self.start_daemon()
        for paging in ("off", "on"):
            beyond = self.start("large", name=f"beyond-{paging}", blocks=1, block_kib=1 << 20, rounds=1,
                                variables={"GPUMUX_PAGING": paging})
            self.assertEqual(beyond.wait(timeout=60), 3)
            daemon.trace.wait_for(event="gone", pid=beyond.pid)
            self.assertEqual([event["detail"] for event in daemon.trace.events(event="refused", pid=beyond.pid)],
                             ["gpu_memory"])

    def test_who_has_a_quota_is_made_room_for(self):
        """One allocation takes more than half of the quota, and the driver has no room for it."""
        daemon = self.start_daemon()
        pages = self.start("large", name="pages", **{**LARGE, "blocks": 9, "rounds": 1_000_000})
        pages.wait_for_line("memory", timeout=HANG)
        options = {"blocks": 1, "block_kib": 40 * 1024, "rounds": 2, "churn": 1, "pause_us": 400_000}
        for allocator in ("malloc", "vmm", "async"):
            limited = self.start("large", name=allocator, allocator=allocator, **options,
                                 variables={"GPUMUX_PAGING": "off", "GPUMUX_MEM_LIMIT": "60M"})
            limited.expect_success(timeout=HANG)
        self.assertNotIn("an allocation is refused", daemon.log())
        self.assertIsNone(pages.code)

    def test_a_quota_is_for_the_processes_of_a_run_together_whoever_makes_the_memory(self):
        daemon = self.start_daemon()
        run = {"GPUMUX_PAGING": "off", "GPUMUX_RUN_ID": "together"}
        first = self.start("large", name="first", variables={**run, "GPUMUX_MEM_LIMIT": "60M"},
                           **{**LARGE, "rounds": 1_000_000})
        first.wait_for_line("memory", timeout=HANG)
        # The daemon counts memory that the driver makes when the program has reported it.
        wait_until(lambda: any(seat["memory"]["allocated_bytes"] >= 48 << 20 for seat in daemon.api.seats()), HANG,
                   "48 MiB are reported")
        # It has lost the limit, not the run.
        second = self.start("large", name="second", variables=run, blocks=2, block_kib=8192, rounds=1)
        self.assertEqual(second.wait(timeout=HANG), 3)
        self.assertEqual(second.field("code"), "2")
        wait_until(lambda: daemon.trace.events(event="gone", pid=second.pid), HANG, "it is gone")
        third = self.start("large", name="third", variables=run, blocks=1, block_kib=8192, rounds=1)
        third.expect_success(timeout=HANG)


if __name__ == "__main__":
    main()
