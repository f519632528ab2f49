# SPDX-License-Identifier: Apache-2.0
"""The base of scenarios in which programs together need more memory than their GPU has."""

from .case import GpumuxTest
from .waiting import HANG

LARGE = {"blocks": 6, "block_kib": 8192, "rounds": 12}  # 48 MiB


class MemoryTest(GpumuxTest):
    # Each of two programs takes more than half of what is left beside the reserve and two contexts. The driver
    # keeps more for itself than the reserve. If the daemon took that for free, it would be missing at every switch.
    machine_settings = {"memory": "112MiB", "reserved_memory": "16MiB", "context_memory": "4MiB", "d2h_bandwidth": "8G",
                        "h2d_bandwidth": "8G", "kernel_bandwidth": "16G"}
    daemon_settings = {"mode": "auto", "quantum": "30ms", "reserve": "8MiB", "host_memory": "512MiB"}

    def native(self, kind="large", **options):
        return self.start(kind, name="native", preload=False, **options).expect_success(timeout=HANG).field("digest")

    def run_together(self, count, kind="large", **options):
        wanted = self.native(kind, **options)
        programs = [self.start(kind, name=f"{kind}{i}", variables={"GPUMUX_VERIFY": "1"}, **options)
                    for i in range(count)]
        for program in programs:
            program.expect_success(timeout=HANG)
            self.assertEqual(program.field("digest"), wanted)

    def take_turns(self, count, turns, kind="large", **options):
        """As run_together, for as long as the GPU has not changed hands so often."""
        daemon = self.start_daemon()
        programs = [self.start(kind, name=f"{kind}{i}", variables={"GPUMUX_VERIFY": "1"}, until=self.enough, **options)
                    for i in range(count)]
        self.work_until(lambda: len(daemon.trace.switches(0)) >= turns, f"{turns} turns", *programs)
