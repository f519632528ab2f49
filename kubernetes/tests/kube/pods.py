# SPDX-License-Identifier: Apache-2.0
"""The base of scenarios whose programs run in pods, on a node of the test's own (node.py, cluster.py)."""

import os
import pathlib
import subprocess
import unittest

from framework import paths
from framework.waiting import HANG, wait_until
from . import cluster, node
from .containers import ContainersTest

BUILD_KUBELET = paths.ROOT / "kubernetes/tests/build_kubelet.sh"
KUBE_BIN = os.environ.get("GPUMUX_TEST_KUBE_BIN", "")


def built_kubelet():
    """The folder with kubelet and containerd."""
    built = subprocess.run([BUILD_KUBELET], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise AssertionError(built.stderr)
    return built.stdout.strip()


def make_node(case):
    if not KUBE_BIN:
        return node.Node(case, built_kubelet())
    missing = cluster.missing_programs(KUBE_BIN)
    if missing:
        raise AssertionError(f"GPUMUX_TEST_KUBE_BIN: {KUBE_BIN} has no {', '.join(missing)}; a cluster needs "
                             f"{', '.join(cluster.PROGRAMS)}")
    return cluster.Cluster(case, KUBE_BIN)


@unittest.skipIf(node.reason_to_skip(), node.reason_to_skip())
class PodsTest(ContainersTest):
    """A node with an image that has the tests' programs."""

    def setUp(self):
        said = subprocess.run([paths.KUBELET_PLUGIN, "--version"], capture_output=True, text=True, check=True)
        self.version = said.stdout.split()[-1]  # of the library that the plugin gives to pods
        super().setUp()
        self.kube = make_node(self).start(self.programs_image())

    def programs_image(self, *more):
        image = self.image("worker", *more)
        for program in ("/bin/sleep", "/usr/bin/env"):
            image.add_machines(program)
        return image

    def start_node_daemon(self):
        self.start_system_daemon(self.kube.make_process)
        self.uuids = [gpu["uuid"] for gpu in self.daemons[-1].api.status()["gpus"]]

    def start_node_plugin(self, program=paths.KUBELET_PLUGIN, **settings):
        """By its own defaults where they are the node's."""
        settings = {"runtime_dir": self.runtime_dir, "hook": paths.HOOK, "libraries": self.node / "libraries",
                    "sim_libraries": paths.SIM_LIBRARIES, "sim_dir": self.machine.directory, **settings}
        options = [word for name, value in settings.items() for word in ("--" + name.replace("_", "-"), value)]
        return self.kube.start_process(program, *options, name="gpumux-kubelet-plugin")

    # ---- pods

    def run_pod(self, name, *arguments, **options):
        return self.kube.run_pod(name, *arguments, volumes=[(self.shared, "/shared")], **options)

    def run_worker(self, name, before=(), worker=None, **options):
        """It computes until finish(). `before`: a command that starts it. `worker`: its own options."""
        worker = {"until": "/shared/enough", "steps": 20, "step-us": 500, **(worker or {})}
        words = [str(part) for option, value in worker.items() for part in (f"--{option}", value)]
        pod = self.run_pod(name, *before, "/bin/worker", *words, **options)
        pod.gpu_option = worker.get("gpu", "0")
        return pod

    def visible(self, pid):
        """UUIDs of the GPUs that a process is told."""
        variables = (self.kube.proc(pid) / "environ").read_text(encoding="utf-8").split("\0")
        return next(v for v in variables if v.startswith("CUDA_VISIBLE_DEVICES=")).split("=")[1].split(",")

    # ---- tenants

    def wait_seats(self, expected):
        """The daemon knows these processes on each GPU by the node's numbers, and no strangers."""
        def seats():
            gpus = self.daemons[-1].api.status()["gpus"]
            return {gpu["uuid"]: (sorted(seat["pid"] for seat in gpu["seats"]), gpu["foreign"]) for gpu in gpus}

        expected = {uuid: (sorted(expected.get(uuid, [])), []) for uuid in self.uuids}
        wait_until(lambda: seats() == expected, HANG, lambda: f"the tenants are {expected}; they are {seats()}")

    def wait_turns(self, pids, gpu=0, count=3):
        """Each of them gets the GPU as often from now on."""
        trace = self.daemons[-1].trace
        before = len(trace.switches(gpu))
        wait_until(lambda: all(trace.switches(gpu)[before:].count(pid) >= count for pid in pids), HANG,
                   lambda: f"{pids} take turns on GPU {gpu}: {trace.switches(gpu)[before:][-20:]}")

    def finish(self, *pods):
        """They end, and have computed what they compute without gpumux."""
        pathlib.Path(self.enough).touch()
        for pod in pods:
            fields = dict(word.split("=", 1) for line in pod.expect_success() for word in line.split() if "=" in word)
            again = next(line.split()[1:] for line in pod.lines if line.startswith("again "))
            command = [paths.PROGRAMS / "worker", "--gpu", pod.gpu_option, "--steps", "20", "--step-us", "0", *again]
            native = self.start_process(command, environment=self.environment(preload=False)).expect_success()
            self.assertEqual(fields["digest"], native.field("digest"), pod.name)
