# SPDX-License-Identifier: Apache-2.0
"""No allocation within GPU and host memory is ever refused: programs that allocate at random, from several threads.

GPUMUX_TEST_ALLOCATIONS: how many allocations each program makes; GPUMUX_TEST_SEED: where its random numbers begin;
GPUMUX_TEST_RESTARTS: how often the daemon is killed.
"""

import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import GpumuxTest, main
from framework.waiting import HANG, wait_until

ALLOCATIONS = int(os.environ.get("GPUMUX_TEST_ALLOCATIONS", "4000"))
RESTARTS = int(os.environ.get("GPUMUX_TEST_RESTARTS", "5"))
SEED = int(os.environ.get("GPUMUX_TEST_SEED", "1"))


class Allocations(GpumuxTest):
    # Three programs hold 43 % of the GPU each, as 60 GiB of 140: any two fit together, all three do not.
    machine_settings = {"memory": "512MiB", "context_memory": "8MiB", "reserved_memory": "4MiB",
                        "d2h_bandwidth": "8G", "h2d_bandwidth": "8G"}
    daemon_settings = {"mode": "auto", "host_memory": "320MiB"}
    options = {"kib": 200 * 1024, "largest_kib": 16 * 1024, "allocations": ALLOCATIONS}

    def check_refused(self, programs):
        refused = {program.name: [line for line in program.lines if line.startswith("refused")]
                   for program in programs}
        self.assertEqual({name: lines for name, lines in refused.items() if lines}, {})

    def run_together(self, count, **options):
        programs = [self.start("allocations", name=f"allocations{i}", seed=SEED + i, **{**self.options, **options})
                    for i in range(count)]
        for program in programs:
            program.expect_success(timeout=3600)
        self.check_refused(programs)
        self.assertGreaterEqual(min(int(program.field("allocations")) for program in programs), ALLOCATIONS)

    def test_three_programs_that_allocate_from_three_threads_each(self):
        self.start_daemon()
        self.run_together(3)

    def test_one_program_alone_that_has_more_threads_than_room(self):
        self.start_daemon()
        self.run_together(1, threads=8, kib=320 * 1024)

    def test_restarts_of_the_daemon(self):
        """A daemon that has just started knows nothing of its tenants' memory. Some are killed before all are back, and
        a new program comes after each restart."""
        moments = random.Random(SEED)
        daemon = self.start_daemon()
        options = {**self.options, "kib": 180 * 1024, "until": self.enough}
        programs = [self.start("allocations", name=f"allocations{i}", seed=SEED + i, **options) for i in range(3)]
        newcomers = []
        for restart in range(RESTARTS):
            for _ in range(moments.choice((1, 1, 2, 3))):
                daemon.restart()
            newcomers.append(self.start("allocations", name=f"newcomer{restart}", seed=SEED + restart, kib=32 * 1024,
                                        largest_kib=4096, allocations=200))
            if moments.random() < 0.5:
                wait_until(lambda: len(daemon.api.seats()) >= 3, HANG, lambda: f"all are back: {daemon.api.seats()}")
            newcomers[-1].expect_success(timeout=300)
            self.check_refused([newcomers[-1]])
        self.work_until(lambda: True, "nothing more", *programs, timeout=300)
        self.check_refused(programs)


if __name__ == "__main__":
    main()
