# SPDX-License-Identifier: Apache-2.0
"""Memory that cuMemGetInfo calls free can be allocated, but for a chunk: whatever keeps the rest of the GPU."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class Told(MemoryTest):
    mib = 1 << 20
    chunk = 2 << 20
    reserve = 8 << 20

    def fill(self, name="fills", **options):
        """Starts a program that allocates until it is refused: what it was told, and what it had, in MiB."""
        program = self.start("large", name=name, blocks=1, block_kib=4096, rounds=1, fill_kib=2048, **options)
        program.expect_success(timeout=HANG)
        told, had = (int(program.field(what, start=start)) for what, start in (("free", "memory"), ("bytes", "filled")))
        self.assertGreaterEqual(had, told - self.chunk, "what is called free cannot be had")
        # Memory that the driver makes may be a part of the reserve.
        self.assertLessEqual(had, told + self.chunk + self.reserve, "more can be had than is called free")
        return told / self.mib

    def keep(self, daemon, mib, **options):
        """Starts a program that keeps so much for as long as the test takes."""
        keeps = self.start("large", name="keeps", **{**LARGE, "blocks": 1, "block_kib": mib << 10, "rounds": 1_000_000},
                           **options)
        keeps.wait_for_line("round", timeout=HANG)
        if options.get("preload", True):
            wait_until(lambda: any(seat["memory"]["allocated_bytes"] >= mib << 20 for seat in daemon.api.seats()), HANG,
                       "its memory is reported")
        return keeps

    def test_alone(self):
        self.start_daemon()
        # 112 MiB, less 16 of the driver, the reserve of 8, this program's context of 4, and its 4 MiB.
        self.assertGreater(self.fill(), 74)

    def test_without_paging(self):
        self.start_daemon()
        self.assertGreater(self.fill(variables={"GPUMUX_PAGING": "off"}), 74)

    def test_beside_memory_that_is_paged(self):
        """It makes way, into host memory."""
        self.keep(self.start_daemon(), 40)
        self.assertGreater(self.fill(), 66)

    def test_beside_memory_that_stays(self):
        self.keep(self.start_daemon(), 24, variables={"GPUMUX_PAGING": "off"})
        self.assertLess(self.fill(), 56)

    def test_beside_a_program_without_gpumux(self):
        daemon = self.start_daemon()
        self.keep(daemon, 24, preload=False)
        wait_until(lambda: daemon.api.gpu()["memory"]["foreign_bytes"] >= 24 * self.mib, HANG, "it is seen")
        self.assertLess(self.fill(), 56)

    def test_with_little_host_memory(self):
        self.keep(self.start_daemon(host_memory="8MiB"), 40)
        self.assertLess(self.fill(), 50)

    def test_within_the_quota_of_a_run(self):
        run = {"GPUMUX_RUN_ID": "together", "GPUMUX_MEM_LIMIT": "60M"}
        self.keep(self.start_daemon(), 32, variables=run)
        self.assertLess(self.fill(variables=run), 25)

    def test_within_the_quota_of_a_run_without_paging(self):
        run = {"GPUMUX_RUN_ID": "together", "GPUMUX_MEM_LIMIT": "60M", "GPUMUX_PAGING": "off"}
        self.keep(self.start_daemon(), 32, variables=run)
        self.assertLess(self.fill(variables=run), 25)


if __name__ == "__main__":
    main()
