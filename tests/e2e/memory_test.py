# SPDX-License-Identifier: Apache-2.0
"""Programs that together need more memory than the GPU has: each sees a whole GPU, and reads what it has written.

The simulated GPU's kernels and copies fault on memory that is not there, so a switch that comes too late or too early
ends a program; and what a program reads is compared with what it wrote.
"""

import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import GpumuxTest, main
from framework.memory import LARGE, MemoryTest
from framework.waiting import HANG, wait_until


class Memory(MemoryTest):
    def test_alone_nothing_is_moved(self):
        daemon = self.start_daemon()
        wanted = self.native(**LARGE)
        program = self.start("large", hold=60, **LARGE)
        program.wait_for_line("digest", timeout=HANG)
        self.assertEqual(program.field("digest"), wanted)
        self.assertEqual(len(daemon.trace.switches(0)), 1)

    def test_two_that_do_not_fit_together(self):
        # Each turn of one takes the memory of the other.
        self.take_turns(2, 4, **LARGE)

    def test_children_of_which_the_library_does_not_know(self):
        # Such a child's exit handlers must leave its parent's leases and memory alone.
        self.take_turns(2, 6, bare_children=1, **LARGE)

    def test_three_that_allocate_and_free(self):
        self.start_daemon()
        self.run_together(3, churn=1, **LARGE)

    def test_two_that_allocate_in_the_order_of_streams(self):
        # If the driver's own pools gave this memory, it would stay, and no program would get through.
        self.take_turns(2, 4, churn=1, allocator="async", **LARGE)

    def test_streams_that_share_pools(self):
        self.take_turns(2, 3, "pools", rounds=40, keep=6, keep_kib=8192)

    def test_graphs_that_are_built_by_hand_while_memory_is_away(self):
        # While one of them pauses, in the middle of building, the other one takes what it lacks.
        self.take_turns(2, 20, "graphs", rounds=20, block_kib=24576, pause_ms=40)

    def test_memory_that_programs_map_by_themselves(self):
        self.take_turns(2, 4, allocator="vmm", **LARGE)

    def test_memory_that_a_process_without_a_context_exports(self):
        self.start_daemon()
        self.run_together(1, "handles")

    def test_exported_memory_next_to_programs_that_need_the_gpu(self):
        daemon = self.start_daemon()
        wanted = self.native("handles", rounds=20)
        large = [self.start("large", name=f"large{i}", until=self.enough, **LARGE) for i in range(2)]
        large[0].wait_for_line("round", timeout=HANG)
        program = self.start("handles", rounds=20)
        program.expect_success(timeout=HANG)
        self.assertEqual(program.field("digest"), wanted)
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 4, "4 turns", *large)

    def test_memory_that_is_mapped_elsewhere_now_and_then(self):
        self.start_daemon()
        self.run_together(3, allocator="vmm", churn=1, **LARGE)

    def test_host_memory_that_all_of_it_only_just_fits_into(self):
        # The next program evicts into the host memory that one program has restored from.
        daemon = self.start_daemon(host_memory="88MiB")
        # Copies of all that has to be copied would be more than that, whoever is evicted when, and how far. And the
        # programs are smaller by more than what looks at others' memory leave undecided, which is 16 MiB.
        options = {"blocks": 2, "block_kib": 4096, "ballast_kib": 30720, "ballast_pieces": 5, "rounds": 20,
                   "step_us": 2000}
        programs = [self.start("large", name=f"large{i}", variables={"GPUMUX_VERIFY": "1"}, until=self.enough,
                               **options) for i in range(3)]
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 4, "4 turns", *programs)
        # And the mover has none any more when no program needs it.
        wait_until(lambda: daemon.api.status()["host_memory"]["lent_bytes"] == 0, HANG, "host memory is back")

    def test_a_program_that_is_killed_in_the_middle_of_a_switch(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        survivor = self.start("large", name="survivor", **LARGE)
        for _ in range(4):
            victim = self.start("large", name="victim", **{**LARGE, "rounds": 100000})
            victim.wait_for_line("round", timeout=HANG)
            victim.send(9)
            victim.wait()
        survivor.expect_success(timeout=HANG)
        self.assertEqual(survivor.field("digest"), wanted)

    def test_a_daemon_that_is_restarted(self):
        daemon = self.start_daemon()
        wanted = self.native(**LARGE)
        programs = [self.start("large", name=f"large{i}", **LARGE) for i in range(2)]
        for _ in range(3):
            seen = len(programs[0].lines)
            wait_until(lambda: len(programs[0].lines) > seen or programs[0].code is not None, HANG,
                       lambda: f"the first program gets on; it said {programs[0].tail()}")
            daemon.restart()
        for program in programs:
            program.expect_success(timeout=HANG)
            self.assertEqual(program.field("digest"), wanted)


class MemoryOfSeveralGpus(MemoryTest):
    gpus = 2

    def test_kernels_that_reach_each_others_mapped_memory(self):
        """Two jobs on both GPUs, of which each holds one: a kernel on one GPU reads what lies on the other."""
        daemon = self.start_daemon()
        options = {"mapped_mib": 48, "rounds": 100, "step_us": 2000, "until": self.enough}
        jobs = [self.start("collective", name="job0", **options)]

        # A GPU that is looked at between an allocation and the word of it counts it as somebody else's, for a second.
        def is_known():
            gpus = [daemon.api.gpu(gpu) for gpu in range(2)]
            return all(gpu["memory_used_bytes"] > 48 << 20 and gpu["memory"]["foreign_bytes"] < 16 << 20
                       for gpu in gpus)
        wait_until(is_known, HANG, lambda: f"the daemon knows whose memory it is: {daemon.api.status()}")
        jobs.append(self.start("collective", name="job1", **options))
        self.work_until(lambda: all(len(daemon.trace.switches(gpu)) >= 4 for gpu in range(2)), "4 turns on each GPU",
                        *jobs)

    def use_both_from_one(self, way, **variables):
        """A program uses both GPUs from one of them. Another one takes the second GPU's memory between its rounds."""
        daemon = self.start_daemon()
        program = self.start("across", way=way, kib=49152, until=self.enough, variables=variables)
        program.wait_for_line("round", timeout=HANG)
        other = self.start("large", name="other", gpu="1", until=self.enough, **LARGE)
        self.work_until(lambda: len([e for e in daemon.trace.events(event="evicted") if e["program"] == "across"]) >= 5,
                        "5 evictions", program, other)

    def test_copies_between_gpus_by_their_addresses(self):
        self.use_both_from_one("copies")

    def test_gpus_that_reach_each_other_belong_together_in_any_case(self):
        """GPUMUX_GANG=none is about other processes."""
        self.use_both_from_one("copies", GPUMUX_GANG="none")

    def test_copies_of_another_gpus_memory(self):
        self.use_both_from_one("context")

    def test_graphs_with_work_on_two_gpus(self):
        self.use_both_from_one("graph")

    def test_graphs_that_copy_between_gpus(self):
        self.use_both_from_one("peers")

    def test_pools_that_a_peer_reads(self):
        self.start_daemon()
        wanted = self.start("pools", name="native", preload=False, peer=1).expect_success(timeout=HANG).field("digest")
        programs = [self.start("pools", name=f"pools{i}", peer=1, variables={"GPUMUX_VERIFY": "1"}) for i in range(2)]
        for program in programs:
            program.expect_success(timeout=HANG)
            self.assertEqual(program.field("digest"), wanted)


class Mixed(GpumuxTest):
    """Programs that do anything at random, on two GPUs that reach each other's memory, while the daemon switches as
    fast as it can. GPUMUX_TEST_SEED repeats a run, as far as turns allow; GPUMUX_TEST_STEPS says how long it is."""
    gpus = 2
    machine_settings = dict(MemoryTest.machine_settings, memory="104MiB")
    daemon_settings = dict(MemoryTest.daemon_settings, mode="serial", quantum="5ms", host_memory="1GiB")

    def test_what_is_read_is_what_was_written(self):
        """How often memory leaves depends on the seed and on turns, so seeds are run until that is often enough."""
        seed = int(os.environ.get("GPUMUX_TEST_SEED") or random.randrange(1 << 30))
        daemon = self.start_daemon()
        switches, evicted = [0], 0
        while min(*switches, evicted) < 10:
            self.run_seed(seed)
            seed += 3
            self.assertEqual(daemon.trace.check_exclusive(), [])
            switches = [len(daemon.trace.switches(gpu)) for gpu in range(2)]
            evicted = len(daemon.trace.events(event="evicted"))
            print(f"switches: {switches}; memory evicted {evicted} times", file=sys.stderr)

    def run_seed(self, seed):
        """Three programs together, and each by itself without gpumux."""
        steps = int(os.environ.get("GPUMUX_TEST_STEPS") or 300)
        print(f"seed: GPUMUX_TEST_SEED={seed}", file=sys.stderr)
        options = {"steps": steps, "kib": 48 << 10}
        wanted = [self.start("mixed", name=f"native{i}", preload=False, seed=seed + i, **options)
                  .expect_success(timeout=120 + steps).field("digest") for i in range(3)]
        programs = [self.start("mixed", name=f"mixed{i}", seed=seed + i, variables={"GPUMUX_VERIFY": "1"}, **options)
                    for i in range(3)]
        for program, digest in zip(programs, wanted):
            program.expect_success(timeout=120 + steps)
            self.assertEqual(program.field("digest"), digest)


FRAMES = {"blocks": 5, "block_kib": 65536, "rounds": 12}  # 320 MiB, in pieces that are handed over


if __name__ == "__main__":
    main()
