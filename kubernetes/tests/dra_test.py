#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpumux-kubelet-plugin --api dra: a slice at the API server, and claims that are prepared and unprepared.

Method: a real daemon with simulated GPUs, the plugin, a kubelet and an API server of the tests' own. Containers of real
runc try what a claim gives them.
"""

import json
import pathlib
import subprocess
import sys
import threading


sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube.api_server import SLICES, ApiServer  # noqa: E402
from kube.containers import ContainersTest  # noqa: E402
from kube.dra import DraKubelet, DraPlugin  # noqa: E402

VERSION = subprocess.run([paths.KUBELET_PLUGIN, "--version"], capture_output=True, text=True,
                         check=True).stdout.split()[-1]


def priority(source, value):
    """A configuration of the claim's, or of its DeviceClass."""
    parameters = {"apiVersion": "gpumux.io/v1alpha1", "kind": "Sharing", "priority": value}
    return {"source": source, "opaque": {"driver": "gpumux.io", "parameters": parameters}}


class Node:
    """For test cases that have a daemon."""

    def start_dra(self, is_registered=True, **settings):
        self.api_server = ApiServer(self)
        self.kubelet = DraKubelet(self)
        self.plugin = DraPlugin(self, self.kubelet, self.api_server, **settings)
        self.devices = [gpu["uuid"].lower() for gpu in self.daemons[0].api.status()["gpus"]]
        if is_registered:
            self.kubelet.wait_until_registered()
        else:
            wait_until((self.kubelet.folder / "plugins_registry" / "gpumux.io-reg.sock").exists, HANG,
                       lambda: f"the plugin serves: {self.plugin.process.tail()}")

    def files(self):
        return sorted(path.name for path in (pathlib.Path(self.directory) / "cdi").iterdir())

    def edits(self, uid):
        file = pathlib.Path(self.directory) / "cdi" / f"gpumux.io-claim_{uid}.json"
        return json.loads(file.read_text(encoding="utf-8"))["devices"][0]["containerEdits"]

    def wait_for_slice(self, condition, what):
        def look():
            found = self.api_server.slice()
            return found and condition(found["spec"]["devices"]) and found

        return wait_until(look, HANG, lambda: f"{what}: {self.api_server.slice()} {self.plugin.process.tail()}")


class Slices(Node, GpumuxTest):
    gpus = 2

    def test_nothing_is_published_before_the_kubelet_knows_the_driver(self):
        daemon = self.start_daemon()
        self.start_dra(is_registered=False)
        # The second look comes a second after the first one, in which the plugin begins.
        daemon.kill()
        self.plugin.wait_to_log("the daemon does not answer")
        self.assertIsNone(self.api_server.slice())
        daemon.start()
        self.kubelet.wait_until_registered()
        self.wait_for_slice(lambda devices: len(devices) == 2, "two GPUs are published")

    def test_the_slice_follows_the_node(self):
        self.start_daemon()
        self.start_dra(memory_percent=150)
        total = self.daemons[0].api.status()["gpus"][0]["memory_total_bytes"]
        found = self.wait_for_slice(lambda devices: len(devices) == 2, "two GPUs are published")
        self.assertEqual([device["name"] for device in found["spec"]["devices"]], self.devices)
        self.assertEqual(found["metadata"]["ownerReferences"][0]["uid"], "uid-of-node-1")
        attributes = found["spec"]["devices"][0]["attributes"]
        self.assertEqual(attributes["architecture"], {"string": "Hopper"})
        self.assertEqual(attributes["cudaComputeCapability"], {"version": "9.0.0"})
        capacity = found["spec"]["devices"][0]["capacity"]
        self.assertEqual(capacity["cores"]["value"], "100")
        self.assertEqual(capacity["memory"]["value"], f"{(total >> 20) * 3 // 2}Mi")
        self.assertEqual(self.kubelet.health(), dict.fromkeys(self.devices, True))
        del self.api_server.objects[f"{SLICES}/node-1-gpumux.io"]
        self.wait_for_slice(lambda devices: len(devices) == 2, "the slice comes back")
        self.daemons[0].kill()
        self.wait_for_slice(lambda devices: all("taints" in device for device in devices), "the GPUs are tainted")
        self.assertEqual(self.kubelet.health(), dict.fromkeys(self.devices, False))
        self.daemons[0].start()
        self.wait_for_slice(lambda devices: not any("taints" in device for device in devices), "they are healthy")
        checked = self.start_process([paths.KUBELET_PLUGIN, "--api", "dra", "--check", "--kubelet",
                                      self.kubelet.folder])
        checked.expect_success()
        self.assertEqual(self.plugin.terminate(), 0)


