#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Work that does not finish when its turn is over is taken off the GPU in the middle, and goes on later.

Method: programs with kernels that last much longer than a turn, or until the host tells them to end, beside programs
with short kernels. The daemon's trace says whose work was frozen. `overlap` is off: a program waits until the work of
the one before it has drained or is frozen.
"""

import ctypes
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import GpumuxTest, main  # noqa: E402
from framework.machine import Machine  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

MINUTE = 60_000_000  # us
NOT_INTERRUPTED = "its unfinished work drains"
UNLIMITED = {"quantum": "unlimited", "max_runtime": "unlimited", "idle_hold": "unlimited"}


class InterruptTest(GpumuxTest):
    daemon_settings = {"mode": "serial", "overlap": "false", "quantum": "10ms"}

    def use_machine(self, **settings):
        """Instead of the one of setUp. Before a daemon is started."""
        self.machine.remove()
        self.machine = Machine(self.gpus, **self.machine_settings, **settings)

    def start_short(self, name="short", priority=None, **options):
        return self.start("worker", name=name, variables={"GPUMUX_PRIORITY": priority},
                          **{"steps": 1_000_000, "step_us": 500, "sync_every": 1, "say_every": 1, **options})

    def start_long(self, name="long", variables=None, **options):
        """Kernels that last for many turns; it goes on until self.enough."""
        program = self.start("worker", name=name, variables=variables,
                             **{"steps": 1, "step_us": 300_000, "sync_every": 1, "until": self.enough, **options})
        program.wait_for_line("ready")
        return program

    def frozen(self, program, **more):
        return self.daemon.trace.events(event="drained", pid=program.pid, detail="frozen", **more)

    def drained(self, program):
        return [lease for lease in self.daemon.trace.leases(0) if lease.pid == program.pid and lease.revokes and
                lease.drained]

    def expect_steps(self, program, count=20):
        before = program.count("step")
        wait_until(lambda: program.count("step") >= before + count or program.code is not None, HANG,
                   lambda: f"{program.name} makes {count} steps: {program.tail()}")
        self.assertIsNone(program.code, program.tail())

    def take_turns(self, **variables):
        """A program with long kernels and one with short ones have had several turns each. The first one."""
        self.daemon = self.start_daemon()
        long = self.start_long(variables=variables)
        short = self.start_short(steps=1, until=self.enough)

        def have_turns():
            turns = self.daemon.trace.switches(0)
            return min(turns.count(long.pid), turns.count(short.pid)) >= 4 and len(self.drained(long)) >= 4

        self.work_until(have_turns, "4 turns of each", long, short)
        self.assertEqual(self.daemon.trace.check_exclusive(overlap=False), [])
        return long


class Turns(InterruptTest):

    def test_a_long_kernel_goes_on_in_its_next_turn(self):
        long = self.take_turns()
        self.assertGreaterEqual(len(self.frozen(long)), 3)
        self.assertEqual(self.daemon.trace.events(event="stall"), [])

    def test_80_channels(self):
        self.use_machine(channels=80)
        long = self.take_turns()
        self.assertGreaterEqual(len(self.frozen(long)), 3)

    def test_a_kernel_of_a_minute_does_not_keep_others_waiting(self):
        self.daemon = self.start_daemon()
        long = self.start_long(step_us=MINUTE)
        want = self.native_digest(steps=50)
        for name in ("first", "second"):
            short = self.start("worker", name=name, steps=50, step_us=500, sync_every=1).expect_success()
            self.assertEqual(short.field("digest"), want)
        self.assertIsNone(long.code)
        self.assertEqual(long.count("step"), 0)
        self.assertTrue(self.frozen(long))

    def test_a_higher_priority_comes_in_the_middle_of_a_kernel(self):
        self.daemon = self.start_daemon(mode="auto", quantum="30s")
        long = self.start_long(step_us=MINUTE)
        self.daemon.trace.wait_for(event="grant", pid=long.pid)
        high = self.start_short("high", priority=5, steps=20, until=self.enough, pause_us=10_000)
        self.work_until(lambda: len(self.frozen(long)) >= 5, "it makes way 5 times", high)
        self.assertIsNone(long.code)
        self.assertTrue(self.daemon.trace.events(event="revoke", pid=long.pid, detail="urgent"))
        self.assertEqual(self.daemon.trace.events(event="revoke", pid=high.pid), [])

    def expect_stands_still(self, **options):
        self.daemon = self.start_daemon(mode="auto", **UNLIMITED)
        program = self.start("interrupted", until=self.enough, **options)
        program.wait_for_line("running")
        high = self.start_short("high", priority=5)
        self.daemon.trace.wait_for(event="drained", pid=program.pid, detail="frozen")
        pathlib.Path(self.enough).touch()
        program.wait_for_line("told")
        self.expect_steps(high)
        self.assertEqual(program.count("done"), 0)
        high.end()
        program.expect_success()

    def test_frozen_work_stands_still(self):
        """Whatever the host does: it ends after its lease has come back, not before."""
        self.expect_stands_still()

    def test_several_contexts_are_frozen_together(self):
        self.expect_stands_still(contexts=3)


class Drains(InterruptTest):
    """Where work cannot be frozen, or must not be, it drains as before."""

    def expect_drains(self, long):
        self.assertEqual(self.frozen(long), [])
        self.assertTrue(self.drained(long))

    def said(self, program=None):
        return [line for line in self.daemon.log().splitlines()
                if NOT_INTERRUPTED in line and (program is None or f"pid={program.pid} " in line)]

    def test_interrupts_that_are_off(self):
        self.daemon_settings = {**self.daemon_settings, "interrupt": "off"}
        self.expect_drains(self.take_turns())
        self.assertEqual(self.said(), [])

    def expect_said_once(self, why, **variables):
        long = self.take_turns(**variables)
        self.expect_drains(long)
        wait_until(lambda: self.said(long), HANG, "the daemon says that it is not interrupted")
        self.assertEqual(len(self.said(long)), 1, self.said())
        self.assertIn(why, self.said(long)[0])

    def test_a_driver_that_refuses(self):
        self.use_machine(interrupts="refused")
        self.expect_said_once("the driver refuses to disable its channels")

    def test_channels_of_an_unknown_class(self):
        self.use_machine(interrupts="unknown")
        self.expect_said_once("none of its channels were seen")

    def test_a_profiler(self):
        self.expect_said_once("a profiler is loaded", CUDA_INJECTION64_PATH="/nowhere/libprofiler.so")

    def test_a_debugger(self):
        self.daemon = self.start_daemon(quantum="unlimited")
        long = self.start_long()
        seize, detach = 0x4206, 17
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        if ptrace(seize, long.pid, None, None) != 0:
            self.skipTest(f"no tracing here: {os.strerror(ctypes.get_errno())}")
        self.daemon.api.set("all", quantum="10ms")
        short = self.start_short(steps=1, until=self.enough)
        wait_until(lambda: len(self.drained(long)) >= 4, HANG, "4 turns")
        self.expect_drains(long)
        self.assertEqual(len(self.said(long)), 1, self.said())
        self.assertIn("a debugger is attached", self.said(long)[0])
        # It has to stand still for the tracer to leave.
        os.kill(long.pid, signal.SIGSTOP)
        os.waitpid(long.pid, os.WUNTRACED)
        ptrace(detach, long.pid, None, None)
        os.kill(long.pid, signal.SIGCONT)
        self.work_until(lambda: True, "nothing more", long, short)


class Ends(InterruptTest):
    """A frozen program ends, or does unusual things with its process: others go on."""

    def freeze_one(self, what="wait", **options):
        """A frozen program, and one that has the GPU for as long as it likes."""
        self.daemon = self.start_daemon(mode="auto", **UNLIMITED)
        self.go = os.path.join(self.directory, "go")
        variables = options.pop("variables", None)
        program = self.start("interrupted", name=what, what=what, go=self.go, variables=variables, **options)
        program.wait_for_line("running")
        high = self.start_short("high", priority=5)
        self.daemon.trace.wait_for(event="drained", pid=program.pid, detail="frozen")
        self.expect_steps(high, 1)
        return program, high

    def expect_next(self, high):
        """The GPU is there for the next one."""
        self.expect_steps(high)
        high.end()
        self.start("worker", name="next", steps=20, step_us=500).expect_success()

    def test_it_is_killed(self):
        program, high = self.freeze_one()
        program.send(signal.SIGKILL)
        self.assertEqual(program.wait(), -signal.SIGKILL)
        self.daemon.trace.wait_for(event="gone", pid=program.pid)
        self.expect_next(high)

    def test_it_exits(self):
        program, high = self.freeze_one("exit")
        pathlib.Path(self.go).touch()
        program.wait_for_line("exits")
        self.assertEqual(program.wait(), 0, program.tail())
        self.expect_next(high)

    def test_it_executes_another_program(self):
        program, high = self.freeze_one("exec")
        pathlib.Path(self.go).touch()
        self.daemon.trace.wait_for(event="connect", pid=program.pid, count=2)
        self.expect_steps(high)
        self.assertIsNone(program.code)
        high.end()
        program.expect_success()

    def test_it_forks(self):
        program, high = self.freeze_one("fork", until=self.enough)
        pathlib.Path(self.go).touch()
        program.wait_for_line("forked")
        pathlib.Path(self.enough).touch()
        program.wait_for_line("told")
        self.expect_steps(high)
        self.assertEqual(program.count("done"), 0)
        high.end()
        program.expect_success()

    def test_it_destroys_its_streams_and_contexts(self):
        program, high = self.freeze_one("destroy")
        pathlib.Path(self.go).touch()
        program.wait_for_line("told")
        self.expect_steps(high)
        self.assertEqual(program.count("destroyed"), 0)
        high.end()
        program.expect_success()

    def test_the_daemon_is_killed_and_started_again(self):
        program, high = self.freeze_one(until=self.enough)
        pathlib.Path(self.go).touch()
        said = len(self.frozen(program))
        self.daemon.restart()
        # It has come back as a program whose work is still frozen.
        self.daemon.trace.wait_for(event="drained", pid=program.pid, detail="frozen", count=said + 1)
        pathlib.Path(self.enough).touch()
        program.wait_for_line("told")
        self.expect_steps(high)
        self.assertEqual(program.count("done"), 0)
        high.end()
        program.expect_success()

    def test_without_a_daemon_it_goes_on_ungated(self):
        program, _ = self.freeze_one(until=self.enough, variables={"GPUMUX_ON_DAEMON_LOSS": "ungated"})
        for path in (self.go, self.enough):
            pathlib.Path(path).touch()
        program.wait_for_line("told")
        self.assertEqual(program.count("done"), 0)
        self.daemon.kill()
        program.expect_success()


class Memory(InterruptTest):
    machine_settings = {"memory": "256MiB", "reserved_memory": "16MiB", "context_memory": "4MiB", "d2h_bandwidth": "8G",
                        "h2d_bandwidth": "8G", "kernel_bandwidth": "16G"}
    daemon_settings = {"mode": "serial", "overlap": "false", "quantum": "10ms", "reserve": "8MiB",
                       "host_memory": "1GiB"}

    def start_large(self, name, mib, step_us=100_000):
        """A program with so much memory, and kernels that last for several turns."""
        program = self.start("large", name=name, blocks=2, block_kib=4096, ballast_kib=(mib - 8) * 1024, rounds=1,
                             step_us=step_us, until=self.enough)
        program.wait_for_line("ready")
        return program

    def moved_out(self):
        return self.daemon.api.gpu(0)["memory"]["moved_out_bytes"]

    def test_frozen_work_drains_when_its_memory_must_leave(self):
        self.daemon = self.start_daemon()
        programs = [self.start_large(name, 60) for name in ("first", "second")]
        wait_until(lambda: all(self.frozen(program) for program in programs), HANG, "both are frozen in turn")
        # It does not fit beside them.
        third = self.start_large("third", 120, step_us=1000)
        self.work_until(lambda: self.moved_out() > 0 and third.count("round") >= 5 and
                        all(program.count("round") >= 3 for program in programs), "all get on", third, *programs)

    def test_programs_that_never_fit_together(self):
        self.daemon = self.start_daemon(quantum="30ms")
        programs = [self.start_large(name, 120, step_us) for name, step_us in (("long", 200_000), ("short", 1000))]
        self.work_until(lambda: self.moved_out() > 0 and all(program.count("round") >= 3 for program in programs),
                        "both get on", *programs)


class Gang(InterruptTest):
    gpus = 2

    def test_a_gang_is_frozen_and_thawed_together(self):
        """Kernels of its two seats wait for each other."""
        self.daemon = self.start_daemon(stall_timeout="1h")
        gang = self.start("collective", name="gang", rounds=3, ahead=2, step_us=100_000, until=self.enough)
        gang.wait_for_line("ready")
        short = self.start_short(steps=1, until=self.enough)
        self.work_until(lambda: min(len(self.frozen(gang, gpu=gpu)) for gpu in range(self.gpus)) >= 3,
                        "both seats are frozen three times", gang, short)
        self.assertEqual(self.daemon.trace.events(event="grant", detail="again", pid=gang.pid), [])
        self.assertEqual(self.daemon.trace.check_exclusive(overlap=False), [])

    def test_the_next_program_starts_beside_the_freeze(self):
        """When each seat has been frozen once."""
        self.use_machine(freeze_cost="20ms")
        self.daemon = self.start_daemon(overlap="true", stall_timeout="1h")
        gang = self.start("collective", name="gang", rounds=3, ahead=2, step_us=100_000, until=self.enough)
        gang.wait_for_line("ready")
        short = self.start_short(steps=1, until=self.enough)

        def grants_beside_freezes():
            closed, count = False, 0
            for event in self.daemon.trace.events(gpu=0):
                if event.get("pid") == gang.pid and event["event"] in ("gate_closed", "drained"):
                    closed = event["event"] == "gate_closed"
                count += closed and event["event"] == "grant" and event.get("pid") == short.pid
            return count

        self.work_until(lambda: grants_beside_freezes() >= 3, "it is granted beside three freezes", gang, short)
        self.assertEqual(self.daemon.trace.events(event="grant", detail="again", pid=gang.pid), [])
        self.assertEqual(self.daemon.trace.check_exclusive(), [])

    def test_a_gang_that_cannot_be_frozen_is_opened_again(self):
        self.use_machine(interrupts="refused")
        self.daemon = self.start_daemon()
        gang = self.start("collective", name="gang", rounds=3, ahead=2, step_us=20_000, until=self.enough)
        gang.wait_for_line("ready")
        short = self.start_short(steps=1, until=self.enough)
        self.work_until(lambda: self.daemon.trace.switches(0).count(gang.pid) >= 3 and len(self.drained(gang)) >= 3,
                        "3 turns", gang, short)
        self.assertEqual(self.frozen(gang), [])
        self.assertEqual(self.daemon.trace.check_exclusive(overlap=False), [])


if __name__ == "__main__":
    main()
