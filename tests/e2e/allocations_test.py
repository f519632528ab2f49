# SPDX-License-Identifier: Apache-2.0
"""No allocation within GPU and host memory is ever refused: programs that allocate at random, from several threads.

GPUMUX_TEST_ALLOCATIONS: how many allocations each program makes; GPUMUX_TEST_SEED: where its random numbers begin.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import GpumuxTest, main

ALLOCATIONS = int(os.environ.get("GPUMUX_TEST_ALLOCATIONS", "4000"))
SEED = int(os.environ.get("GPUMUX_TEST_SEED", "1"))


class Allocations(GpumuxTest):
    # Three programs hold 43 % of the GPU each, as 60 GiB of 140: any two fit together, all three do not.
    machine_settings = {"memory": "512MiB", "context_memory": "8MiB", "reserved_memory": "4MiB",
                        "d2h_bandwidth": "8G", "h2d_bandwidth": "8G"}
    daemon_settings = {"mode": "auto", "host_memory": "320MiB"}
    options = {"kib": 200 * 1024, "largest_kib": 16 * 1024, "allocations": ALLOCATIONS}

    def run_together(self, count, **options):
        programs = [self.start("allocations", name=f"allocations{i}", seed=SEED + i, **{**self.options, **options})
                    for i in range(count)]
        for program in programs:
            program.expect_success(timeout=3600)
        refused = {program.name: [line for line in program.lines if line.startswith("refused")]
                   for program in programs}
        self.assertEqual({name: lines for name, lines in refused.items() if lines}, {})
        self.assertGreaterEqual(min(int(program.field("allocations")) for program in programs), ALLOCATIONS)

    def test_three_programs_that_allocate_from_three_threads_each(self):
        self.start_daemon()
        self.run_together(3)

    def test_one_program_alone_that_has_more_threads_than_room(self):
        self.start_daemon()
        self.run_together(1, threads=8, kib=320 * 1024)


if __name__ == "__main__":
    main()
