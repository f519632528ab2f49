#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What do a daemon and a plugin cost a node with 8 GPUs and 110 pods, and the API server?

A real daemon, the plugin by dynamic resource allocation, and 110 programs on 8 simulated GPUs. Each program works for
1 ms and pauses for 200 ms, as a service between requests. The API server is the tests' own, and counts.

    tools/build.sh dev
    python3 experiments/014-a-large-cluster/node.py
"""

import collections
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "kubernetes/tests")]
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import wait_until  # noqa: E402
from kube.api_server import ApiServer  # noqa: E402
from kube.dra import DraKubelet, DraPlugin  # noqa: E402

PODS = 110
KINDS = ("resourceslices", "resourceclaims", "nodes")
WINDOW_S = 20
TICKS = os.sysconf("SC_CLK_TCK")


class CountingServer(ApiServer):

    def __init__(self, case):
        self.calls = collections.Counter()
        super().__init__(case)

    def answer(self, method, path, body):
        status, said = super().answer(method, path, body)
        kind = next((part for part in reversed(path.split("/")) if part in KINDS), "version")
        self.calls[f"{method} {kind}"] += 1
        return status, said


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


class Node(GpumuxTest):
    gpus = 8
    machine_settings = {"memory": "1GiB", "context_memory": "4MiB"}
    daemon_settings = {}

    def measure(self, what):
        processes = {"gpumuxd": self.daemons[0].process.pid, "gpumux-kubelet-plugin": self.plugin.process.pid}
        before = {name: cpu_seconds(pid) for name, pid in processes.items()}
        self.server.calls.clear()
        grants = self.grants()
        began = time.monotonic()
        time.sleep(WINDOW_S)
        length = time.monotonic() - began
        for name, pid in processes.items():
            used = 100 * (cpu_seconds(pid) - before[name]) / length
            print(f"{what:12} {name:22} {used:6.2f} % of a core {resident_mib(pid):7.1f} MiB resident")
        print(f"{what:12} {'grants':22} {(self.grants() - grants) / length:6.1f} a second")
        calls = ", ".join(f"{count} x {call}" for call, count in sorted(self.server.calls.items())) or "none"
        print(f"{what:12} API server in {length:.0f} s:   {calls}", flush=True)

    def grants(self):
        return sum(seat["grants"] for gpu in self.daemons[0].api.status()["gpus"] for seat in gpu["seats"])

    def test_a_node(self):
        self.start_daemon()
        self.server = CountingServer(self)
        kubelet = DraKubelet(self)
        self.plugin = DraPlugin(self, kubelet, self.server)
        kubelet.wait_until_registered()
        wait_until(self.server.slice, 30, "the slice is published")
        self.measure("no pods")
        for pod in range(PODS):
            self.start("worker", until=self.enough, steps=10, step_us=1000, pause_us=200_000,
                       variables={"CUDA_VISIBLE_DEVICES": pod % self.gpus})
        seats = lambda: sum(len(gpu["seats"]) for gpu in self.daemons[0].api.status()["gpus"])
        wait_until(lambda: seats() == PODS, 300, lambda: f"all pods are tenants: {seats()}")
        self.measure(f"{PODS} pods")
        self.server.calls.clear()
        self.plugin.kill()
        self.plugin.start()
        kubelet.wait_until_registered()
        wait_until(lambda: self.server.calls["PUT resourceslices"], 30, "the slice is written again")
        print(f"a restart of the plugin: {dict(self.server.calls)}", flush=True)


if __name__ == "__main__":
    main()
