# SPDX-License-Identifier: Apache-2.0
"""Memory that is handed over: what one program evicts is what the next one gets (docs/decisions/0039).

Goal: programs whose memory is handed over read what they have written, beside killed programs and after a daemon's
restart. Method: as in memory_test.py; the daemon says how much was handed over.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import GpumuxTest, main
from framework.waiting import HANG, wait_until

# 160 MiB, in the smallest pieces that are handed over: what programs compute takes half as long as with 320 MiB.
FRAMES = {"blocks": 5, "block_kib": 32768, "rounds": 12}


class HandedOver(GpumuxTest):
    """The next program gets the memory that one program evicts."""
    machine_settings = {"memory": "272MiB", "reserved_memory": "16MiB", "context_memory": "4MiB",
                        "d2h_bandwidth": "16G", "h2d_bandwidth": "16G", "kernel_bandwidth": "32G"}
    daemon_settings = {"mode": "auto", "quantum": "50ms", "reserve": "8MiB", "host_memory": "2GiB", "hand_over": "true"}

    def handed_over(self, daemon):
        return daemon.api.gpu(0)["memory"]["handed_over_bytes"]

    def native(self, **options):
        return self.start("large", name="native", preload=False, **{**FRAMES, **options}).expect_success(
            timeout=HANG).field("digest")

    def start_programs(self, count, **options):
        return [self.start("large", name=f"large{i}", variables={"GPUMUX_VERIFY": "1"}, **{**FRAMES, **options})
                for i in range(count)]

    def finish(self, programs, wanted):
        for program in programs:
            program.expect_success(timeout=HANG)
            self.assertEqual(program.field("digest"), wanted)

    def test_two_that_do_not_fit_together(self):
        daemon = self.start_daemon()
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 3 and self.handed_over(daemon) > 0,
                        "3 turns, and memory that is handed over", *self.start_programs(2, until=self.enough))
        # And all of it is the machine's again when nobody has it.
        wait_until(lambda: daemon.api.gpu(0)["memory"]["returning_bytes"] == 0, HANG, "the GPU's memory is back")

    def test_nothing_unless_it_is_wanted(self):
        daemon = self.start_daemon(hand_over="false")
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 3, "3 turns",
                        *self.start_programs(2, until=self.enough))
        self.assertEqual(self.handed_over(daemon), 0)

    def test_pieces_that_do_not_match(self):
        sizes = [{"block_kib": 32768}, {"block_kib": 49152, "blocks": 3}, {"block_kib": 81920, "blocks": 2}]
        wanted = [self.native(**options) for options in sizes]
        self.start_daemon()
        programs = [self.start("large", name=f"large{i}", **{**FRAMES, **options}) for i, options in enumerate(sizes)]
        for program, digest in zip(programs, wanted):
            self.finish([program], digest)

    def test_what_was_handed_over_can_be_exported(self):
        daemon = self.start_daemon()
        self.work_until(lambda: self.handed_over(daemon) > 0, "memory that is handed over",
                        *self.start_programs(2, export=1, until=self.enough))

    def test_programs_that_are_killed(self):
        wanted = self.native()
        self.start_daemon()
        survivor = self.start_programs(1)
        for _ in range(4):
            victim = self.start("large", name="victim", **{**FRAMES, "rounds": 100000})
            victim.wait_for_line("round", timeout=HANG)
            victim.send(9)
            victim.wait()
        self.finish(survivor, wanted)

    def test_a_daemon_that_is_restarted(self):
        wanted = self.native()
        daemon = self.start_daemon()
        programs = self.start_programs(2)
        for _ in range(3):
            seen = len(programs[0].lines)
            wait_until(lambda: len(programs[0].lines) > seen or programs[0].code is not None, HANG,
                       lambda: f"the first program gets on; it said {programs[0].tail()}")
            daemon.restart()
        self.finish(programs, wanted)


if __name__ == "__main__":
    main()
