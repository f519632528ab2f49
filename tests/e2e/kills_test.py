#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When a process dies, the others go on: kills and stops of holders, waiters and the daemon, at random by seed.

Method: a few workers share two GPUs under short quanta. Again and again one thing happens (a holder or a waiter is
killed, the daemon is killed and started again, a holder is stopped, a program breaks its own context), and
afterwards every survivor must get on. In the end all results must be right, and leases must have been exclusive by
the daemon's account and by the programs' own.

How long the survivors were held up is measured and printed; the test's own bound is generous, for the machine may
be busy. GPUMUX_TEST_KILLS: how many events (default 40). GPUMUX_TEST_SEED repeats a run, as far as processes allow.
"""

import os
import pathlib
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import GpumuxTest, main  # noqa: E402
from framework.seeds import amount, seeded  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402


class Worker:
    """A worker in the campaign, replaced when it dies."""

    def __init__(self, test, number, kind):
        self.test = test
        self.number = number
        self.kind = kind
        self.log = os.path.join(test.directory, f"worker{number}.log")
        self.process = test.start("worker", name=f"worker{number}", steps=1_000_000, step_us=400, sync_every=2,
                                  say_every=1, log=self.log, **kind)
        self.process.wait_for_line("ready")

    def steps(self):
        return self.process.count("step")


class Kills(GpumuxTest):
    gpus = 2

    def campaign(self, kills, random, overlap):
        daemon = self.start_daemon(quantum="4ms", overlap=str(overlap).lower(), silence_limit="200ms")
        kinds = [{"gpu": 0}, {"gpu": 0, "streams": 2}, {"gpu": "0,1"}, {"gpu": 1, "per_thread_stream": 1}]
        workers = [Worker(self, number, kind) for number, kind in enumerate(kinds)]
        everybody = list(workers)
        stopped_pids, delays, happened = set(), [], {}
        actions = ["kill holder", "kill waiter", "kill daemon", "stop holder", "crash", "kill daemon and holder"]
        for number in range(kills):
            action = random.choice(actions)
            happened[action] = happened.get(action, 0) + 1
            time.sleep(random.random() * 0.02)  # any moment of a quantum
            victim = None
            crasher = None
            if action == "crash":
                crasher = self.start("lifecycle", name="crasher", what="crash")
            if action in ("kill holder", "kill waiter", "kill daemon and holder"):
                victim = self.pick(daemon, workers, random, "holding" if "holder" in action else "waiting")
            if victim is not None:
                victim.process.send(signal.SIGKILL)
            if "daemon" in action:
                daemon.kill()
                daemon.start()
            stopped = None
            if action == "stop holder":
                stopped = self.pick(daemon, workers, random, "holding")
                stopped_pids.add(stopped.process.pid)
                stopped.process.send(signal.SIGSTOP)
            survivors = [worker for worker in workers if worker not in (victim, stopped)]
            delays.append(self.expect_progress(survivors, f"{number}: {action}"))
            if stopped is not None:
                stopped.process.send(signal.SIGCONT)
                self.expect_progress([stopped], f"{number}: {action}, continued")
            if crasher is not None:
                crasher.expect_success()
            if victim is not None:
                everybody.append(Worker(self, len(everybody), victim.kind))
                workers[workers.index(victim)] = everybody[-1]
        self.assertEqual(daemon.trace.check_exclusive(overlap), [])
        silent = {event["pid"] for event in daemon.trace.events(event="silent")} | stopped_pids
        logs = {worker.log: worker.log for worker in everybody if worker.process.pid not in silent}
        if not overlap:
            self.check_sure_intervals(logs)
        delays.sort()
        print(f"{kills} events {happened}: all went on after {statistics.median(delays) * 1e3:.0f} ms median, "
              f"{delays[len(delays) * 9 // 10] * 1e3:.0f} ms p90, {delays[-1] * 1e3:.0f} ms at most", file=sys.stderr)
        return daemon, workers

    def pick(self, daemon, workers, random, phase):
        """A worker that is in this phase on some GPU, as far as anybody can know; else any."""
        pids = {seat["pid"] for gpu in daemon.api.status()["gpus"] for seat in gpu["seats"] if seat["phase"] == phase}
        return random.choice([worker for worker in workers if worker.process.pid in pids] or workers)

    def expect_progress(self, workers, what):
        """Each worker takes two more steps; how long that took, in seconds."""
        begin = time.monotonic()
        before = {worker: worker.steps() for worker in workers}

        def all_went_on():
            for worker in workers:
                if worker.process.code is not None:
                    self.fail(f"after {what}: {worker.process.name} ended with {worker.process.code}")
            return all(worker.steps() >= before[worker] + 2 for worker in workers)

        wait_until(all_went_on, HANG, lambda: f"after {what} these go on: " + ", ".join(
            worker.process.name for worker in workers if worker.steps() < before[worker] + 2))
        return time.monotonic() - begin

    def test_random_kills_without_overlap(self):
        self.campaign(amount("GPUMUX_TEST_KILLS", 40) // 2, seeded(self.id()), overlap=False)

    def test_random_kills_with_overlap(self):
        self.campaign(amount("GPUMUX_TEST_KILLS", 40) // 2, seeded(self.id()), overlap=True)

    def test_a_restart_of_the_daemon_loses_nothing(self):
        options = {"steps": 200, "step_us": 500, "sync_every": 3}
        want = self.native_digest(**options)
        daemon = self.start_daemon(quantum="5ms", overlap="false")
        logs = {name: os.path.join(self.directory, name) for name in "ABC"}
        programs = [self.start("worker", name=name, log=log, **options) for name, log in logs.items()]
        for program in programs:
            program.wait_for_line("ready")
        for _ in range(5):
            seen = len(daemon.trace.events(event="grant"))
            # The last one holds its lease to the end.
            wait_until(lambda: len(daemon.trace.events(event="grant")) >= seen + 4 or
                       sum(program.code is None for program in programs) < 2, HANG, "turns are taken")
            daemon.restart()
        for program in programs:
            program.expect_success()
            self.assertEqual(program.field("digest"), want)
        self.assertGreater(self.check_sure_intervals(logs), 100)
        self.assertEqual(daemon.trace.check_exclusive(overlap=False), [])

    def test_holders_go_on_while_there_is_no_daemon_and_waiters_wait(self):
        daemon = self.start_daemon(quantum="unlimited", idle_hold="10s")
        holder = self.start("worker", name="holder", steps=100_000, step_us=300, sync_every=2, say_every=1)
        holder.wait_for_line("step")
        waiter = self.start("worker", name="waiter", steps=20, step_us=300, say_every=1)
        daemon.trace.wait_for(event="request", pid=waiter.pid)
        daemon.kill()
        said = holder.count("step")
        wait_until(lambda: holder.count("step") > said + 200, HANG, "the holder goes on without a daemon")
        self.assertEqual(waiter.count("step"), 0)
        self.assertIsNone(waiter.code)
        daemon.start()
        said = holder.count("step")
        wait_until(lambda: holder.count("step") > said + 50, HANG, "the holder goes on with the new daemon")
        self.assertEqual(waiter.count("step"), 0, "the waiter was let in beside the holder")
        holder.send(signal.SIGKILL)
        waiter.expect_success()

    def test_a_terminated_daemon_lets_tenants_go_on(self):
        daemon = self.start_daemon(quantum="5ms")
        programs = [self.start("worker", steps=150, step_us=500) for _ in range(2)]
        for program in programs:
            program.wait_for_line("ready")
        daemon.trace.wait_for(event="grant", count=4)
        self.assertEqual(daemon.terminate(), 0)
        daemon.start()
        for program in programs:
            program.expect_success()

    def test_ungated_on_loss_goes_on_without_and_is_gated_again_later(self):
        daemon = self.start_daemon(quantum="5ms")
        variables = {"GPUMUX_ON_DAEMON_LOSS": "ungated"}
        programs = [self.start("worker", name=name, variables=variables, steps=100_000, step_us=500, say_every=1,
                               sync_every=2) for name in "AB"]
        for program in programs:
            program.wait_for_line("step")
        daemon.kill()
        said = [program.count("step") for program in programs]
        wait_until(lambda: all(program.count("step") > before + 50 for program, before in zip(programs, said)), HANG,
                   "both go on without a daemon")
        daemon.start()
        for program in programs:
            daemon.trace.wait_for(event="connect", pid=program.pid, count=2)
        # Gated again: the GPU changes hands between the two.
        known = len(daemon.trace.events(event="grant"))
        daemon.trace.wait_for(event="grant", count=known + 10)
        self.assertTrue({program.pid for program in programs} <=
                        {event["pid"] for event in daemon.trace.events(event="grant")[known:]})


if __name__ == "__main__":
    main()
