#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real kubelet gives shares of simulated GPUs to pods.

Goal: what the device plugin promises holds with the kubelet's own code: its registration, its choice of devices, its
restarts, and what it passes on to the container runtime. Method: kubelet, containerd and runc run static pods in
namespaces of one test's own (kube/node.py). Their programs are tests/programs on the simulated driver, under a
daemon of the test's own.

The kubelet that build_kubelet.sh builds has no API server and no CDI: its pods get gpumux by mounts and variables.
GPUMUX_TEST_KUBE_BIN names a folder with the programs of a newer cluster (kube/cluster.py). Then its scheduler
places the pods, and they get gpumux by CDI. Needs root.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube.pods import PodsTest  # noqa: E402

RESOURCE = "gpumux.io/gpu"
NEXT_VERSION = "999.0"  # of next_kubelet_plugin


class Pods(PodsTest):

    def test_a_pod_runs_and_nothing_stays(self):
        pod = self.kube.run_pod("sleeper", "/bin/sleep", 1000)
        process = self.kube.proc(pod.wait_running())
        self.assertTrue(process.exists())
        pod.remove()
        self.assertFalse(process.exists())
        left = self.kube.proc(self.kube.run_pod("another", "/bin/sleep", 1000).wait_running())
        self.assertTrue(left.exists())
        self.kube.end()
        self.assertFalse(left.exists())
        self.assertEqual(self.kube.traces(), [])

    def test_a_pods_end_and_output_are_seen(self):
        self.assertEqual(self.kube.run_pod("good", "/usr/bin/env", env={"SAID": "this"}).expect_success().count(
            "SAID=this"), 1)
        failed = self.kube.run_pod("bad", "/usr/bin/env", "--no-such-option")
        failed.wait_phase("Failed")
        self.assertIn("unrecognized option", "\n".join(failed.lines))


class SharesTest(PodsTest):
    """With a daemon and the kubelet's plugin."""

    gpus = 2
    shares = 10

    def setUp(self):
        super().setUp()
        self.start_node_daemon()
        self.start_plugin()

    def start_plugin(self, program=paths.KUBELET_PLUGIN, shares=None, **settings):
        """`shares`: how many the kubelet gets from it; by default all."""
        self.plugin_started_at = time.time()
        inject = "cdi" if self.kube.has_cdi else "env"
        self.plugin = self.start_node_plugin(program, **{"inject": inject, "shares": self.shares, **settings})
        self.wait_registered(shares)

    def restart_plugin(self, **options):
        self.plugin.kill()
        self.start_plugin(**options)

    def wait_registered(self, shares=None):
        """The running kubelet has got all shares, or so many, from the running plugin. It admits pods before that,
        without GPUs."""
        expected = self.shares * self.gpus if shares is None else shares
        since = max(self.kube.kubelet_started_at, self.plugin_started_at)

        def registered():
            for process in (self.plugin, self.kube.kubelet):
                self.assertIsNone(process.code, f"{process.name} ended: {process.tail()}")
            return self.kube.registered(since).get(RESOURCE) == expected

        wait_until(registered, HANG,
                   lambda: f"the kubelet has {expected} shares; it has {self.kube.registered(since)}; "
                           f"the plugin said {self.plugin.tail()}")

    def run_with_shares(self, name, shares, *arguments, **options):
        return self.run_pod(name, *arguments, resources={RESOURCE: shares}, **options)

    def worker(self, name, shares=1, before=(), **options):
        return self.run_worker(name, before, options, resources={RESOURCE: shares})

    def gpus_of(self, name, shares):
        """UUIDs that a pod with so many shares is told."""
        pod = self.run_with_shares(name, shares, "/usr/bin/env")
        variables = dict(line.split("=", 1) for line in pod.expect_success())
        pod.remove()
        return variables["CUDA_VISIBLE_DEVICES"].split(",")


