#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs on one GPU take turns; programs on another GPU do not notice.

Method: three workers A, B and C on two simulated GPUs, as the first users asked for it; who held what is read from
the daemon's trace, and checked against what the programs saw themselves.
"""

import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402


class Turns(GpumuxTest):
    gpus = 2

    def test_a_and_c_take_turns_while_b_runs(self):
        daemon = self.start_daemon(quantum="10ms", overlap="false")
        logs = {name: os.path.join(self.directory, name) for name in "AC"}
        options = {"steps": 150, "step_us": 1000, "sync_every": 2, "until": self.enough}
        a = self.start("worker", name="A", gpu=0, log=logs["A"], **options)
        a.wait_for_line("ready")
        b = self.start("worker", name="B", gpu=1, **options)
        c = self.start("worker", name="C", gpu=0, log=logs["C"], **options)
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 6, "6 turns on GPU 0", a, b, c)
        self.assertEqual(daemon.trace.check_exclusive(overlap=False), [])
        self.assertEqual(set(daemon.trace.switches(0)), {a.pid, c.pid})
        self.assertGreater(self.check_sure_intervals(logs), 100)
        # B is alone on its GPU: one lease, never revoked, and it overlapped with leases of the other GPU.
        self.assertEqual(daemon.trace.switches(1), [b.pid])
        leases_b = daemon.trace.leases(1)
        self.assertEqual([lease.revokes for lease in leases_b], [[]] * len(leases_b))
        leases_a = [lease for lease in daemon.trace.leases(0) if lease.pid in (a.pid, c.pid)]
        self.assertTrue(any(x.granted < y.drained and y.granted < x.drained for x in leases_a for y in leases_b))

    def test_an_unlimited_quantum_makes_c_wait_until_a_is_done(self):
        daemon = self.start_daemon(quantum="unlimited", idle_hold="10s")
        a = self.start("worker", name="A", gpu=0, steps=100, step_us=2000, sync_every=1, until=self.enough)
        a.wait_for_line("ready")
        c = self.start("worker", name="C", gpu=0, steps=20, step_us=2000)
        daemon.trace.wait_for(event="request", pid=c.pid)
        b = self.start("worker", name="B", gpu=1, steps=20, step_us=1000)
        b.expect_success()
        self.assertEqual(c.count("step"), 0)
        self.work_until(lambda: True, "nothing more", a)
        c.expect_success()
        self.assertEqual(daemon.trace.switches(0), [a.pid, c.pid])
        self.assertEqual(daemon.trace.revocations(), [])
        first_c = next(lease for lease in daemon.trace.leases(0) if lease.pid == c.pid)
        self.assertGreaterEqual(first_c.granted, int(a.field("t")), "C was granted while A still worked")

    def test_with_everything_unlimited_c_waits_until_an_idle_a_ends(self):
        """The third example of the first users: client C waits for client A to finish (same GPU)."""
        daemon = self.start_daemon(quantum="unlimited", max_runtime="unlimited", idle_hold="unlimited")
        # A works for a moment and is idle for a minute.
        a = self.start("worker", name="A", gpu=0, steps=2, step_us=500, sync_every=1, pause_us=60_000_000)
        a.wait_for_line("ready")
        daemon.trace.wait_for(event="grant", pid=a.pid)
        c = self.start("worker", name="C", gpu=0, steps=20, step_us=500)
        daemon.trace.wait_for(event="request", pid=c.pid)
        b = self.start("worker", name="B", gpu=1, steps=20, step_us=1000)
        b.expect_success()
        self.assertIsNone(a.code)
        self.assertEqual(c.count("step"), 0)
        self.assertEqual(daemon.trace.switches(0), [a.pid])
        a.end()
        c.expect_success()
        self.assertEqual(daemon.trace.switches(0), [a.pid, c.pid])

    def test_an_idle_holder_gives_way_long_before_its_quantum_ends(self):
        daemon = self.start_daemon(quantum="30s", idle_hold="1ms")
        # A works in bursts, with pauses of 100 ms; C gets on in A's pauses.
        a = self.start("worker", name="A", gpu=0, steps=10, step_us=500, sync_every=1, pause_us=100_000,
                       until=self.enough)
        a.wait_for_line("ready")
        c = self.start("worker", name="C", gpu=0, steps=20, step_us=500, sync_every=1, pause_us=20_000,
                       until=self.enough)
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 6, "6 turns", a, c)
        self.assertEqual(daemon.trace.revocations(), [])
        self.assertEqual(daemon.trace.check_exclusive(), [])

    def test_a_long_drain_is_asked_after_and_still_exclusive(self):
        """Drains longer than the silence limit: the daemon asks again and again, the answers repeat what was said, and
        the successor has started beside the first of them."""
        daemon = self.start_daemon(quantum="5ms", silence_limit="40ms", interrupt="off")
        programs = [self.start("worker", name=name, steps=18, step_us=30_000, sync_every=3) for name in "AB"]
        for program in programs:
            program.expect_success()
        leases = daemon.trace.leases(0)
        self.assertTrue(any(len(lease.revokes) > 1 for lease in leases), "nobody was asked again")
        self.assertEqual(daemon.trace.check_exclusive(), [])

    def test_concurrent_mode_lets_both_in(self):
        daemon = self.start_daemon(mode="concurrent")
        programs = [self.start("worker", name=name, gpu=0, steps=60, step_us=1000) for name in "AC"]
        for program in programs:
            program.expect_success()
        leases = daemon.trace.leases(0)
        self.assertFalse(any(lease.exclusive for lease in leases))
        self.assertEqual(daemon.trace.revocations(), [])

    def test_a_higher_priority_takes_the_gpu_at_once(self):
        daemon = self.start_daemon(mode="auto", quantum="30s")
        low = self.start("worker", name="low", gpu=0, steps=100_000, step_us=500, sync_every=1)
        low.wait_for_line("ready")
        high = self.start("worker", name="high", gpu=0, steps=40, step_us=500, sync_every=1, pause_us=10_000,
                          variables={"GPUMUX_PRIORITY": "5"}, until=self.enough)
        self.work_until(lambda: len(daemon.trace.events(event="revoke", pid=low.pid, detail="urgent")) >= 10,
                        "10 urgent revocations", high)
        self.assertIsNone(low.code)
        self.assertEqual(daemon.trace.events(event="revoke", pid=high.pid), [])
        self.assertEqual(daemon.trace.check_exclusive(), [])
        seat = next(seat for seat in daemon.api.status()["gpus"][0]["seats"] if seat["pid"] == low.pid)
        self.assertEqual((seat["priority"], seat["share"], seat["max_share"]), (0, "1", "100%"))

    def test_who_waits_in_a_copy_does_not_keep_a_higher_priority_waiting(self):
        """A copy to pageable memory, `loss.item()`, waits in the driver for all work before it."""
        daemon = self.start_daemon(mode="auto", quantum="30s")
        low = self.start("worker", name="low", gpu=0, steps=100_000, step_us=50_000, pageable=1)
        low.wait_for_line("ready")
        high = self.start("worker", name="high", gpu=0, steps=20, step_us=500, sync_every=1, pause_us=10_000,
                          variables={"GPUMUX_PRIORITY": "5"}, until=self.enough)

        def revoked_leases():
            leases = [lease for lease in daemon.trace.leases(0) if lease.pid == low.pid]
            # When it is revoked first it may not know yet that another program is there.
            return [lease for lease in leases if lease.revokes and lease.drained][1:]

        self.work_until(lambda: len(revoked_leases()) >= 5, "5 revocations", high)
        low.end()
        # A busy machine closes some gates late. A copy behind the gate would close each gate only when it is over.
        parts = [(lease.closed - lease.revokes[0]) / (lease.drained - lease.revokes[0]) for lease in revoked_leases()]
        self.assertLess(statistics.median(parts), 0.5, parts)

    def test_submissions_are_counted_for_who_is_alone(self):
        daemon = self.start_daemon()
        worker = self.start("worker", gpu=0, steps=100_000, step_us=500, sync_every=1)
        worker.wait_for_line("ready")
        wait_until(lambda: daemon.api.seats()[0]["submissions"] > 1000, HANG, "a thousand submissions")

    def test_a_running_programs_standing_is_changed(self):
        daemon = self.start_daemon(mode="auto", quantum="unlimited", max_runtime="unlimited", idle_hold="10s")
        first, second = [self.start("worker", name=name, gpu=0, steps=100_000, step_us=500, sync_every=1)
                         for name in ("first", "second")]
        for program in (first, second):
            program.wait_for_line("ready")
        # They fit together and stand alike: both run at once, and nobody is told to go.
        daemon.trace.wait_for(event="grant", lease="shared", count=2)
        def phase_of(program):
            return next(seat["phase"] for seat in daemon.api.seats() if seat["pid"] == program.pid)

        answer = daemon.api.set_tenant(second.pid, priority="5")
        self.assertEqual((answer["pid"], answer["priority"], answer["share"]), (second.pid, 5, "1"))
        wait_until(lambda: (phase_of(first), phase_of(second)) == ("waiting", "holding"), HANG,
                   "the second to be alone")
        granted = len(daemon.trace.events(event="grant", pid=first.pid))
        # The tables turn.
        daemon.api.set_tenant(first.pid, priority="9")
        daemon.trace.wait_for(event="revoke", pid=second.pid, detail="urgent")
        daemon.trace.wait_for(event="grant", pid=first.pid, count=granted + 1)
        # As they started again: at once.
        for program in (first, second):
            daemon.api.set_tenant(program.pid, priority="default")
        wait_until(lambda: daemon.api.gpu(0)["mode_now"] == "concurrent", HANG, "both to run at once")

    def test_a_restarted_daemon_knows_what_programs_started_with(self):
        daemon = self.start_daemon()
        worker = self.start("worker", gpu=0, steps=100_000, step_us=500, variables={"GPUMUX_PRIORITY": "-3"})
        worker.wait_for_line("ready")
        daemon.api.set_tenant(worker.pid, priority="-7", max_share="50%")
        daemon.restart()

        def standing():
            return [(seat["priority"], seat["max_share"]) for seat in daemon.api.seats() if seat["pid"] == worker.pid]

        wait_until(lambda: standing() == [(-3, "100%")], HANG, "the worker to be back as it started")

    def test_a_cap_holds_alone(self):
        """A lease ends when the allowance is spent, and none begins before half of what a second gives is back
        (src/sched/lease/cap_budget.h). However late a turn ends, the next one makes it good."""
        cap, half, rounding = 0.25, 0.125e9, 1000
        daemon = self.start_daemon(mode="auto", quantum="20ms", silence_limit="1h")
        capped = self.start("worker", name="capped", gpu=0, steps=100_000, step_us=500, sync_every=1,
                            variables={"GPUMUX_MAX_SHARE": "25%"})
        capped.wait_for_line("ready")

        def spent():
            """The leases, and which of them ended because the allowance was spent."""
            leases = [lease for lease in daemon.trace.leases(0) if lease.pid == capped.pid]
            ends = {event["epoch"] for event in daemon.trace.events(event="revoke", pid=capped.pid, detail="cap")}
            return leases, [number for number, lease in enumerate(leases[:-1]) if lease.drained and lease.epoch in ends]

        wait_until(lambda: len(spent()[1]) >= 6, HANG, lambda: f"its allowance is spent six times: {spent()}")
        leases, ends = spent()
        first, last = leases[ends[0]], leases[ends[-1] + 1]
        held = sum(lease.held() for lease in leases[ends[0] + 1:ends[-1] + 1])
        self.assertLessEqual(held, cap * (last.granted - first.drained) - half)
        # It has what it may have: each time, the half that was back.
        for before, end in zip(ends, ends[1:]):
            used = sum(lease.held() for lease in leases[before + 1:end])
            used += leases[end].revokes[0] - leases[end].granted
            self.assertGreaterEqual(used, half / (1 - cap) - rounding)

    def test_programs_that_end_their_turns_themselves(self):
        daemon = self.start_daemon(mode="auto", quantum="unlimited")
        options = {"steps": 60, "step_us": 300, "sync_every": 1000, "until": self.enough}
        # A step is four launches and a copy.
        programs = [self.start("worker", name=name, variables=variables, **options)
                    for name, variables in (("ten", {"CUDA_OVERRIDE_KERNEL_N_SYNC": "10"}),
                                            ("each", {"CUDA_OVERRIDE_ALWAYS_LOCK": "1"}),
                                            ("time", {"CUDA_OVERRIDE_MAX_SYNC_MS": "0.5"}),
                                            ("none", {}))]

        def have_turns():
            turns = daemon.trace.switches(0)
            return all(turns.count(program.pid) >= 4 for program in programs[:3])

        self.work_until(have_turns, "4 turns of each", *programs)
        self.assertEqual(daemon.trace.check_exclusive(), [])
        self.assertEqual(daemon.trace.revocations(), [])

    def test_a_lock_that_is_kept_through_synchronisations(self):
        daemon = self.start_daemon(mode="auto")
        a = self.start("worker", name="A", steps=50, step_us=2000, sync_every=1, until=self.enough,
                       variables={"CUDA_OVERRIDE_SYNC_LOCK_SKIPS": "1000000"})
        a.wait_for_line("ready")
        c = self.start("worker", name="C", steps=20, step_us=500)
        self.work_until(lambda: daemon.trace.events(event="request", pid=c.pid), "C asks", a)
        c.expect_success()
        turns = daemon.trace.switches(0)
        self.assertEqual(turns[-2:], [a.pid, c.pid])
        self.assertEqual(daemon.trace.events(event="revoke", pid=a.pid), [])

    def test_little_is_queued_where_others_wait(self):
        """Without a bound a program that never synchronises queues all it has to do. The next one waits for it, if
        nothing interrupts it."""
        drains = {}
        for bound in ("4ms", "unlimited"):
            daemon = self.start_daemon(name=f"gpumuxd-{bound}", mode="serial", quantum="20ms", overlap="false",
                                       interrupt="off", in_flight=bound)
            a = self.start("worker", name=f"A-{bound}", steps=150, step_us=2000, sync_every=2)
            a.wait_for_line("ready")
            b = self.start("worker", name=f"B-{bound}", steps=150, step_us=2000, sync_every=1000)
            for program in (a, b):
                program.expect_success()
            revoked = [lease for lease in daemon.trace.leases(0) if lease.pid == b.pid and lease.revokes]
            drains[bound] = statistics.median(lease.drained - lease.revokes[0] for lease in revoked)
            daemon.terminate()
        self.assertLess(drains["4ms"], drains["unlimited"] / 2)

    def test_four_programs_share_fairly(self):
        daemon = self.start_daemon(quantum="5ms", policy="fair")
        programs = [self.start("worker", name=f"P{i}", gpu=0, steps=100, step_us=1000, sync_every=3, until=self.enough)
                    for i in range(4)]

        def have_turns():
            turns = daemon.trace.switches(0)
            return all(turns.count(program.pid) >= 3 for program in programs)

        self.work_until(have_turns, "3 turns of each", *programs)
        self.assertEqual(daemon.trace.check_exclusive(), [])


if __name__ == "__main__":
    main()
