#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon knows whose container a tenant is in. A claim's quotas, shares and priority hold whatever its containers
say.

Method: real runc, with specifications that the shipped writer has written. Needs root and runc.
"""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.api import ApiError  # noqa: E402
from framework.case import main  # noqa: E402
from framework.fairness import Party, check_fair, check_higher_first, check_oldest_first  # noqa: E402
from framework.users import ASK, PYTHON  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube.containers import ContainersTest  # noqa: E402

CONTAINERD = {"io.kubernetes.cri.sandbox-namespace": "team-a", "io.kubernetes.cri.sandbox-name": "train-0",
              "io.kubernetes.cri.container-name": "main"}
CRI_O = {"io.kubernetes.pod.namespace": "team-b", "io.kubernetes.pod.name": "serve-0",
         "io.kubernetes.container.name": "web"}
MIB = 1 << 20
# No turn ends but by the order of turns. A program that is silent for long on a busy machine is not passed over.
TURNS = {"mode": "serial", "policy": "fair", "quantum": "10ms", "idle_hold": "unlimited", "max_runtime": "unlimited",
         "silence_limit": "1h"}

# A hook that makes a record of a container with a control group of the test's choice.
FORGE = """
import json, sys
folder, place = sys.argv[1:]
state = json.load(sys.stdin)
groups = [line.rstrip().split(":", 2)[2] for line in open(f"/proc/{state['pid']}/cgroup")]
record = {"version": 1, "id": state["id"], "control_group": place.format(group=max(groups, key=len), id=state["id"]),
          "namespace": "", "pod": "x-0", "name": "", "claims": []}