class Shares(SharesTest):

    def test_a_pod_gets_its_share(self):
        self.assertIn(self.gpus_of("one", 1), [[uuid] for uuid in self.uuids])
        pod = self.run_with_shares("logs", 1, "/bin/worker", "--steps", 1, env={"GPUMUX_LOG": "/dev/stderr"})
        self.assertIn("connected to daemon", "\n".join(pod.expect_success()))

    def test_two_shares_are_two_gpus(self):
        # The kubelet itself picks at random. It takes the plugin's preference.
        for i in range(4):
            self.assertEqual(sorted(self.gpus_of(f"two-{i}", 2)), sorted(self.uuids))

    def test_more_shares_than_gpus_are_refused(self):
        status = self.run_with_shares("three", 3, "/usr/bin/env").wait_phase("Failed")
        self.assertEqual(status["reason"], "UnexpectedAdmissionError")
        self.assertRegex(status["message"], "|".join(self.uuids))


class Turns(SharesTest):
    """Two pods on one GPU."""

    gpus = 1

    def start_two(self):
        pods = [self.worker("first"), self.worker("second")]
        pids = [pod.wait_running() for pod in pods]
        self.wait_seats({self.uuids[0]: pids})
        return pods, pids

    def test_two_pods_take_turns(self):
        pods, pids = self.start_two()
        text, _ = self.ask("status")
        for pid in pids:
            self.assertRegex(text, rf"\b{pid}\b")
        self.wait_turns(pids)
        self.finish(*pods)
        self.assertEqual(self.daemons[-1].trace.check_exclusive(), [])

    def test_ten_kubelet_kills(self):
        pods, pids = self.start_two()
        for _ in range(10):
            self.kube.restart_kubelet()
            self.wait_registered()
        pods.append(self.worker("third"))
        pids.append(pods[-1].wait_running())
        self.wait_seats({self.uuids[0]: pids})  # the same processes
        self.wait_turns(pids)
        self.finish(*pods)

    def test_plugin_kills(self):
        pods, pids = self.start_two()
        for i in range(3):
            self.restart_plugin()
            self.assertEqual(self.gpus_of(f"after-{i}", 1), self.uuids)
        self.wait_turns(pids)
        self.finish(*pods)

    def test_daemon_kills(self):
        pods, pids = self.start_two()
        for _ in range(3):
            self.daemons[-1].restart()
            self.wait_seats({self.uuids[0]: pids})
            self.wait_turns(pids)
        self.finish(*pods)

    def wait_shares(self, count):
        wait_until(lambda: self.kube.registered(0).get(RESOURCE) == count, HANG,
                   lambda: f"the kubelet has {count} healthy shares; it has {self.kube.registered(0)}")

    def test_without_a_daemon_no_pod_gets_a_share(self):
        pods, pids = self.start_two()
        self.daemons[-1].kill()
        self.wait_shares(0)
        self.assertIn(RESOURCE, self.run_with_shares("without", 1, "/usr/bin/env").wait_refused())
        self.daemons[-1].start()
        self.wait_shares(self.shares)
        pods.append(self.worker("third"))
        pids.append(pods[-1].wait_running())
        self.wait_seats({self.uuids[0]: pids})
        self.finish(*pods)

    def test_a_kubelet_that_starts_without_a_daemon(self):
        def expect_refused(name):
            self.assertIn(RESOURCE, self.run_with_shares(name, 1, "/usr/bin/env").wait_refused())

        pods, pids = self.start_two()
        self.daemons[-1].kill()
        self.wait_shares(0)
        self.kube.restart_kubelet()
        self.wait_registered(0)
        expect_refused("plugin-stays")
        # This plugin never hears which GPUs there are.
        self.plugin.kill()
        self.kube.restart_kubelet()
        expect_refused("no-plugin")
        self.start_plugin(shares=0)
        expect_refused("plugin-starts")
        for pid in pids:
            self.assertTrue(self.kube.proc(pid).exists(), "a pod that has its share stays")
        self.daemons[-1].start()
        self.wait_shares(self.shares)
        pods.append(self.worker("third"))
        pids.append(pods[-1].wait_running())
        self.wait_seats({self.uuids[0]: pids})  # the same processes
        self.finish(*pods)

    def test_an_upgrade_under_running_pods(self):
        pods, pids = self.start_two()
        self.install(NEXT_VERSION)
        self.daemons[-1].restart()
        self.restart_plugin(program=paths.PROGRAMS / "next_kubelet_plugin")
        pods.append(self.worker("new"))
        pids.append(pods[-1].wait_running())
        self.wait_seats({self.uuids[0]: pids})
        for pid, version in zip(pids, (self.version, self.version, NEXT_VERSION)):
            maps = (self.kube.proc(pid) / "maps").read_text(encoding="utf-8")
            self.assertIn(f"/{version}/libgpumux.so", maps)
        self.wait_turns(pids)
        self.finish(*pods)


