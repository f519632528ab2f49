# SPDX-License-Identifier: Apache-2.0
"""Unified memory, which the driver pages: it makes way for other programs, and counts as what it is."""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class ManagedMemory(MemoryTest):
    """Unified memory, which the driver pages: one program may have more of it than the GPU holds."""
    blocks = {**LARGE, "blocks": 20}  # 160 MiB, of a GPU with 96
    mib = 1 << 20

    def native(self, **options):
        return self.start("large", name="native", preload=False, allocator="managed",
                          **options).expect_success(timeout=HANG).field("digest")

    def seat_of(self, daemon, program):
        return next((seat for seat in daemon.api.seats() if seat["pid"] == program.pid), None)

    def turns_of_two(self, **options):
        """One with more managed memory than the GPU has, one whose memory is paged: each gets the GPU in turn."""
        daemon = self.start_daemon()
        program = self.start("large", name="managed", watch=1, until=self.enough, **self.blocks, **options)
        other = self.start("large", name="paged", until=self.enough, **LARGE)
        program.wait_for_line("round", timeout=HANG)

        def is_counted():
            seat = self.seat_of(daemon, program)
            memory = (seat or {}).get("memory", {})
            return 160 <= memory.get("unpageable", {}).get("managed", 0) / self.mib < 161 and \
                memory["allocated_bytes"] >= 160 * self.mib and memory["unpageable_bytes"] < 16 * self.mib
        wait_until(is_counted, HANG, lambda: f"managed memory is counted: {daemon.api.seats()}")
        # It makes way before the other one's turn, and is fetched in its own.
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 4 and
                        all(int(program.field(what) or 0) >= 2 for what in ("left", "came_back")),
                        "4 turns, and managed memory that has left and come back twice", program, other,
                        allocator="managed")
        # Its own use, of a whole GPU.
        self.assertEqual(program.field("total"), str(96 * self.mib))
        self.assertEqual(program.field("free"), "0")

    def test_a_program_with_managed_memory_makes_way(self):
        self.turns_of_two(allocator="managed")

    def test_a_program_that_is_told_to_use_managed_memory(self):
        self.turns_of_two(variables={"GPUMUX_MEMORY": "managed"})

    def test_alone_nothing_is_asked_of_it(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        program = self.start("large", watch=1, variables={"NVSHARE_ENABLE_SINGLE_OVERSUB": "1"}, **LARGE)
        program.expect_success(timeout=HANG)
        self.assertEqual(program.field("digest"), wanted)
        self.assertEqual((program.field("left"), program.field("came_back")), ("0", "0"))
        others = int(program.field("total")) - 48 * self.mib - 4096 - int(program.field("free"))
        # The reserve of 8, and a context: the driver's 4, expected with 1.5 until they are seen, or both for a moment.
        self.assertTrue(8 * self.mib <= others <= 14 * self.mib, f"{others} bytes are not free")

    def refused(self, why, daemon, **variables):
        program = self.start("large", allocator="managed", variables=variables, **self.blocks)
        self.assertEqual(program.wait(timeout=HANG), 3)
        self.assertEqual(program.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY
        line = (f'an allocation is refused why="{re.escape(why)}.*" pid={program.pid} program=large '
                f'gpu=0 asked=[1-9][0-9]* had=')
        wait_until(lambda: re.search(line, daemon.log()), HANG, lambda: f"the daemon says so: {daemon.log()}")

    def test_a_quota_is_for_managed_memory_too(self):
        self.refused("its run would have more than its quota", self.start_daemon(), GPUMUX_MEM_LIMIT="120M")

    def test_gpu_and_host_memory_are_all_there_is(self):
        self.refused("all allocations together would be more than the GPUs", self.start_daemon(host_memory="48MiB"))


if __name__ == "__main__":
    main()
