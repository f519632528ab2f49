#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpumux-kubelet-plugin serves a daemon's GPUs to a kubelet, whatever of the three starts again.

Method: a real daemon with simulated GPUs, the plugin, and a kubelet of the tests' own. Containers of real runc
try what the plugin gives them.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.error

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.metrics import TOKEN, Prometheus, fetch, promtool, token_file  # noqa: E402
from framework.users import UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube.containers import ContainersTest  # noqa: E402
from kube.kubelet import SHARES, WHOLE, Kubelet, Plugin  # noqa: E402

VERSION = subprocess.run([paths.KUBELET_PLUGIN, "--version"], capture_output=True, text=True,
                         check=True).stdout.split()[-1]


def shares_of(*gpus, count=10):
    return [f"{gpu}::{number}" for gpu in gpus for number in range(count)]


class PluginTest(GpumuxTest):
    gpus = 2

    def start_node(self, daemon=True, **settings):
        if daemon:
            self.start_daemon()
            self.uuids = [gpu["uuid"] for gpu in self.daemons[0].api.status()["gpus"]]
        self.kubelet = Kubelet(self)
        self.plugin = Plugin(self, self.kubelet, **settings)
        self.kubelet.wait_until_registered(1, settings.get("resource", SHARES))

    def recover(self, gpu, action):
        """The recovery action that the GPU needs from now on; 0: none."""
        (pathlib.Path(self.machine.directory) / f"recovery-{gpu}").write_text(str(action), encoding="ascii")


class Devices(PluginTest):

    def test_each_gpu_is_ten_shares(self):
        self.start_node()
        self.assertEqual(sorted(self.kubelet.wait_for_healthy(20)), sorted(shares_of(*self.uuids)))
        checked = self.start_process([paths.KUBELET_PLUGIN, "--check", "--device-plugins", self.kubelet.folder])
        checked.expect_success()
        self.assertEqual(self.plugin.terminate(), 0)
        self.assertEqual([path.name for path in self.kubelet.folder.iterdir()], ["kubelet.sock"])
        gone = self.start_process([paths.KUBELET_PLUGIN, "--check", "--device-plugins", self.kubelet.folder])
        self.assertEqual(gone.wait(), 1)

    def test_the_names_of_nvshare(self):
        self.start_node(resource="nvshare.com/gpu", variables={"NVSHARE_VIRTUAL_DEVICES": "3"})
        self.assertEqual(sorted(self.kubelet.wait_for_healthy(6, "nvshare.com/gpu")),
                         sorted(shares_of(*self.uuids, count=3)))

    def test_a_gpu_that_is_served_whole(self):
        self.start_daemon()
        self.uuids = [gpu["uuid"] for gpu in self.daemons[0].api.status()["gpus"]]
        self.start_node(daemon=False, whole=self.uuids[0], shares=3)
        self.assertEqual(list(self.kubelet.wait_for_healthy(3)), shares_of(self.uuids[1], count=3))
        self.kubelet.wait_until_registered(1, WHOLE)
        self.assertEqual(list(self.kubelet.wait_for_healthy(1, WHOLE)), shares_of(self.uuids[0], count=1))
        given = self.kubelet.allocate(shares_of(self.uuids[0], count=1), resource=WHOLE)["containers"][0]
        self.assertEqual(given["env"], [f"CUDA_VISIBLE_DEVICES={self.uuids[0]}"])

    def test_the_daemon_goes_and_comes_back(self):
        self.start_node()
        self.kubelet.wait_for_healthy(20)
        self.daemons[0].kill()
        self.assertEqual(len(self.kubelet.wait_for_healthy(0)), 20)
        self.daemons[0].start()
        self.kubelet.wait_for_healthy(20)
        self.assertEqual(self.kubelet.registrations(), 1)

    def test_a_daemon_that_comes_later(self):
        self.start_node(daemon=False)
        self.plugin.wait_to_log("the daemon does not answer")
        self.start_daemon()
        self.kubelet.wait_for_healthy(20)

    def test_a_gpu_gets_sick_and_recovers(self):
        self.start_node()
        self.kubelet.wait_for_healthy(20)
        self.recover(1, 1)
        devices = self.kubelet.wait_for_healthy(10)
        self.assertEqual([id for id, healthy in devices.items() if not healthy], shares_of(self.uuids[1]))
        self.plugin.wait_to_log(f"{self.uuids[1]} is not healthy: the driver says that it needs a reset")
        self.recover(1, 0)
        self.kubelet.wait_for_healthy(20)
        self.plugin.wait_to_log(f"{self.uuids[1]} is healthy again")

    def test_ten_restarts_of_the_kubelet_and_kills_of_the_plugin(self):
        self.start_node()
        for _ in range(10):
            before = self.kubelet.registrations()
            self.kubelet.restart()
            self.kubelet.wait_until_registered(before + 1)
        for _ in range(3):
            before = self.kubelet.registrations()
            self.plugin.kill()
            self.plugin.start()
            self.kubelet.wait_until_registered(before + 1)
        self.kubelet.wait_for_healthy(20)