class Claims(Node, GpumuxTest):
    gpus = 2

    def start_node(self):
        self.start_daemon()
        self.start_dra()

    def test_claims_come_and_go(self):
        self.start_node()
        first, second = self.devices
        self.api_server.allocate("u1", (first, "2Gi", "25"))
        self.api_server.allocate("u2", (second, "4Gi", "50"), (first, "3Gi", "50"), config=[priority("FromClass", 5)])
        self.api_server.allocate("u3", (first, "1Gi", "25"),
                                 config=[priority("FromClass", 5), priority("FromClaim", 6)])
        answer = self.kubelet.prepare("u1", "u2", "u3", "none")
        self.assertIn("priority 6 is above the 5 of its DeviceClass", answer["u3"]["error"])
        self.assertEqual(answer["u1"], {"error": "", "devices": [
            {"device": first, "request": "r0", "cdi": ["gpumux.io/claim=id-u1"]}]})
        self.assertEqual([device["device"] for device in answer["u2"]["devices"]], [second, first])
        self.assertIn("claim-none is not found", answer["none"]["error"])
        uuids = [gpu["uuid"] for gpu in self.daemons[0].api.status()["gpus"]]
        env = self.edits("u2")["env"]
        for variable in (f"CUDA_VISIBLE_DEVICES={uuids[1]},{uuids[0]}", f"GPUMUX_MEM_LIMIT={3 << 30}",
                         "GPUMUX_SHARE=0.5", "GPUMUX_PRIORITY=5", "GPUMUX_RUN_ID=claim-u2"):
            self.assertIn(variable, env)
        record = next(hook["args"] for hook in self.edits("u2")["hooks"] if hook["hookName"] == "createRuntime")
        for order in (f"{uuids[0]}={3 << 30}", f"{uuids[1]}={4 << 30}"):
            self.assertEqual(record[record.index(order) - 1], "--quota")
        for order in (f"{uuids[0]}=50", f"{uuids[1]}=50"):
            self.assertEqual(record[record.index(order) - 1], "--share")
        self.assertEqual(record[record.index("--priority") + 1], "5")
        # Killed between prepare and unprepare; a container of it may start again.
        self.plugin.kill()
        self.plugin.start()
        self.kubelet.wait_until_registered()
        self.assertEqual(self.kubelet.prepare("u1")["u1"], answer["u1"])
        self.assertEqual(self.kubelet.unprepare("u1", "u1", "unknown"), {"u1": {"error": ""}, "unknown": {"error": ""}})
        self.assertEqual(self.files(), ["gpumux.io-claim_u2.json"])
        self.assertEqual(self.kubelet.unprepare("u2")["u2"], {"error": ""})
        self.assertEqual(self.files(), [])
        self.assertEqual(list((self.kubelet.folder / "plugins" / "gpumux.io" / "claims").iterdir()), [])

    def test_what_is_gone_is_removed_at_the_start(self):
        self.start_node()
        for uid in ("u1", "u2"):
            self.api_server.allocate(uid, (self.devices[0], "1Gi", "10"))
        self.kubelet.prepare("u1", "u2")
        self.plugin.kill()
        self.api_server.forget("u1")
        self.plugin.start()
        wait_until(lambda: self.files() == ["gpumux.io-claim_u2.json"], HANG, lambda: f"u1 has gone: {self.files()}")
        self.plugin.wait_to_log("default/claim-u1 is gone")

    def test_a_claim_waits_for_the_daemon(self):
        self.start_node()
        self.api_server.allocate("u1", (self.devices[0], "1Gi", "10"))
        daemon = self.daemons[0]
        daemon.kill()
        self.plugin.wait_to_log("the daemon does not answer")
        self.assertIn("the daemon of gpumux does not answer", self.kubelet.prepare("u1")["u1"]["error"])
        self.assertEqual(self.files(), [])
        starts = threading.Thread(target=daemon.start)
        starts.start()
        self.assertEqual(self.kubelet.prepare("u1")["u1"]["error"], "")
        starts.join()
        daemon.kill()
        # A pod that ends needs no daemon.
        self.assertEqual(self.kubelet.unprepare("u1")["u1"]["error"], "")
        self.assertEqual(self.files(), [])

    def test_a_gpu_that_the_daemon_does_not_serve(self):
        self.start_node()
        self.api_server.allocate("u1", ("gpu-lost", "1Gi", "10"))
        self.assertIn("serves no gpu-lost", self.kubelet.prepare("u1")["u1"]["error"])
        self.assertEqual(self.files(), [])


class Containers(Node, ContainersTest):
    version = VERSION
    gpus = 2

    @staticmethod
    def quota(daemon):
        seats = daemon.api.status()["gpus"][1]["seats"]
        return seats and seats[0].get("memory", {}).get("quota_bytes")

    def test_a_claims_programs_are_tenants_on_its_gpu(self):
        daemon = self.start_system_daemon()
        self.start_dra()
        self.api_server.allocate("u1", (self.devices[1], "2Gi", "25"))
        self.assertEqual(self.kubelet.prepare("u1")["u1"]["error"], "")
        container = self.run_container(self.image("worker"), "/bin/worker", "--until", "/shared/enough", "--steps", 20,
                                       "--step-us", 500, edits=self.edits("u1"))
        seats = wait_until(lambda: daemon.api.status()["gpus"][1]["seats"], HANG,
                           lambda: f"its program is a tenant: {container.process.tail()}")
        self.assertEqual(seats[0]["share"], "0.25")
        self.assertEqual(seats[0]["container"]["claim"], "u1")
        wait_until(lambda: self.quota(daemon) == 2 << 30, HANG,
                   lambda: f"it has the claim's quota: {self.quota(daemon)}")
        self.assertEqual(daemon.api.status()["gpus"][0]["seats"], [])
        pathlib.Path(self.enough).touch()
        container.lines()


if __name__ == "__main__":
    main()
