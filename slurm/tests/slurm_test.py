#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of a real Slurm share GPUs by spank_gpumux.so, as docs/slurm.md promises.

Method: Debian's slurmctld, two slurmds and munge in namespaces of one test's own (slurm_cluster.py), under a daemon
of root's. Jobs run tests/programs on the simulated driver. Needs root and control groups of version 1.
"""

import os
import pathlib
import pwd
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.fairness import Party, check_fair  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from slurm_cluster import LEAF, POLL, SlurmTest  # noqa: E402

MIB = 1 << 20
ON_N1 = "--nodelist=n1"
# The variables that the plugin gives to tasks, one `name=value` a line.
SHOW = 'env | grep -E "^(LD_PRELOAD|GPUMUX_(RUN_ID|GANG|SHARE|PRIORITY|MEM_LIMIT|RUNTIME_DIR))=" | sort'


class Slurm(SlurmTest):

    def shares(self, gpu=0):
        return sorted(seat["share"] for seat in self.daemon.api.seats(gpu))

    def variables(self, lines):
        return dict(line.split("=", 1) for line in lines)

    def test_two_jobs_with_shards_alternate_and_leave_nothing(self):
        jobs = [self.worker(ON_N1, "--gpumux", f"--gres=shard:{shards}") for shards in (2, 3)]
        self.wait_seats([1, 2])
        self.assertEqual(self.shares(), ["0.2", "0.3"])
        self.assertEqual({path.name: path.stat().st_mode & 0o777 for path in self.records.iterdir()},
                         {"slurm-1": 0o600, "slurm-2": 0o600})
        table = self.ask("status")[0]
        for job in (1, 2):
            self.assertIn(f"worker in Slurm job {job}", table)
        wait_until(lambda: self.daemon.api.gpu()["switches"] > 20, HANG, "the jobs take turns", poll=POLL)
        self.daemon.restart()
        self.wait_seats([1, 2])
        self.assertEqual(self.shares(), ["0.2", "0.3"])
        self.finish(*jobs)
        self.wait_nothing_left()

    def test_what_a_job_has_holds_whatever_its_programs_say(self):
        """Its memory and time are those of its shards, for all of its programs together."""
        lies = ["env", "GPUMUX_SHARE=100", "GPUMUX_MEM_LIMIT=1G", "GPUMUX_RUN_ID=another"]
        large = [self.files / "large", "--block-kib", 8192]
        first = self.srun(ON_N1, "--gpumux", "--gres=shard:2", *lies, *large, "--blocks", 10, "--rounds", 1_000_000)
        first.wait_for_line("memory", timeout=HANG)
        self.assertEqual(first.field("total", start="memory"), str(512 * MIB // 1000 * 200))
        self.wait_seats([1])
        # Another step of the job, whose user asks for more.
        again = self.srun("--jobid=1", "--overlap", "--gpumux=100", *lies, *large, "--blocks", 4, "--rounds", 1)
        self.assertEqual(again.wait(), 3, again.tail())
        self.assertEqual(again.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY
        self.assertEqual(self.shares(), ["0.2"])
        self.slurm.run("scancel", "1")
        self.wait_nothing_left()
        # Less than what Slurm has given.
        less = self.srun(ON_N1, "--gpumux-mem=20M", "--gres=shard:2", *large, "--blocks", 2, "--rounds", 1)
        less.expect_success()
        self.assertEqual(less.field("total", start="memory"), str(20 * MIB))
        # The step that starts last says what the job has. A whole GPU is limited by its user alone.
        script = f"ls {self.records}\nsrun --gpumux=100 ls {self.records}\nsrun ls {self.records}\n"
        self.assertEqual(self.run_script(script, ON_N1, "--gpumux=25", "--gres=gpu:1"), ["slurm-3", "slurm-3"])

    def test_a_job_of_two_gpus_is_a_gang(self):
        """Its ranks meet in every round, beside those of a gang that Slurm knows nothing of. Without gangs they would
        wait for each other for ever."""
        for name in ("inside", "outside"):
            (pathlib.Path(self.directory) / name).mkdir()

        def command(name, rounds):
            return [self.files / "collective", "--rounds", rounds, "--ahead", 7, "--step-us", 200, "--meet",
                    f"{self.directory}/{name}", "--rank"]

        variables = self.user_environment(LD_PRELOAD=str(self.library), GPUMUX_GANG="outside",
                                          GPUMUX_RUNTIME_DIR=self.runtime_dir)
        others = [self.slurm.make_process([*command("outside", 1_000_000), rank], variables, name=f"other {rank}")
                  for rank in range(2)]
        self.programs += others
        for other in others:
            other.wait_for_line("round", timeout=HANG)
        words = " ".join(str(word) for word in command("inside", 300))
        job = self.srun(ON_N1, "--gpumux", "--gres=gpu:2", "--ntasks=2", "sh", "-c", f"exec {words} $SLURM_PROCID")

        def gangs():
            return [sorted(seat["gang"] for seat in gpu["seats"]) for gpu in self.daemon.api.status()["gpus"][:2]]

        both = ["named:outside", "named:slurm-1"]
        wait_until(lambda: gangs() == [both, both], HANG, lambda: f"two gangs: {gangs()}; {job.tail()}", poll=POLL)
        job.expect_success(timeout=HANG)
        for other in others:
            self.assertIsNone(other.code, other.tail())
            other.end()
        self.wait_nothing_left()

    def test_a_whole_gpu_is_alone(self):
        shards = self.worker(ON_N1, "--gpumux", "--gres=shard:1")
        self.wait_seats([1])
        whole = self.worker(ON_N1, "--gpumux", "--gres=gpu:1")
        self.wait_seats([1], [2])
        third = self.worker(ON_N1, "--gpumux", "--gres=gpu:1")
        wait_until(lambda: self.jobs().get("3") == "PENDING", HANG, "the third job waits", poll=POLL)
        fourth = self.worker(ON_N1, "--gpumux", "--gres=shard:1")
        self.wait_seats([1, 4], [2])
        self.assertEqual(self.jobs()["3"], "PENDING")
        self.assertEqual(self.shares(1), ["1"])
        self.assertEqual({path.name for path in self.records.iterdir()}, {"slurm-1", "slurm-4"})
        self.finish(shards, whole, third, fourth)
        self.wait_nothing_left()

    def test_cancel_frees_everything(self):
        jobs = [self.worker(ON_N1, "--gpumux", "--gres=shard:6") for _ in range(3)]
        self.wait_seats([1], [2])
        self.slurm.run("scancel", "1")
        self.wait_seats([3], [2])
        self.slurm.run("scancel", "2", "3")
        self.wait_nothing_left()
        for job in jobs:
            self.assertNotEqual(job.wait(), 0)

    def test_slurmd_is_killed_under_a_job(self):
        job = self.submit_script(f"{self.files}/worker --until {self.enough} --steps 20 --step-us 500\n",
                                 ON_N1, "--gpumux", "--gres=shard:2")
        self.wait_seats([1])
        self.slurm.slurmd["n1"].send(signal.SIGKILL)
        self.slurm.slurmd["n1"].wait()
        self.slurm.start_slurmd("n1")
        another = self.worker(ON_N1, "--gpumux", "--gres=shard:2")
        self.wait_seats([1, 2])
        self.assertEqual(self.shares(), ["0.2", "0.2"])
        self.finish(another)
        self.wait_script(job)
        self.wait_nothing_left()

    def test_jobs_of_other_users(self):
        games, news = pwd.getpwnam("games"), pwd.getpwnam("news")
        jobs = [self.worker(ON_N1, "--gpumux", "--gpumux-priority=5", "--gres=shard:2", user=user)
                for user in (games, news)]
        self.wait_seats([1, 2])
        seats = self.daemon.api.seats()
        self.assertEqual({seat["uid"] for seat in seats}, {games.pw_uid, news.pw_uid})
        # Only those who may change settings go before others.
        self.assertEqual([(seat["share"], seat["priority"]) for seat in seats], [("0.2", 0)] * 2)
        wait_until(lambda: self.daemon.api.gpu()["switches"] > 10, HANG, "the jobs take turns", poll=POLL)
        self.finish(*jobs)
        self.wait_nothing_left()

    def test_a_step_in_a_batch_job_is_given_the_same_once(self):
        said = self.run_script(f"{SHOW}\necho ----\nsrun --ntasks=1 sh -c '{SHOW}'\necho ----\n"
                               f"srun --ntasks=2 --gpumux=10 sh -c '{SHOW}' | sort -u\n",
                               ON_N1, "--ntasks=2", "--gpumux", "--gpumux-priority=-2", "--gres=shard:2",
                               LD_PRELOAD="libm.so.6")
        batch, step, two = [self.variables(part.splitlines()) for part in "\n".join(said).split("----\n")]
        self.assertEqual(batch, {"LD_PRELOAD": f"libm.so.6:{self.library}", "GPUMUX_SHARE": "0.2",
                                 "GPUMUX_RUNTIME_DIR": self.runtime_dir, "GPUMUX_RUN_ID": "slurm-1",
                                 "GPUMUX_PRIORITY": "-2"})
        self.assertEqual(step, batch)
        self.assertEqual(two, {**batch, "GPUMUX_SHARE": "0.1", "GPUMUX_GANG": "slurm-1"})
        self.wait_nothing_left()

    def test_without_the_option_nothing_changes(self):
        job = self.srun("--gres=shard:2", "sh", "-c", SHOW).expect_success()
        self.assertEqual([*job.lines, *job.errors], [])
        self.assertEqual(list(self.records.iterdir()), [])

    def test_refusals(self):
        def refused(*arguments):
            process = self.srun(*arguments, "true")
            self.assertNotEqual(process.wait(), 0, process.tail())
            return "\n".join(process.errors)

        for value in ("0", "101", "half"):
            self.assertIn(f"'{value}' is no part of a GPU: 1 to 100 percent", refused(f"--gpumux={value}"))
        self.assertIn("'20' is no number of bytes with a unit", refused("--gpumux", "--gpumux-mem=20"))
        self.assertIn("a priority is a whole number", refused("--gpumux", "--gpumux-priority=first"))
        for gres in ("shard:15", "shard:sim:11"):
            self.assertIn("is refused: the shards of a job are of one GPU, and a GPU has 10", refused(f"--gres={gres}"))
        self.assertEqual(self.jobs(), {})
        self.assertIn("shards on 2 nodes is refused", refused("--nodes=2", "--gpumux", "--gres=shard:2"))
        # Whole GPUs of several nodes are not refused, and shards without gpumux are Slurm's matter.
        self.srun("--nodes=2", "--gres=shard:2", "true").expect_success()
        whole = self.srun("--nodes=2", "--gpumux", "--gres=gpu:1", "sh", "-c", SHOW).expect_success()
        self.assertEqual(whole.count("GPUMUX_GANG=slurm-"), 2, whole.tail())
        none = self.srun("--gpumux", "sh", "-c", SHOW).expect_success()
        self.assertEqual(none.lines, [])
        self.assertIn("gpumux: this step runs without gpumux: its job has no GPUs of Slurm's", none.tail())

    def test_a_node_without_a_daemon(self):
        """Its jobs run, and their users are told. The prolog says so, and drains the node if it is to."""
        self.daemon.terminate()
        job = self.srun(ON_N1, "--gpumux", "--gres=shard:2", "true").expect_success()
        self.assertIn(f"gpumux: no daemon answers in {self.runtime_dir}", job.tail())

        def prolog(*arguments, **variables):
            environment = {"PATH": f"{paths.COMMAND.parent}:/usr/bin:/bin", "GPUMUX_RUNTIME_DIR": self.runtime_dir,
                           "SLURM_JOB_ID": "7", **variables}
            return subprocess.run([LEAF / "prolog", *arguments], env=environment, capture_output=True, text=True,
                                  check=False, timeout=HANG)

        for arguments, code in (((), 0), (("--drain",), 1)):
            said = prolog(*arguments, SLURM_JOB_GPUS="0")
            self.assertEqual(said.returncode, code, said)
            self.assertIn("job 7: gpumuxd does not serve this node", said.stderr)
        self.assertEqual(prolog("--drain").stderr, "")  # a job without GPUs
        self.daemon.start()
        self.assertEqual(prolog("--drain", SLURM_JOB_GPUS="0").returncode, 0)


class Shares(SlurmTest):
    # A program that is silent for long on a busy machine is passed over, and its time is not its own.
    daemon_settings = {"mode": "serial", "policy": "fair", "quantum": "10ms", "idle_hold": "unlimited",
                       "silence_limit": "1h"}

    def test_shares_are_parts_of_time(self):
        jobs = [self.srun(ON_N1, "--gpumux", f"--gres=shard:{shards}", "env", "GPUMUX_SHARE=100", self.files / "worker",
                          "--until", self.enough, "--step-us", 2000) for shards in (2, 6)]
        self.wait_seats([1, 2])
        # srun starts them at once, in either order.
        pids = {seat["share"]: seat["pid"] for seat in self.daemon.api.seats()}
        self.assertEqual(sorted(pids), ["0.2", "0.6"])
        small, large = [Party(frozenset([pids[share]]), float(share)) for share in ("0.2", "0.6")]

        def chosen():
            events = self.daemon.trace.events()
            both = [check_fair(events, 0, *parties) for parties in ((small, large), (large, small))]
            self.assertEqual([problem for problems, _ in both for problem in problems], [])
            return min(choices for _, choices in both)

        wait_until(lambda: chosen() >= 20, HANG, lambda: f"20 turns of each, beside the other: {chosen()}", poll=0.2)
        self.finish(*jobs)


class ConstrainedDevices(SlurmTest):
    constrain_devices = True

    def test_a_job_reaches_its_own_devices_and_has_its_part(self):
        devices = self.slurm.directory / "devices"
        look = f'for i in 0 1; do exec 3<{devices}/nvidia$i; done 2>&1; exec {self.files}/worker --steps 20'
        job = self.srun(ON_N1, "--gpumux", "--gres=shard:2", "bash", "-c",
                        f"{look} --until {self.enough} --step-us 500")
        self.wait_seats([1])
        self.assertEqual([seat["share"] for seat in self.daemon.api.seats()], ["0.2"])
        # Nothing serves the first one, and the second is another job's.
        said = lambda: [line for line in list(job.lines) if "nvidia" in line]
        wait_until(lambda: len(said()) == 2, HANG, lambda: f"both devices were tried: {job.tail()}")
        self.assertRegex(said()[0], "nvidia0: No such device or address")
        self.assertRegex(said()[1], "nvidia1: Operation not permitted")
        self.finish(job)
        self.wait_nothing_left()


class WithoutControlGroups(SlurmTest):
    proctrack = "linuxproc"

    def test_a_jobs_variables_say_its_part_and_its_user_is_told(self):
        job = self.worker(ON_N1, "--gpumux", "--gres=shard:2")
        wait_until(lambda: self.daemon.api.seats(), HANG, lambda: f"the job has a seat: {job.tail()}", poll=POLL)
        seat = self.daemon.api.seats()[0]
        self.assertEqual((seat["share"], seat.get("container")), ("0.2", None))
        self.finish(job)
        self.assertIn("gpumux: the job has no record", job.tail())
        self.assertIn("ProctrackType=proctrack/cgroup is needed", job.tail())


if __name__ == "__main__":
    main()
