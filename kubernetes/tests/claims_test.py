#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole cluster gives parts of simulated GPUs to pods that claim them.

Goal: what docs/dra.md promises holds with Kubernetes' own scheduler, controllers, kubelet and container runtime.
Method: a cluster of one node (kube/cluster.py) with the daemon and the plugin on it. The plugin has a service
account with the rights that docs/dra.md lists, and no others.

Needs GPUMUX_TEST_KUBE_BIN, a folder with the programs of Kubernetes 1.36 or newer, and root.
"""

import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube.cluster import SERVER  # noqa: E402
from kube.containers import MUSL_LOADER  # noqa: E402
from kube.pods import KUBE_BIN, PodsTest  # noqa: E402

CLASS = "gpumux"
RESOURCE = "gpumux.io/gpu"
ACCOUNT = "gpumux-kubelet-plugin"
GIB = 1 << 30


@unittest.skipUnless(KUBE_BIN, "needs the programs of a cluster: GPUMUX_TEST_KUBE_BIN=DIR (kubernetes/tests/README.md)")
class ClaimsTest(PodsTest):
    """GPUs of 48 GiB: two claims of 20 GiB fit, a third one does not."""

    gpus = 1
    machine_settings = {"memory": "48GiB"}

    def setUp(self):
        super().setUp()
        self.start_node_daemon()
        self.account = self.kube.make_service_account(ACCOUNT)
        self.start_plugin()
        self.wait_slice()
        self.kube.make_device_class(CLASS)

    def start_plugin(self):
        self.plugin = self.start_node_plugin(api="dra", node="node", api_server=SERVER, service_account=self.account)

    def wait_registered(self):
        """A kubelet that does not know the plugin fails a claim, and tries again after a minute or more."""
        wait_until(lambda: any("registered gpumux.io" in line for line in list(self.plugin.errors)), HANG,
                   lambda: f"the kubelet knows the plugin: {self.plugin.tail()}")

    def wait_slice(self, other_than=None):
        """The node's GPUs are published; `other_than`: the uid of an earlier slice."""
        def published():
            slices = [each for each in self.kube.slices() if each["metadata"]["uid"] != other_than]
            devices = [device["name"] for each in slices for device in each["spec"]["devices"]]
            return sorted(devices) == sorted(uuid.lower() for uuid in self.uuids) and slices[0]["metadata"]["uid"]

        return wait_until(published, HANG,
                          lambda: f"the slice is there; there are {self.kube.slices()}; the plugin said "
                                  f"{self.plugin.tail()}", poll=0.1)

    def run_claim_worker(self, name, template, namespace="default", **options):
        return self.run_worker(name, worker=options, claim=template, namespace=namespace)

    def seat_of(self, pid, gpu=0):
        def seat():
            seats = {seat["pid"]: seat for seat in self.daemons[-1].api.status()["gpus"][gpu]["seats"]}
            # Its quota comes with its first memory.
            return seats.get(pid, {}).get("memory", {}).get("quota_bytes") and seats[pid]
        return wait_until(seat, HANG, lambda: f"{pid} is a tenant; there are {self.daemons[-1].api.status()}")

    def claim_of(self, pod):
        """The claim that was made from a template for a pod."""
        name = self.kube.pods()[pod.name]["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        return next(claim for claim in self.kube.claims() if claim["metadata"]["name"] == name)

    # ---- what the plugin has on the node

    def left(self):
        """All that is left of claims: specifications, records of claims and of containers, and claims."""
        def names(folder):
            return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

        return {"specifications": names(self.kube.root / "run/cdi"),
                "claims": names(self.kube.root / "var/lib/kubelet/plugins/gpumux.io/claims"),
                "containers": names(pathlib.Path(self.runtime_dir, "root/containers")),
                "objects": [claim["metadata"]["name"] for claim in self.kube.claims()]}

    def wait_nothing_left(self):
        wait_until(lambda: not any(self.left().values()), HANG, lambda: f"nothing is left; there is {self.left()}; the "
                                                                      f"plugin said {self.plugin.tail()}", poll=0.1)


class Memory(ClaimsTest):

    def test_two_namespaces_share_a_gpu_by_memory(self):
        self.kube.make_namespace("other")
        pods, pids = [], []
        for namespace in ("default", "other"):
            self.kube.make_template("part", CLASS, namespace, memory="20Gi", cores="30")
        for name, namespace in (("first", "default"), ("second", "other")):
            pods.append(self.run_claim_worker(name, "part", namespace))
            pids.append(pods[-1].wait_running())
            seat = self.seat_of(pids[-1])
            self.assertEqual(seat["memory"]["quota_bytes"], 20 * GIB)
            self.assertEqual(seat["share"], "0.3")
            self.assertEqual(seat["container"], {"id": pods[-1].container_id, "namespace": namespace, "pod": name,
                                                 "name": "main", "claim": self.claim_of(pods[-1])["metadata"]["uid"]})
        self.wait_seats({self.uuids[0]: pids})
        self.wait_turns(pids)
        third = self.run_claim_worker("third", "part")
        self.assertIn("cannot allocate all claims", third.wait_refused())
        self.assertEqual(third.status["phase"], "Pending")
        pods.pop(0).remove()
        pods.append(third)
        self.assertEqual(self.seat_of(third.wait_running())["memory"]["quota_bytes"], 20 * GIB)
        self.finish(*pods)
        for pod in pods:
            pod.remove()
        self.wait_nothing_left()

    def test_a_program_cannot_have_more_than_its_claim(self):
        self.kube.import_image(self.programs_image("large"), "gpumux.test/large:1")
        self.kube.make_template("small", CLASS, memory="60Mi")

        def run(name, mib):
            return self.run_pod(name, "/bin/large", "--blocks", mib // 8, "--block-kib", 8192, "--rounds", 1,
                                image="gpumux.test/large:1", claim="small", env={"GPUMUX_MEM_LIMIT": "1G"})

        run("fits", 48).expect_success()
        failed = run("exceeds", 64)
        failed.wait_phase("Failed")
        self.assertIn("code=2", "\n".join(failed.lines))  # CUDA_ERROR_OUT_OF_MEMORY

    def test_a_device_class_gives_a_priority(self):
        self.kube.make_device_class("first", config=[self.kube.priority(5)])
        pods = []
        for name, config, expected in (("lower", [self.kube.priority(-2)], -2), ("high", [], 5)):
            self.kube.make_template(name, "first", config=config, memory="4Gi")
            pods.append(self.run_claim_worker(name, name))
            self.assertEqual(self.seat_of(pods[-1].wait_running())["priority"], expected)
        self.kube.make_template("raised", "first", config=[self.kube.priority(6)], memory="4Gi")
        raised = self.run_claim_worker("raised", "raised")
        wait_until(lambda: "priority 6 is above the 5 of its DeviceClass" in self.kube.explain(raised.name), HANG,
                   lambda: f"the pod's events say why it does not start: {self.kube.explain(raised.name)}", poll=0.1)
        self.finish(*pods)

    def test_the_first_alternative_that_there_is(self):
        self.kube.make_template("either", CLASS, alternatives=[{"memory": "40Gi"}, {"memory": "4Gi"}])
        for name, memory in (("first", 40 * GIB), ("second", 4 * GIB)):
            pod = self.run_claim_worker(name, "either")
            self.assertEqual(self.seat_of(pod.wait_running())["memory"]["quota_bytes"], memory)


class ExtendedResource(ClaimsTest):
    """Pods name a resource, and the scheduler makes the claim."""

    gpus = 2

    def test_a_resource_is_served_by_claims(self):
        self.kube.make_device_class("shares", extendedResourceName=RESOURCE)
        one = self.run_worker("one", resources={RESOURCE: 1})
        pid = one.wait_running()
        gpu = self.uuids.index(self.visible(pid)[0])
        self.assertEqual(self.seat_of(pid, gpu)["memory"]["quota_bytes"], 48 * GIB // 10 >> 20 << 20)
        both = self.run_pod("both", "/usr/bin/env", resources={RESOURCE: 2}).expect_success()
        visible = next(line for line in both if line.startswith("CUDA_VISIBLE_DEVICES="))
        self.assertEqual(sorted(visible.partition("=")[2].split(",")), sorted(self.uuids))
        self.finish(one)
        for name in ("one", "both"):
            self.kube.remove_pod(name)
        self.wait_nothing_left()


class SeveralGpus(ClaimsTest):

    gpus = 2

    def test_two_of_one_request_are_two_gpus(self):
        self.kube.make_template("two", CLASS, count=2, memory="4Gi")
        self.kube.make_template("one", CLASS, memory="4Gi")
        both = self.run_claim_worker("both", "two", gpu="0,1")
        pid = both.wait_running()
        self.assertEqual(sorted(self.visible(pid)), sorted(self.uuids))
        self.wait_seats(dict.fromkeys(self.uuids, [pid]))
        for gpu in (0, 1):
            self.assertEqual(self.seat_of(pid, gpu)["memory"]["quota_bytes"], 4 * GIB)
        said = self.run_pod("one", "/usr/bin/env", claim="one").expect_success()
        self.assertIn(next(line for line in said if line.startswith("CUDA_VISIBLE_DEVICES=")),
                      [f"CUDA_VISIBLE_DEVICES={uuid}" for uuid in self.uuids])
        self.finish(both)


class Restarts(ClaimsTest):

    def start_two(self):
        self.kube.make_template("part", CLASS, memory="15Gi")
        pods = [self.run_claim_worker(name, "part") for name in ("first", "second")]
        return pods, [pod.wait_running() for pod in pods]

    def test_ten_kubelet_kills(self):
        pods, pids = self.start_two()
        self.wait_seats({self.uuids[0]: pids})
        for _ in range(10):
            # The kubelet removes the node's slices when it starts.
            old = self.wait_slice()
            self.kube.restart_kubelet()
            self.wait_slice(other_than=old)
        pods.append(self.run_claim_worker("third", "part"))
        pids.append(pods[-1].wait_running())
        self.wait_seats({self.uuids[0]: pids})  # the same processes
        self.wait_turns(pids)
        self.finish(*pods)
        for pod in pods:
            pod.remove()
        self.wait_nothing_left()

    def test_pods_that_are_deleted_without_a_kubelet(self):
        pods, pids = self.start_two()
        self.wait_seats({self.uuids[0]: pids})
        self.kube.kubelet.kill()
        for pod in pods:
            self.kube.remove_pod(pod.name, gracePeriodSeconds=0)
        self.kube.start_kubelet()
        self.wait_nothing_left()

    def test_a_daemon_that_does_not_answer(self):
        (pod, *_), _ = self.start_two()

        def wait_health(health):
            def said():
                lists = pod.container.get("allocatedResourcesStatus", [])
                return {resource["health"] for each in lists for resource in each["resources"]}

            wait_until(lambda: said() == {health}, HANG, lambda: f"{health}; it is {said()}", poll=0.1)

        wait_health("Healthy")
        self.daemons[-1].kill()
        wait_health("Unhealthy")
        wait_until(lambda: all("taints" in device for each in self.kube.slices() for device in each["spec"]["devices"]),
                   60, lambda: f"the GPU is tainted: {self.kube.slices()}", poll=0.1)
        third = self.run_claim_worker("third", "part")
        self.assertIn("cannot allocate all claims", third.wait_refused())
        self.daemons[-1].start()
        third.wait_running()
        wait_health("Healthy")

    def test_the_plugin_is_killed_between_prepare_and_unprepare(self):
        pods, pids = self.start_two()
        self.wait_turns(pids)
        self.plugin.kill()
        gone = self.claim_of(pods[0])["metadata"]["uid"]
        self.kube.remove_pod(pods.pop(0).name)
        wait_until(lambda: not self.kube.proc(pids[0]).exists(), HANG, "the container has ended")
        self.start_plugin()
        wait_until(lambda: gone not in "".join(self.left()["specifications"] + self.left()["claims"]), HANG,
                   lambda: f"nothing is left of {gone}; there is {self.left()}; the plugin said {self.plugin.tail()}",
                   poll=0.1)
        self.wait_registered()  # the slice of the killed plugin is still there, so the scheduler does not wait for that
        pods.append(self.run_claim_worker("third", "part"))
        self.wait_seats({self.uuids[0]: [pids[1], pods[-1].wait_running()]})
        self.finish(*pods)
        for pod in pods:
            pod.remove()
        self.wait_nothing_left()

    def test_pods_that_wait_for_a_plugin_start_with_it(self):
        self.kube.make_template("part", CLASS, memory="15Gi")
        self.plugin.kill()
        self.kube.remove_slices()
        pod = self.run_claim_worker("waits", "part")
        self.assertIn("cannot allocate all claims", pod.wait_refused())
        self.start_plugin()
        # A kubelet that could not prepare the claim tries again after a minute or more.
        wait_until(lambda: pod.container.get("state", {}).get("running"), HANG, lambda: f"it runs: {pod.status} "
                                                                                    f"{self.kube.explain('waits')}")
        self.finish(pod)

    def test_slices_of_a_plugin_that_has_ended_are_removed(self):
        self.wait_registered()
        self.plugin.send(signal.SIGTERM)
        self.assertEqual(self.plugin.wait(), 0)
        # The kubelet does that half a minute after the driver's socket has gone.
        wait_until(lambda: not self.kube.slices(), HANG, lambda: f"no slice is left: {self.kube.slices()}", poll=0.1)


class Images(ClaimsTest):

    def setUp(self):
        super().setUp()
        self.kube.make_template("part", CLASS, memory="4Gi")

    def maps_of(self, name, image, **options):
        """Files that a program in the image has mapped."""
        self.kube.import_image(image, f"gpumux.test/{name}:1", **options)
        program = "/bin/maps_musl" if image.path("/bin/maps_musl").exists() else "/bin/maps"
        return "\n".join(self.run_pod(name, program, image=f"gpumux.test/{name}:1", claim="part").expect_success())

    def test_what_an_image_loads_stays(self):
        image = self.image("maps")
        image.add(paths.PROGRAMS / "intruder.so", "/opt/first.so")
        image.add(paths.PROGRAMS / "intruder.so", "/opt/second.so")
        image.path("/etc/ld.so.preload").write_text("/opt/second.so\n", encoding="ascii")
        maps = self.maps_of("preloads", image, env=["LD_PRELOAD=/opt/first.so"])
        for file in ("/opt/first.so", "/opt/second.so", f"/{self.version}/libgpumux.so"):
            self.assertIn(file, maps)

    @unittest.skipUnless((paths.PROGRAMS / "maps_musl").exists(), "needs musl-gcc when the tests are built")
    def test_an_image_with_musl_runs(self):
        image = self.image()
        image.add(paths.PROGRAMS / "maps_musl")
        image.add(MUSL_LOADER, MUSL_LOADER)
        maps = self.maps_of("musl", image)
        self.assertIn("ld-musl", maps)
        self.assertNotIn("libgpumux", maps)


if __name__ == "__main__":
    main()