class MetricsOfTheNode(PluginTest):
    """The plugin serves the daemon's page, and the daemon decides what is in it."""

    def start_with_metrics(self, **settings):
        self.start_node(metrics_address="127.0.0.1:0", **settings)
        self.plugin.wait_to_log("metrics are served on ")
        self.address = next(line.split()[-1] for line in self.plugin.process.errors if "metrics are served on" in line)
        self.url = f"http://{self.address}/metrics"
        program = self.start("worker", steps=100, step_us=500, until=self.enough)
        self.daemons[0].trace.wait_for(event="grant", pid=program.pid)
        return program

    def test_it_serves_none_unless_it_is_told_to(self):
        self.start_node()
        self.kubelet.wait_for_healthy(20)
        self.assertFalse([line for line in self.plugin.process.errors if "metrics" in line])
        sockets = subprocess.run(["ls", "-l", f"/proc/{self.plugin.process.pid}/fd"], capture_output=True, text=True,
                                 check=True).stdout
        own = set(re.findall(r"socket:\[(\d+)\]", sockets))
        for family in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{self.plugin.process.pid}/net/{family}").read_text().splitlines()[1:]:
                self.assertNotIn(line.split()[9], own, line)

    def test_without_a_token_nobody_is_named(self):
        program = self.start_with_metrics()
        page = fetch(self.url)
        self.assertIn('gpumux_gpu_seats{gpu="0"', page)
        for name in ("worker", "user=", "program=", "pod=", "namespace=", "job="):
            self.assertNotIn(name, page)
        page = fetch(self.url, accept="application/openmetrics-text")
        self.assertTrue(page.endswith("# EOF\n"))
        self.work_until(lambda: True, "nothing more", program)

    def test_with_a_token_nobody_else_reads(self):
        program = self.start_with_metrics(metrics_token_file=token_file(self))
        self.assertIn('program="worker"', fetch(self.url, TOKEN))
        for wrong in (None, TOKEN + "x"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                fetch(self.url, wrong)
            self.assertEqual(refused.exception.code, 401)
        self.work_until(lambda: True, "nothing more", program)
        self.daemons[0].kill()
        with self.assertRaises(urllib.error.HTTPError) as refused:
            fetch(self.url, TOKEN)
        self.assertEqual(refused.exception.code, 503)
        self.daemons[0].start()
        self.assertIn("gpumux_tenants 0\n", fetch(self.url, TOKEN))

    @unittest.skipUnless(shutil.which("promtool") and shutil.which("prometheus"), "Debian's prometheus is missing")
    def test_a_prometheus_scrapes_it(self):
        program = self.start_with_metrics(metrics_token_file=token_file(self))
        self.assertEqual(promtool("metrics", fetch(self.url, TOKEN)), (0, ""))
        prometheus = Prometheus(self, self.address)
        prometheus.start()
        wait_until(lambda: prometheus.query('gpumux_program_held_seconds_total{program="worker"}'), HANG,
                   "it is scraped")
        ((up),) = prometheus.query("up")
        self.assertEqual(up["value"][1], "1")
        self.work_until(lambda: True, "nothing more", program)

    def test_a_wrong_address_is_refused(self):
        self.expect_error("'localhost' is no address of metrics")
        process = self.start_process([paths.KUBELET_PLUGIN, "--metrics-address", "localhost"], name="plugin")
        self.assertEqual(process.wait(), 2)
        self.assertIn("'localhost' is no address of metrics", process.tail(5))


class MetricsInAPod(UsersTest):
    """The plugin is in a container, whose root is nobody on the host. It has the folder that root alone enters."""

    def test_it_reads_by_the_socket_of_root(self):
        inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("it cannot make a pid namespace")

        def ask(socket):
            said = subprocess.run([*inside, "curl", "--silent", "--unix-socket", f"{self.runtime_dir}/{socket}",
                                   "http://gpumux/metrics"], capture_output=True, text=True, check=True)
            return said.stdout

        self.assertIn("may not read metrics", ask("api.sock"))
        self.assertIn("gpumux_tenants 0\n", ask("root/api.sock"))


class Allocations(PluginTest):

    def test_shares_are_of_different_gpus(self):
        self.start_node()
        self.kubelet.wait_for_healthy(20)
        first, second = self.uuids
        free = shares_of(first)[2:] + shares_of(second)
        self.assertEqual(self.kubelet.prefer(free, 2)["ids"], [f"{second}::0", f"{first}::2"])
        self.assertEqual(self.kubelet.prefer(free, 2, must=[f"{first}::5"])["ids"], [f"{first}::5", f"{second}::0"])
        # Several containers of a pod, each with GPUs of its own, in the order that was asked for.
        given = self.kubelet.allocate([f"{second}::0", f"{first}::2"], [f"{first}::3"])["containers"]
        self.assertEqual([container["env"] for container in given],
                         [[f"CUDA_VISIBLE_DEVICES={second},{first}"], [f"CUDA_VISIBLE_DEVICES={first}"]])
        refused = self.kubelet.allocate([f"{first}::0", f"{first}::1"])["error"]
        self.assertIn(f"2 of {first}", refused)

    def test_the_gpu_with_fewer_tenants_comes_first(self):
        self.start_node()
        self.kubelet.wait_for_healthy(20)
        first, second = self.uuids
        self.assertEqual(self.kubelet.prefer(shares_of(first, second), 1)["ids"], [f"{min(first, second)}::0"])
        busy = self.uuids.index(min(first, second))
        worker = self.start("worker", until=self.enough, steps=10, step_us=200, gpu=busy)
        wait_until(lambda: self.kubelet.prefer(shares_of(first, second), 1)["ids"] == [f"{max(first, second)}::0"],
                   HANG, "the plugin prefers the other GPU")
        pathlib.Path(self.enough).touch()
        worker.expect_success()

    def test_by_choice_packed_and_several_of_one_gpu(self):
        self.start_node(placement="packed", same_gpu="allow")
        self.kubelet.wait_for_healthy(20)
        first, second = self.uuids
        self.assertEqual(self.kubelet.prefer(shares_of(first) + shares_of(second)[5:], 1)["ids"], [f"{second}::5"])
        given = self.kubelet.allocate([f"{first}::0", f"{first}::1"])["containers"][0]
        self.assertEqual(given["env"], [f"CUDA_VISIBLE_DEVICES={first}"])

    def test_one_specification_serves_the_node(self):
        self.start_node()
        self.kubelet.wait_for_healthy(20)
        folder = pathlib.Path(self.directory) / "cdi"
        file = folder / "gpumux.io-container_node.json"
        wait_until(file.exists, HANG, "the specification is there")
        names = [container["cdi"] for container in self.kubelet.allocate(*([id] for id in shares_of(*self.uuids)))
                 ["containers"]]
        self.assertEqual(names, [["gpumux.io/container=id-node"]] * 20)
        self.assertEqual(list(folder.iterdir()), [file])
        file.unlink()
        self.kubelet.allocate([shares_of(*self.uuids)[0]])
        self.assertTrue(file.exists())
        # Containers that start again need it when the plugin has ended.
        self.plugin.terminate()
        self.assertTrue(file.exists())


class Options(GpumuxTest):

    def refused(self, *options, **variables):
        process = self.start_process([paths.KUBELET_PLUGIN, *options], environment=variables or {"PATH": ""})
        self.assertEqual(process.wait(), 2)
        return process.errors[0]

    def test_wrong_ones_are_refused_in_words(self):
        self.assertIn("--api nri: this version serves no such API; it serves: device-plugin, dra",
                      self.refused("--api", "nri"))
        self.assertIn("set --node NAME", self.refused("--api", "dra"))
        self.assertIn("set --api-server", self.refused("--api", "dra", "--node", "n"))
        self.assertIn("this is no ADDRESS:PORT", self.refused("--api", "dra", "--node", "n", "--api-server", "server"))
        self.assertIn("needs a runtime with CDI", self.refused("--api", "dra", "--node", "n", "--inject", "env"))
        self.assertIn("--shares cannot be '0': it must be a whole number from 1 to 1000", self.refused("--shares", "0"))
        self.assertIn("NVSHARE_VIRTUAL_DEVICES: ", self.refused(NVSHARE_VIRTUAL_DEVICES="many"))
        self.assertIn("GPUMUX_KUBELET_INJECT: ", self.refused(GPUMUX_KUBELET_INJECT="magic"))
        self.assertIn("--inject env is for runtimes without CDI", self.refused("--inject", "env", "--nvidia", "cdi"))


class Containers(ContainersTest):
    """The plugin's answers make a container's programs tenants."""

    version = VERSION
    gpus = 2

    def allocate(self, inject, *gpus):
        self.kubelet = Kubelet(self)
        self.plugin = Plugin(self, self.kubelet, inject=inject)
        self.kubelet.wait_until_registered(1)
        self.kubelet.wait_for_healthy(20)
        uuids = [gpu["uuid"] for gpu in self.daemons[0].api.status()["gpus"]]
        return self.kubelet.allocate([f"{uuids[gpu]}::0" for gpu in gpus])["containers"][0]

    def edits_of(self, given):
        """The edits that a runtime makes from the kubelet's answer."""
        edits = {"env": list(given["env"]), "mounts": list(given["mounts"]), "hooks": []}
        for file in (pathlib.Path(self.directory) / "cdi").glob("*.json"):
            found = json.loads(file.read_text(encoding="utf-8"))
            for device in found["devices"]:
                if f"{found['kind']}={device['name']}" in given["cdi"]:
                    for key, value in device["containerEdits"].items():
                        edits[key] = edits[key] + value
        return edits

    def run_worker(self, inject):
        daemon = self.start_system_daemon()
        given = self.allocate(inject, 1, 0)
        container = self.run_container(self.image("worker"), "/bin/worker", "--until", "/shared/enough", "--steps", 20,
                                       "--step-us", 500, edits=self.edits_of(given))
        # The first share's GPU is the program's first one.
        seats = wait_until(lambda: daemon.api.status()["gpus"][1]["seats"], HANG,
                           lambda: f"its program is a tenant: {container.process.tail()}")
        self.assertEqual(seats[0]["program"], "worker")
        self.assertEqual(daemon.api.status()["gpus"][0]["seats"], [])
        pathlib.Path(self.enough).touch()
        container.lines()

    def test_by_cdi(self):
        self.run_worker("cdi")

    def test_by_the_environment(self):
        self.run_worker("env")


if __name__ == "__main__":
    main()