class SeveralGpus(SharesTest):
    """A pod with two GPUs beside pods with one of them each. Seed systems knew the list of GPUs as one GPU more: its
    pod worked beside the others, on the same GPUs. And they gave several shares of one GPU."""

    daemon_settings = {"mode": "serial", "overlap": "false"}

    def run_three(self, *before):
        """Pods, their first processes, and the GPUs of each."""
        both = self.worker("both", 2, before, gpu="0,1", log="/shared/both")
        pids = [both.wait_running()]
        pods = [both]
        for name in ("one", "other"):
            pods.append(self.worker(name, 1, before, log=f"/shared/{name}"))
            pids.append(pods[-1].wait_running())
        gpus = [self.visible(pid) for pid in pids]
        self.assertEqual(sorted(gpus[0]), sorted(self.uuids))
        self.assertEqual(sorted(gpus[1] + gpus[2]), sorted(self.uuids))
        return pods, pids, gpus

    def intervals(self, name, gpus):
        """When a pod's program certainly worked on each GPU."""
        found = {uuid: [] for uuid in self.uuids}
        log = pathlib.Path(self.shared, name)
        for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else ():
            if line.endswith("\n"):
                gpu, begin, end = (int(word) for word in line.split())
                found[gpus[gpu]].append((begin, end))
        return found

    def overlaps(self, gpus):
        """On how many GPUs two pods certainly worked at once."""
        both, one, other = (self.intervals(name, gpus) for name, gpus in zip(("both", "one", "other"), gpus))
        def overlap(uuid):
            return any(begin < its_end and its_begin < end for begin, end in both[uuid]
                       for its_begin, its_end in one[uuid] + other[uuid])

        return sum(overlap(uuid) for uuid in self.uuids)

    def test_each_gpu_is_shared_by_its_own_tenants(self):
        pods, pids, gpus = self.run_three()
        expected = {uuid: [pid for pid, its in zip(pids, gpus) if uuid in its] for uuid in self.uuids}
        self.wait_seats(expected)
        for gpu, uuid in enumerate(self.uuids):
            self.wait_turns(expected[uuid], gpu)
        self.finish(*pods)
        self.assertEqual(self.daemons[-1].trace.check_exclusive(overlap=False), [])
        for name, its in zip(("both", "one", "other"), gpus):
            self.assertTrue(all(self.intervals(name, its)[uuid] for uuid in its), f"{name} has said when it worked")
        self.assertEqual(self.overlaps(gpus), 0)

    def test_without_gpumux_they_work_at_once(self):
        self.restart_plugin(inject="env")  # a pod can undo that
        pods, _, gpus = self.run_three("/usr/bin/env", "--unset=LD_PRELOAD")

        wait_until(lambda: self.overlaps(gpus) == 2, HANG, "two pods work at once on each GPU", poll=0.1)
        self.finish(*pods)


class OneGpuFull(SharesTest):
    """Free shares on one GPU only."""

    shares = 2

    def fill_one(self):
        """The GPU without free shares, and the other one."""
        pods = {}
        for name in ("a", "b", "c"):
            pods[name] = self.run_with_shares(name, 1, "/bin/sleep", 1000)
            gpu = self.visible(pods[name].wait_running())[0]
            pods.setdefault(gpu, []).append(pods.pop(name))
        full, other = sorted(pods, key=lambda gpu: -len(pods[gpu]))
        pods[other][0].remove()
        return full, other

    def test_two_shares_are_refused(self):
        _, free = self.fill_one()
        status = self.run_with_shares("two", 2, "/usr/bin/env").wait_phase("Failed")
        self.assertEqual(status["reason"], "UnexpectedAdmissionError")
        self.assertIn(free, status["message"])
        self.assertEqual(self.gpus_of("one", 1), [free])

    def test_two_shares_of_one_gpu_where_that_is_allowed(self):
        _, free = self.fill_one()
        self.restart_plugin(same_gpu="allow")
        self.assertEqual(self.gpus_of("two", 2), [free])


if __name__ == "__main__":
    main()
