# SPDX-License-Identifier: Apache-2.0
"""Memory that cuMemGetInfo calls free can be allocated, but for a chunk: whatever keeps the rest of the GPU."""

import contextlib
import os
import resource
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework import wire
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

    def test_beside_thousands_of_connections(self):
        """They have seats on the GPU, and never use it. They count as a few contexts, while they are new."""
        daemon = self.start_daemon()
        alone = self.fill()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(limits[1], 8192)), limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        uuid = bytes.fromhex(daemon.api.gpu()["uuid"].removeprefix("GPU-").replace("-", ""))
        page = wire.make_page()
        self.addCleanup(os.close, page)
        with contextlib.ExitStack() as open_ones:
            for _ in range(4096):
                peer = wire.Peer(self.runtime_dir)
                open_ones.callback(peer.close)
                if peer.say_hello(page)[0] != wire.WELCOME:  # the user has as many as it may have
                    break
                peer.send(wire.seat_open(0, uuid))
                while (answer := peer.receive()[0]) != wire.SEAT_OPENED:
                    self.assertEqual(answer, wire.CONTENTION)
            a_few = 4 * 112 / 64
            self.assertGreaterEqual(self.fill(), alone - a_few - 2)

    def test_within_the_quota_of_a_run(self):
        run = {"GPUMUX_RUN_ID": "together", "GPUMUX_MEM_LIMIT": "60M"}
        self.keep(self.start_daemon(), 32, variables=run)
        self.assertLess(self.fill(variables=run), 25)

    def test_within_the_quota_of_a_run_without_paging(self):
        run = {"GPUMUX_RUN_ID": "together", "GPUMUX_MEM_LIMIT": "60M", "GPUMUX_PAGING": "off"}
        self.keep(self.start_daemon(), 32, variables=run)
        self.assertLess(self.fill(variables=run), 25)


class Many(MemoryTest):
    """Programs that fit together natively: each takes its context and a little."""
    machine_settings = {**MemoryTest.machine_settings, "memory": "1GiB"}

    def test_many_small_programs(self):
        self.start_daemon()
        # 8 MiB each, and the contexts of newcomers count as 16.
        programs = [self.start("worker", name=f"small{i}", alloc=2 << 20, steps=2, step_us=1, say_every=1,
                               pause_us=1_000_000_000) for i in range(90)]
        for program in programs:
            program.wait_for_line("step", timeout=HANG)
        self.assertEqual([program.name for program in programs if program.code is not None], [])
        for program in programs:
            program.end()


if __name__ == "__main__":
    main()
