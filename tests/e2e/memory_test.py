# SPDX-License-Identifier: Apache-2.0
"""Programs that together need more memory than the GPU has: each sees a whole GPU, and reads what it has written.

The simulated GPU's kernels and copies fault on memory that is not there, so a switch that comes too late or too early
ends a program; and what a program reads is compared with what it wrote.
"""

import os
import pathlib
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))

from framework.case import GpumuxTest, main
from framework.waiting import wait_until

LARGE = {"blocks": 6, "block_kib": 8192, "rounds": 12}  # 48 MiB


class Memory(GpumuxTest):
    # Each of two programs takes more than half of what is left beside the reserve and two contexts. What the driver
    # keeps for itself is more than the reserve: taken for free, it would be missing at every switch.
    machine_settings = {"memory": "112MiB", "reserved_memory": "16MiB", "context_memory": "4MiB", "d2h_bandwidth": "8G",
                        "h2d_bandwidth": "8G", "kernel_bandwidth": "16G"}
    daemon_settings = {"mode": "auto", "quantum": "30ms", "reserve": "8MiB", "host_memory": "512MiB"}

    def native(self, kind="large", **options):
        return self.start(kind, name="native", preload=False, **options).expect_success(timeout=60).field("digest")

    def run_together(self, count, kind="large", **options):
        wanted = self.native(kind, **options)
        programs = [self.start(kind, name=f"{kind}{i}", variables={"GPUMUX_VERIFY": "1"}, **options)
                    for i in range(count)]
        for program in programs:
            program.expect_success(timeout=120)
            self.assertEqual(program.field("digest"), wanted)

    def take_turns(self, count, turns, kind="large", **options):
        """As run_together, for as long as the GPU has not changed hands so often."""
        daemon = self.start_daemon()
        programs = [self.start(kind, name=f"{kind}{i}", variables={"GPUMUX_VERIFY": "1"}, until=self.enough, **options)
                    for i in range(count)]
        self.work_until(lambda: len(daemon.trace.switches(0)) >= turns, f"{turns} turns", *programs)

    def test_alone_nothing_is_moved(self):
        daemon = self.start_daemon()
        wanted = self.native(**LARGE)
        program = self.start("large", hold=60, **LARGE)
        program.wait_for_line("digest", timeout=60)
        self.assertEqual(program.field("digest"), wanted)
        self.assertEqual(len(daemon.trace.switches(0)), 1)

    def test_two_that_do_not_fit_together(self):
        # Each turn of one takes the memory of the other.
        self.take_turns(2, 4, **LARGE)

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
        large[0].wait_for_line("round", timeout=60)
        program = self.start("handles", rounds=20)
        program.expect_success(timeout=120)
        self.assertEqual(program.field("digest"), wanted)
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 4, "4 turns", *large)

    def test_memory_that_is_mapped_elsewhere_now_and_then(self):
        self.start_daemon()
        self.run_together(3, allocator="vmm", churn=1, **LARGE)

    def test_host_memory_that_all_of_it_only_just_fits_into(self):
        # What one has restored is what the next one evicts into.
        daemon = self.start_daemon(host_memory="88MiB")
        # Copies of all that has to be copied would be more than that, whoever is evicted when, and how far. And the
        # programs are smaller by more than what looks at others' memory leave undecided, which is 16 MiB.
        options = {"blocks": 2, "block_kib": 4096, "ballast_kib": 30720, "ballast_pieces": 5, "rounds": 20,
                   "step_us": 2000}
        programs = [self.start("large", name=f"large{i}", variables={"GPUMUX_VERIFY": "1"}, until=self.enough,
                               **options) for i in range(3)]
        # It is handed to and fro without being mapped or registered each time.
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 4 and
                        daemon.api.status()["host_memory"]["loans_kept"] > 0, "4 turns, and kept memory lent again",
                        *programs)
        # And all of it is the machine's again when nobody needs it.
        wait_until(lambda: all(daemon.api.status()["host_memory"][part] == 0
                               for part in ("lent_bytes", "leaving_bytes")), 10, "host memory is back")

    def test_a_program_that_is_killed_in_the_middle_of_a_switch(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        survivor = self.start("large", name="survivor", **LARGE)
        for _ in range(4):
            victim = self.start("large", name="victim", **{**LARGE, "rounds": 100000})
            victim.wait_for_line("round", timeout=60)
            victim.send(9)
            victim.wait()
        survivor.expect_success(timeout=120)
        self.assertEqual(survivor.field("digest"), wanted)

    def test_memory_that_the_driver_does_not_have_yet_is_waited_for(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        # More in a row than an allocation is tried again for lack of room: the room is there all the time.
        faults = ";".join(f"cuMemCreate:{call}=CUDA_ERROR_OUT_OF_MEMORY" for call in range(3, 33))
        program = self.start("large", variables={"GPUMUX_SIM_FAULTS": faults}, **LARGE)
        program.expect_success(timeout=60)
        self.assertEqual(program.field("digest"), wanted)

    def out_of_memory(self, **calls):
        """Scripted: these calls of these entries find no memory."""
        return ";".join(f"{entry}:{call}=CUDA_ERROR_OUT_OF_MEMORY"
                        for entry, numbers in calls.items() for call in numbers)

    def made_again(self, entries, **options):
        wanted = self.native_digest(**options)
        # The first of each, and some in a row, which is memory that is there and has not come yet.
        for numbers in ([1], [2, 3, 4, 5]):
            faults = self.out_of_memory(**{entry: numbers for entry in entries})
            for program in [self.start("worker", variables={"GPUMUX_SIM_FAULTS": faults}, **options) for _ in range(2)]:
                program.expect_success(timeout=60)
                self.assertEqual(program.field("digest"), wanted)
        # Natively they are the program's to deal with.
        for entry in entries:
            program = self.start("worker", preload=False, name=f"native without {entry}",
                                 variables={"GPUMUX_SIM_FAULTS": self.out_of_memory(**{entry: [1]})}, **options)
            self.assertEqual(program.wait(timeout=60), 3, f"{entry} is never called")

    def test_any_call_that_finds_no_memory_is_made_again(self):
        self.start_daemon()
        self.made_again(["cuCtxCreate_v2", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreate", "cuEventCreate",
                         "cuLaunchKernel"], steps=20, step_us=100, streams=2, cross_events=1)

    def test_graphs_that_find_no_memory_are_made_again(self):
        self.start_daemon()
        self.made_again(["cuGraphInstantiateWithFlags", "cuGraphLaunch"], steps=20, graph=1)

    def test_a_primary_context_that_finds_no_memory_is_made_again(self):
        self.start_daemon()
        self.made_again(["cuDevicePrimaryCtxRetain"], steps=4, primary=1)

    def test_memory_that_never_comes_is_not_waited_for_for_ever(self):
        self.start_daemon()
        for entry in ("cuCtxCreate_v2", "cuModuleLoadData", "cuStreamCreate", "cuLaunchKernel"):
            faults = f"{entry}:1+=CUDA_ERROR_OUT_OF_MEMORY"
            program = self.start("worker", steps=4, variables={"GPUMUX_SIM_FAULTS": faults})
            self.assertEqual(program.wait(timeout=30), 3)
            self.assertEqual(program.field("code"), "2")

    def test_a_daemon_that_is_restarted(self):
        daemon = self.start_daemon()
        wanted = self.native(**LARGE)
        programs = [self.start("large", name=f"large{i}", **LARGE) for i in range(2)]
        for _ in range(3):
            seen = len(programs[0].lines)
            wait_until(lambda: len(programs[0].lines) > seen or programs[0].code is not None, 60,
                       lambda: f"the first program gets on; it said {programs[0].tail()}")
            daemon.restart()
        for program in programs:
            program.expect_success(timeout=120)
            self.assertEqual(program.field("digest"), wanted)

    def test_a_quota_is_what_the_gpu_has_before_there_is_a_context(self):
        self.start_daemon()
        for limit, total in (("60M", 60 << 20), ("1G", 96 << 20), ("", 96 << 20)):
            variables = {"GPUMUX_MEM_LIMIT": limit} if limit else {}
            program = self.start("large", variables=variables, **LARGE).expect_success(timeout=60)
            self.assertEqual(program.field("total", start="before a context"), str(total))
            self.assertEqual(program.field("total", start="memory"), str(total))

    def test_paging_off_is_the_drivers_own_memory(self):
        self.start_daemon()
        wanted = self.native(**LARGE)
        program = self.start("large", variables={"GPUMUX_PAGING": "off"}, **LARGE)
        program.expect_success(timeout=60)
        self.assertEqual(program.field("digest"), wanted)

    def test_a_quota_holds_for_the_drivers_own_memory(self):
        daemon = self.start_daemon()
        variables = {"GPUMUX_PAGING": "off", "GPUMUX_MEM_LIMIT": "60M"}
        for allocator in ("malloc", "vmm"):
            within = self.start("large", name=f"within-{allocator}", allocator=allocator, variables=variables, **LARGE)
            within.expect_success(timeout=60)
            beyond = self.start("large", name=f"beyond-{allocator}", allocator=allocator,
                                variables={**variables, "GPUMUX_MEM_LIMIT": "40M"}, **LARGE)
            self.assertEqual(beyond.wait(timeout=60), 3)
            self.assertEqual(beyond.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY
        wait_until(lambda: daemon.log().count('why="its run would have more than its quota') >= 2, 20, "the reason")

    def test_who_has_a_quota_is_made_room_for(self):
        """Of one allocation that takes more than half of the quota, and that the driver has no room for."""
        daemon = self.start_daemon()
        pages = self.start("large", name="pages", **{**LARGE, "blocks": 9, "rounds": 1_000_000})
        pages.wait_for_line("memory", timeout=60)
        options = {"blocks": 1, "block_kib": 40 * 1024, "rounds": 2, "churn": 1, "pause_us": 400_000}
        for allocator in ("malloc", "vmm", "async"):
            limited = self.start("large", name=allocator, allocator=allocator, **options,
                                 variables={"GPUMUX_PAGING": "off", "GPUMUX_MEM_LIMIT": "60M"})
            limited.expect_success(timeout=60)
        self.assertNotIn("an allocation is refused", daemon.log())
        self.assertIsNone(pages.code)

    def test_a_quota_is_for_the_processes_of_a_run_together_whoever_makes_the_memory(self):
        daemon = self.start_daemon()
        run = {"GPUMUX_PAGING": "off", "GPUMUX_RUN_ID": "together"}
        first = self.start("large", name="first", variables={**run, "GPUMUX_MEM_LIMIT": "60M"},
                           **{**LARGE, "rounds": 1_000_000})
        first.wait_for_line("memory", timeout=60)
        # It has lost the limit, not the run.
        second = self.start("large", name="second", variables=run, blocks=2, block_kib=8192, rounds=1)
        self.assertEqual(second.wait(timeout=60), 3)
        self.assertEqual(second.field("code"), "2")
        wait_until(lambda: daemon.trace.events(event="gone", pid=second.pid), 20, "it is gone")
        third = self.start("large", name="third", variables=run, blocks=1, block_kib=8192, rounds=1)
        third.expect_success(timeout=60)


class Newcomers(GpumuxTest):
    # Two contexts and what the first program has are more than the GPU.
    machine_settings = {"memory": "1GiB", "context_memory": "256MiB"}
    daemon_settings = {"mode": "auto", "host_memory": "2GiB"}

    def test_one_whose_context_needs_what_somebody_else_has(self):
        """It gets a lease, waits for room, and keeps the lease until it has that; and both end as they would alone."""
        self.start_daemon()
        large = {"blocks": 70, "block_kib": 8192, "rounds": 60, "step_us": 2000}
        wanted = self.start("large", name="native", preload=False, **large).expect_success(timeout=60).field("digest")
        first = self.start("large", name="first", **large)
        first.wait_for_line("round", timeout=60)
        for i in range(2):
            self.start("large", name=f"newcomer{i}", blocks=2, block_kib=8192, rounds=3).expect_success(timeout=60)
        self.assertIsNone(first.code, "the first program is at work all the time")
        first.expect_success(timeout=120)
        self.assertEqual(first.field("digest"), wanted)

    def test_contexts_that_leave_no_room_for_any_memory(self):
        """Two programs of two contexts each: nothing on the GPU can leave it. Natively one of them has no memory."""
        daemon = self.start_daemon()
        # One that allocates before the other has its contexts would leave no room for these.
        begin = os.path.join(self.directory, "begin")
        programs = [self.start("worker", name=f"worker{i}", threads=2, steps=40, step_us=500, until=self.enough,
                               begin=begin) for i in range(2)]
        for program in programs:
            wait_until(lambda: sum(line.startswith("context") for line in list(program.lines)) == 2, 60,
                       "both threads have a context")
        pathlib.Path(begin).touch()
        wait_until(lambda: any("contexts" in seat["waits_for"] for seat in daemon.api.seats()), 60,
                   lambda: f"status names the contexts: {daemon.api.seats()}")
        wait_until(lambda: any(program.code is not None for program in programs), 60, "one has no memory")
        refused, other = sorted(programs, key=lambda program: program.code is None)
        self.assertEqual((refused.code, refused.field("code")), (3, "2"))  # CUDA_ERROR_OUT_OF_MEMORY
        self.assertIn("is more than it holds: one is told", daemon.log())
        self.work_until(lambda: True, "nothing more", other)


class ManagedMemory(GpumuxTest):
    """Unified memory, which the driver pages: one program may have more of it than the GPU holds."""
    machine_settings = Memory.machine_settings
    daemon_settings = Memory.daemon_settings
    blocks = {**LARGE, "blocks": 20}  # 160 MiB, of a GPU with 96
    mib = 1 << 20

    def native(self, **options):
        return self.start("large", name="native", preload=False, allocator="managed",
                          **options).expect_success(timeout=60).field("digest")

    def seat_of(self, daemon, program):
        return next((seat for seat in daemon.api.seats() if seat["pid"] == program.pid), None)

    def turns_of_two(self, **options):
        """One with more managed memory than the GPU has, one whose memory is paged: each gets the GPU in turn."""
        daemon = self.start_daemon()
        program = self.start("large", name="managed", watch=1, until=self.enough, **self.blocks, **options)
        other = self.start("large", name="paged", until=self.enough, **LARGE)
        program.wait_for_line("round", timeout=60)

        def is_counted():
            seat = self.seat_of(daemon, program)
            memory = (seat or {}).get("memory", {})
            return 160 <= memory.get("unpageable", {}).get("managed", 0) / self.mib < 161 and \
                memory["allocated_bytes"] >= 160 * self.mib and memory["unpageable_bytes"] < 16 * self.mib
        wait_until(is_counted, 20, lambda: f"managed memory is counted: {daemon.api.seats()}")
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
        program.expect_success(timeout=60)
        self.assertEqual(program.field("digest"), wanted)
        self.assertEqual((program.field("left"), program.field("came_back")), ("0", "0"))
        self.assertEqual(int(program.field("free")), int(program.field("total")) - 48 * self.mib - 4096)

    def refused(self, why, daemon, **variables):
        program = self.start("large", allocator="managed", variables=variables, **self.blocks)
        self.assertEqual(program.wait(timeout=60), 3)
        self.assertEqual(program.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY
        wait_until(lambda: f'an allocation is refused why="{why}' in daemon.log(), 20, "the daemon says so")

    def test_a_quota_is_for_managed_memory_too(self):
        self.refused("its run would have more than its quota", self.start_daemon(), GPUMUX_MEM_LIMIT="120M")

    def test_gpu_and_host_memory_are_all_there_is(self):
        self.refused("all together would be more than the GPUs", self.start_daemon(host_memory="48MiB"))


class MemoryOfSeveralGpus(GpumuxTest):
    gpus = 2
    machine_settings = Memory.machine_settings
    daemon_settings = Memory.daemon_settings

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
        wait_until(is_known, 60, lambda: f"the daemon knows whose memory it is: {daemon.api.status()}")
        jobs.append(self.start("collective", name="job1", **options))
        self.work_until(lambda: all(len(daemon.trace.switches(gpu)) >= 4 for gpu in range(2)), "4 turns on each GPU",
                        *jobs)

    def test_pools_that_a_peer_reads(self):
        self.start_daemon()
        wanted = self.start("pools", name="native", preload=False, peer=1).expect_success(timeout=60).field("digest")
        programs = [self.start("pools", name=f"pools{i}", peer=1, variables={"GPUMUX_VERIFY": "1"}) for i in range(2)]
        for program in programs:
            program.expect_success(timeout=120)
            self.assertEqual(program.field("digest"), wanted)


class Mixed(GpumuxTest):
    """Programs that do anything at random, on two GPUs that reach each other's memory, while the daemon switches as
    fast as it can. GPUMUX_TEST_SEED repeats a run, as far as turns allow; GPUMUX_TEST_STEPS says how long it is."""
    gpus = 2
    machine_settings = dict(Memory.machine_settings, memory="104MiB")
    daemon_settings = dict(Memory.daemon_settings, mode="serial", quantum="5ms", host_memory="1GiB")

    def test_what_is_read_is_what_was_written(self):
        seed = int(os.environ.get("GPUMUX_TEST_SEED") or random.randrange(1 << 30))
        steps = int(os.environ.get("GPUMUX_TEST_STEPS") or 300)
        print(f"seed: GPUMUX_TEST_SEED={seed}", file=sys.stderr)
        options = {"steps": steps, "kib": 48 << 10}
        wanted = [self.start("mixed", name=f"native{i}", preload=False, seed=seed + i, **options)
                  .expect_success(timeout=120 + steps).field("digest") for i in range(3)]
        daemon = self.start_daemon()
        programs = [self.start("mixed", name=f"mixed{i}", seed=seed + i, variables={"GPUMUX_VERIFY": "1"}, **options)
                    for i in range(3)]
        for program, digest in zip(programs, wanted):
            program.expect_success(timeout=120 + steps)
            self.assertEqual(program.field("digest"), digest)
        self.assertEqual(daemon.trace.check_exclusive(), [])
        switches = [len(daemon.trace.switches(gpu)) for gpu in range(2)]
        evicted = len(daemon.trace.events(event="evicted"))
        print(f"switches: {switches}; memory evicted {evicted} times", file=sys.stderr)
        self.assertGreaterEqual(min(*switches, evicted), 10)


FRAMES = {"blocks": 5, "block_kib": 65536, "rounds": 12}  # 320 MiB, in pieces that are handed over


class HandedOver(GpumuxTest):
    """What one program evicts is the memory that the next one gets (docs/decisions/0015)."""
    machine_settings = {"memory": "512MiB", "reserved_memory": "16MiB", "context_memory": "4MiB",
                        "d2h_bandwidth": "16G", "h2d_bandwidth": "16G", "kernel_bandwidth": "32G"}
    daemon_settings = {"mode": "auto", "quantum": "50ms", "reserve": "8MiB", "host_memory": "2GiB", "hand_over": "true"}

    def handed_over(self, daemon):
        return daemon.api.gpu(0)["memory"]["handed_over_bytes"]

    def native(self, **options):
        return self.start("large", name="native", preload=False, **{**FRAMES, **options}).expect_success(
            timeout=60).field("digest")

    def start_programs(self, count, **options):
        return [self.start("large", name=f"large{i}", variables={"GPUMUX_VERIFY": "1"}, **{**FRAMES, **options})
                for i in range(count)]

    def finish(self, programs, wanted):
        for program in programs:
            program.expect_success(timeout=120)
            self.assertEqual(program.field("digest"), wanted)

    def test_two_that_do_not_fit_together(self):
        daemon = self.start_daemon()
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 3 and self.handed_over(daemon) > 0,
                        "3 turns, and memory that is handed over", *self.start_programs(2, until=self.enough))
        # And all of it is the machine's again when nobody has it.
        wait_until(lambda: daemon.api.gpu(0)["memory"]["returning_bytes"] == 0, 20, "the GPU's memory is back")

    def test_nothing_unless_it_is_wanted(self):
        daemon = self.start_daemon(hand_over="false")
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 3, "3 turns",
                        *self.start_programs(2, until=self.enough))
        self.assertEqual(self.handed_over(daemon), 0)

    def test_pieces_that_do_not_match(self):
        sizes = [{"block_kib": 65536}, {"block_kib": 49152, "blocks": 6}, {"block_kib": 81920, "blocks": 4}]
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
            victim.wait_for_line("round", timeout=60)
            victim.send(9)
            victim.wait()
        self.finish(survivor, wanted)

    def test_a_daemon_that_is_restarted(self):
        wanted = self.native()
        daemon = self.start_daemon()
        programs = self.start_programs(2)
        for _ in range(3):
            seen = len(programs[0].lines)
            wait_until(lambda: len(programs[0].lines) > seen or programs[0].code is not None, 60,
                       lambda: f"the first program gets on; it said {programs[0].tail()}")
            daemon.restart()
        self.finish(programs, wanted)


if __name__ == "__main__":
    main()