json.dump(record, open(f"{folder}/{state['id']}", "w"))
"""


class Records(ContainersTest):
    machine_settings = {"memory": "512MiB", "context_memory": "4MiB"}
    gpus = 2

    def setUp(self):
        super().setUp()
        self.daemon = self.start_system_daemon()
        self.gpu = self.daemon.api.gpu()["uuid"]
        self.records = pathlib.Path(self.runtime_dir) / "root" / "containers"

    def worker(self, edits, **options):
        command = ["/bin/worker", "--until", "/shared/enough", "--steps", 20, "--step-us", 500]
        return self.run_container(self.image("worker"), *command, edits=edits, **options)

    def large(self, mib, claim, rounds=1, **options):
        """A program that takes so much, in a container of the claim, which has 60 MiB."""
        command = ["/bin/large", "--blocks", mib // 8, "--block-kib", 8192, "--rounds", rounds]
        return self.run_container(self.image("large"), *command, edits=self.specification(claim, self.gpu, 60 * MIB),
                                  **options)

    def container_of(self, container):
        """The container that the daemon reports for the first process of this one."""
        pid = container.pid_on_the_host()

        def ask():
            return next((seat for seat in self.daemon.api.seats() if seat["pid"] == pid), None)
        def seen():
            seats = [(seat["pid"], seat["phase"]) for seat in self.daemon.api.seats()]
            return (f"the daemon knows {pid}, not only {seats}; runc says {container.pid_on_the_host()}; "
                    f"{container.process.tail()}")
        return wait_until(ask, HANG, seen).get("container")

    def end(self, *containers):
        pathlib.Path(self.enough).touch()
        for container in containers:
            container.lines()

    def run_hook(self, *arguments, **state):
        done = subprocess.run([paths.HOOK, *arguments], input=json.dumps({"bundle": "/", **state}), env={},
                              capture_output=True, text=True, timeout=HANG, check=True)
        return done.stderr

    def test_a_tenants_pod_and_claim_are_known(self):
        first = self.worker(self.specification("c-1", self.gpu, 60 * MIB), annotations=CONTAINERD)
        second = self.worker(self.specification(), annotations=CRI_O, first_uid=100000)
        plain = self.worker(self.specification())
        self.assertEqual(self.container_of(first), {"id": first.id, "namespace": "team-a", "pod": "train-0",
                                                    "name": "main", "claim": "c-1"})
        self.assertEqual(self.container_of(second), {"id": second.id, "namespace": "team-b", "pod": "serve-0",
                                                     "name": "web"})
        self.assertEqual(self.container_of(plain), {"id": plain.id})
        seats = json.loads(self.ask("status", "--json")[0])["gpus"][0]["seats"]
        self.assertIn(self.container_of(first), [seat.get("container") for seat in seats])
        table = self.ask("status")[0]
        for text in ("worker in team-a/train-0", "worker in team-b/serve-0", f"worker in container {plain.id[:12]}"):
            self.assertIn(text, table)
        self.assertEqual({path.name for path in self.records.iterdir()}, {first.id, second.id, plain.id})
        self.assertEqual({path.stat().st_mode & 0o777 for path in self.records.iterdir()}, {0o600})
        self.end(first, second, plain)
        self.assertEqual(list(self.records.iterdir()), [])
        pods = lambda: {event["pod"] for event in self.daemon.trace.events(event="gone") if "pod" in event}
        wait_until(lambda: pods() == {"team-a/train-0", "team-b/serve-0"}, HANG, lambda: f"the trace has {pods()}")

    def test_a_report_knows_pods(self):
        first = self.worker(self.specification(), annotations=CONTAINERD)
        second = self.worker(self.specification(), annotations=CRI_O, first_uid=100000)
        plain = self.worker(self.specification())
        held = lambda: {row.get("pod"): row["held_seconds"] for row in rows()}
        rows = lambda: self.daemon.api.ask("GET", "/v1/report?by=pod")["rows"]
        wait_until(lambda: set(held()) == {"train-0", "serve-0", None} and min(held().values()) > 0, HANG,
                   lambda: f"each has had the GPU: {rows()}")
        # A container's users are not the host's, whatever their numbers.
        self.assertEqual([row for row in rows() if "user" in row], [])
        self.end(first, second, plain)
        gone = lambda: len(self.daemon.trace.events(event="gone")) == 3
        wait_until(gone, HANG, "they are gone")
        traced = {}
        for lease, event in ((lease, event) for event in self.daemon.trace.events(event="connect")
                             for lease in self.daemon.trace.leases() if lease.pid == event["pid"]):
            pod = event.get("pod", "/").split("/")[1] or None
            traced[pod] = traced.get(pod, 0) + lease.held() / 1e9
        agrees = lambda: all(abs(time - traced[pod]) <= traced[pod] / 1000 for pod, time in held().items())
        wait_until(agrees, HANG, lambda: f"{held()} agrees with {traced}")
        table = self.ask("report", "--by", "pod")[0]
        self.assertIn("team-a/train-0", table)
        self.assertIn("team-b/serve-0", table)

    def expect_refused(self, container):
        self.assertEqual(container.process.wait(), 3, container.process.tail())
        self.assertEqual(container.process.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY

    def test_a_claims_containers_have_one_quota(self):
        first = self.large(48, "c-1", rounds=1_000_000, env=["GPUMUX_MEM_LIMIT=1G"], annotations=CONTAINERD)
        first.process.wait_for_line("memory", timeout=HANG)
        self.assertEqual(first.process.field("total", start="memory"), str(60 * MIB))
        self.expect_refused(self.large(16, "c-1"))
        self.expect_refused(self.large(16, "c-1", env=["GPUMUX_MEM_LIMIT=1G", "GPUMUX_RUN_ID=another"]))
        self.expect_refused(self.large(64, "c-2", env=["GPUMUX_PAGING=off"]))
        self.large(48, "c-2").lines()
        self.daemon.restart()
        self.assertEqual(self.container_of(first)["claim"], "c-1")
        # A seat that has just been opened has not said what it has.
        allocated = lambda seat: seat.get("memory", {}).get("allocated_bytes", 0)
        wait_until(lambda: any(allocated(seat) >= 48 * MIB for seat in self.daemon.api.seats()), HANG,
                   "the daemon knows what the claim has")
        self.expect_refused(self.large(16, "c-1"))
        self.assertIsNone(first.process.code, first.process.tail())

    def test_a_claims_programs_have_one_share(self):
        self.daemon.api.set(**TURNS)
        programs = []
        for claim, variables in (("c-1", ["GPUMUX_SHARE=100"]), ("c-1", ["GPUMUX_SHARE=1000"]), ("c-2", [])):
            edits = self.specification(claim, self.gpu, 60 * MIB, 50)
            programs.append(self.run_container(self.image("worker"), "/bin/worker", "--until", "/shared/enough",
                                               "--step-us", 2000, edits=edits, env=variables))
        for program in programs:
            self.assertEqual(self.container_of(program)["claim"], "c-2" if program is programs[2] else "c-1")
        wait_until(lambda: all(seat["grants"] for seat in self.daemon.api.seats()), HANG, "all of them run")
        self.assertEqual([seat["share"] for seat in self.daemon.api.seats()], ["0.5"] * 3)
        pids = [program.pid_on_the_host() for program in programs]
        first, second = Party(frozenset(pids[:2]), 1), Party(frozenset(pids[2:]), 1)

        def chosen():
            events = self.daemon.trace.events()
            judged = [check_fair(events, 0, first, second), check_fair(events, 0, second, first),
                      check_oldest_first(events, 0, first.pids)]
            self.assertEqual([problem for problems, _ in judged for problem in problems], [])
            return [choices for _, choices in judged]

        wait_until(lambda: min(chosen()) >= 20, HANG, lambda: f"the daemon has chosen often: {chosen()}", poll=0.2)
        with self.assertRaisesRegex(ApiError, r"has the shares of its claims \(c-2\)"):
            self.daemon.api.set_tenant(programs[2].pid_on_the_host(), share="2")
        self.daemon.api.set_tenant(programs[2].pid_on_the_host(), max_share="90%")
        self.end(*programs)

    def claim_with(self, priority, uid=None, gpu=0):
        """The edits of a claim with this priority, and the variable that the plugin gives with it."""
        gpus = [each["uuid"] for each in self.daemon.api.status()["gpus"]]
        edits = self.specification(uid or f"c{priority}", gpus[gpu], 60 * MIB, 50, priority)
        if priority:
            edits["env"].append(f"GPUMUX_PRIORITY={priority}")
        return edits

    def priority_of(self, container):
        self.container_of(container)
        pid = container.pid_on_the_host()
        return next(seat["priority"] for seat in self.daemon.api.seats() if seat["pid"] == pid)

    def test_a_claim_with_a_higher_priority_goes_first(self):
        self.daemon.api.set(**TURNS)
        program = (self.image("worker"), "/bin/worker", "--until", "/shared/enough", "--step-us", 2000)
        others = [self.run_container(*program, edits=self.claim_with(0), env=["GPUMUX_PRIORITY=1000"]),
                  self.run_container(*program, edits=self.claim_with(-5))]
        self.assertEqual([self.priority_of(other) for other in others], [0, -5])
        wait_until(lambda: any(seat["held_ns"] for seat in self.daemon.api.seats()), HANG, "a low one has the GPU")
        first = self.run_container(*program, edits=self.claim_with(5))
        self.assertEqual(self.priority_of(first), 5)
        self.expect_first(first, *others)
        # An administrator's word is above the claim's.
        self.daemon.api.set_tenant(first.pid_on_the_host(), priority="-9")
        self.expect_first(others[0], first)
        self.end(first, *others)
        self.assertIn("a tenant may not put itself above others", self.daemon.log())

    def expect_first(self, high, *low):
        """One of `low` had to go for the program `high` at once, which keeps the GPU while they wait."""
        pid = high.pid_on_the_host()
        others = {container.pid_on_the_host() for container in low}
        seats = lambda: {seat["pid"]: seat for seat in self.daemon.api.seats()}
        keeps = lambda now: now[pid]["phase"] == "holding" and all(now[other]["phase"] == "waiting" for other in others)
        wait_until(lambda: keeps(seats()), HANG, lambda: f"{pid} has the GPU, and the others wait: {seats()}")
        before = seats()
        wait_until(lambda: seats()[pid]["submissions"] >= before[pid]["submissions"] + 200, HANG, "it gets on")
        now = seats()
        self.assertTrue(keeps(now), now)
        self.assertEqual({seat: now[seat]["grants"] for seat in now}, {seat: before[seat]["grants"] for seat in now})
        problems, urgent = check_higher_first(self.daemon.trace.events(), 0, pid, others)
        self.assertEqual(problems, [])
        self.assertGreaterEqual(urgent, 1)

    def test_a_program_has_the_lowest_priority_of_its_claims_or_less(self):
        both = self.claim_with(7)
        both["hooks"] += self.claim_with(5, gpu=1)["hooks"]
        several = self.claim_with(7)
        several["hooks"] += self.claim_with(0, gpu=1)["hooks"]
        for edits, asked, expected in ((self.claim_with(7), "7", 7), (self.claim_with(7), "3", 3),
                                       (self.claim_with(7), "-3", -3), (self.claim_with(-3), "0", -3),
                                       (self.claim_with(-3), "-4", -4), (both, "7", 5), (several, "7", 0)):
            with self.subTest(asked=asked, expected=expected):
                edits["env"] = [each for each in edits["env"] if not each.startswith("GPUMUX_PRIORITY=")]
                container = self.worker(edits, env=[f"GPUMUX_PRIORITY={asked}"])
                self.assertEqual(self.priority_of(container), expected)
                self.end(container)
                pathlib.Path(self.enough).unlink()

    def test_a_user_cannot_lift_a_program_above_its_claim(self):
        user = 5  # of the host, and of the container
        program = (self.image("worker"), "/bin/worker", "--until", "/shared/enough", "--step-us", 500)
        programs = {priority: self.run_container(*program, edits=self.claim_with(priority), user=user)
                    for priority in (-5, 0, 5)}
        for priority, container in programs.items():
            self.assertEqual(self.priority_of(container), priority)
            tenant = next(seat["tenant"] for seat in self.daemon.api.seats()
                          if seat["pid"] == container.pid_on_the_host())

            def ask(wanted, target=f"/v1/tenants/{tenant}"):
                done = subprocess.run([PYTHON, "-c", ASK, f"{self.runtime_dir}/api.sock", "PATCH", target],
                                      input=json.dumps({"priority": wanted}), cwd="/", capture_output=True, text=True,
                                      timeout=HANG, check=True, user=user, group=user, extra_groups=[])
                status, _, text = done.stdout.partition("\n")
                return int(status), text

            status, text = ask(priority + 1)
            self.assertEqual(status, 403, text)
            self.assertIn(f"a priority up to {priority}", text)
            self.assertEqual(ask(priority - 1)[0], 200)
            self.assertEqual(self.priority_of(container), priority - 1)
            self.assertEqual(ask(priority)[0], 200)
        self.end(*programs.values())

    def test_each_claim_of_a_container_counts_on_its_gpus(self):
        gpus = [gpu["uuid"] for gpu in self.daemon.api.status()["gpus"]]
        edits = self.specification("c-1", gpus[0], 60 * MIB, 50)
        edits["hooks"] += self.specification("c-2", gpus[1], 100 * MIB, 25)["hooks"]

        def large(gpu, mib, **options):
            command = ["/bin/large", "--blocks", mib // 8, "--block-kib", 8192, "--rounds", 1]
            return self.run_container(self.image("large"), *command, edits=edits,
                                      env=[f"CUDA_VISIBLE_DEVICES={gpus[gpu]}"], **options)

        for gpu, quota in ((0, 60), (1, 100)):
            within = large(gpu, quota - 12)
            within.lines()
            self.assertEqual(within.process.field("total", start="memory"), str(quota * MIB))
            self.expect_refused(large(gpu, quota + 4))
        second = self.worker(edits, env=[f"CUDA_VISIBLE_DEVICES={gpus[1]}"])
        container = self.worker(edits)
        self.assertEqual(self.container_of(container)["claim"], "c-1")
        shares = lambda: [[seat["share"] for seat in self.daemon.api.seats(gpu)] for gpu in (0, 1)]
        wait_until(lambda: shares() == [["0.5"], ["0.25"]], HANG, lambda: f"each claim gives its share: {shares()}")
        state = {"id": container.id, "pid": container.pid_on_the_host()}
        record = lambda: json.loads((self.records / container.id).read_text(encoding="utf-8"))["claims"]
        before = record()
        self.assertEqual([claim["uid"] for claim in before], ["c-1", "c-2"])
        again = ("--record", self.records, "--claim", "c-2", "--quota", f"{gpus[1]}={100 * MIB}",
                 "--share", f"{gpus[1]}=25")
        self.assertEqual(self.run_hook(*again, **state), "")
        self.assertEqual(self.run_hook("--record", self.records, **state), "")
        self.assertEqual(record(), before)
        # Two claims on one GPU: the first one counts there.
        third = ("--claim", "c-3", "--quota", f"{gpus[0]}={600 * MIB}", "--share", f"{gpus[0]}=100")
        self.assertIn(f"its claims may not hold: claim c-3 does not count on {gpus[0]}",
                      self.run_hook("--record", self.records, *third, **state))
        self.assertEqual(record(), before + [{"uid": "c-3", "quotas": [], "shares": [], "priority": 0}])
        self.end(container, second)

    def test_a_daemon_that_starts_removes_what_is_left_over(self):
        container = self.worker(self.specification(), annotations=CONTAINERD)
        self.container_of(container)
        gone = "a" * 64
        record = json.loads((self.records / container.id).read_text(encoding="utf-8"))
        record.update(id=gone, control_group=f"/kubepods/{gone}")
        (self.records / gone).write_text(json.dumps(record), encoding="utf-8")
        (self.records / ("b" * 64)).write_text("{", encoding="utf-8")
        self.daemon.restart()
        self.assertEqual([path.name for path in self.records.iterdir()], [container.id])
        self.assertEqual(self.container_of(container)["pod"], "train-0")
        self.end(container)

    def test_a_container_starts_without_a_record(self):
        self.records.rmdir()
        container = self.worker(self.specification(), annotations=CONTAINERD)
        self.assertEqual(self.container_of(container), {"id": container.id})
        state = {"id": container.id, "pid": container.pid_on_the_host()}
        self.assertEqual(self.run_hook("--record", self.records, **state),
                         f"gpumux-cdi-hook: container {container.id} has no whole record, so its claims may not "
                         f"hold: cannot open {self.records}: No such file or directory\n")
        self.assertEqual(self.run_hook("--forget", self.records, **state),
                         f"gpumux-cdi-hook: container {container.id} has ended and leaves its record: "
                         f"cannot open {self.records}: No such file or directory\n")
        self.end(container)

    def test_a_record_of_another_control_group_is_not_believed(self):
        edits = self.specification()
        hooks = [hook for hook in edits["hooks"] if hook["hookName"] == "createContainer"]
        containers = []
        for place, is_believed in (("{group}", True), ("{group}/further", False), ("{group}0", False),
                                   ("/elsewhere/{id}", False)):
            with self.subTest(place=place):
                forger = {"hookName": "createRuntime", "path": PYTHON,
                          "args": ["python3", "-c", FORGE, str(self.records), place]}
                container = self.worker({**edits, "hooks": [forger, *hooks]})
                containers.append(container)
                known = self.container_of(container)
                self.assertEqual(known, {"id": container.id, **({"pod": "x-0"} if is_believed else {})})
                self.assertEqual("is not that container's" in self.daemon.log(), not is_believed)
        self.end(*containers)

    def test_the_hook_says_what_it_cannot_do(self):
        here = {"id": "c" * 64, "pid": os.getpid()}
        for arguments, state, why in (
                (["--record", "records"], here, "--record needs an absolute path"),
                (["--record", self.records, "--quota", "GPU-1=0"], here, "a whole number of bytes, 1 or more"),
                (["--record", self.records, "--quota", "GPU-1=1"], here, "quotas need a claim"),
                (["--record", self.records, "--claim", "c", "--share", "GPU-1=0"], here, "a whole number of cores"),
                (["--record", self.records, "--share", "GPU-1=1"], here, "shares need a claim"),
                (["--record", self.records, "--priority", "1"], here, "a priority needs a claim"),
                (["--record", self.records], here, "is not named by the container's id"),
                (["--record", self.records], {"id": "c" * 64}, "process 0 has ended"),
                (["--forget"], here, "--forget needs one absolute path"),
                (["--forget", self.records], {"id": "../api.sock"}, "'../api.sock' is no id of a container")):
            with self.subTest(arguments=arguments):
                self.assertIn(why, self.run_hook(*map(str, arguments), **state))
        self.assertEqual(list(self.records.iterdir()), [])
        self.assertEqual(self.run_hook("--forget", self.records, id="c" * 64), "")


if __name__ == "__main__":
    main()
